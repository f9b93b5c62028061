"""What runs in vLLM's API server: an endpoint and the replay of requests."""
