"""The only package that imports vllm, and only once something is started. By process:

launch           what starts vLLM: its arguments, its environment, the report of what is active
server           in vLLM's API server: the plan's endpoint, the replay of requests
core             in vLLM's engine core: the schedulers, which adapt the speculation loop (`slipstream.loop`)
worker           in vLLM's workers: drafters, and what they need of the model runner
patches          where vLLM is changed rather than used, each with its reason
contract         what of vLLM is relied on, as a table that is compared with it
plugin           what vLLM calls in each of its processes
settings         what travels from `launch` to `core` and `worker`
load_generator   the client side of a benchmark
"""
