"""The only place that imports vllm, and only once something is started.

environment   what vLLM wants set before its processes start
arguments     a `Choice` as vLLM's own arguments
worker        the worker process on CPU
start         the offline engine and the server
report        what is active, printed at start
patches       where vLLM is changed rather than used, each with its reason
"""
