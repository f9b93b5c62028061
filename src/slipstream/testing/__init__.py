"""What tests and examples need: small real models, made on the spot. See `models`."""
