"""What starts vLLM: runs in the user's process, before and around vLLM's own start."""
