"""Whether speculation changes what a deployment writes: checks for users to run, with stated error rates."""
