"""What runs in the process of vLLM's engine core: the schedulers, which alone decide what is drafted."""
