"""Make a process ready for vLLM's V2 model runner on a CPU. Python imports this file at the start of every
process that has its folder on PYTHONPATH; `slipstream.testing.v2` makes such an environment.

Five modules are changed as soon as they are imported, and nothing is imported for it.
"""

import importlib.abc
import importlib.util
import os
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace
from typing import Any


def add_backend(backends: Any) -> None:
    """Give Triton a backend named cpu, without which vLLM\'s CPU build turns Triton off. It is never used."""
    backends.backends["cpu"] = SimpleNamespace(compiler=None, driver=SimpleNamespace(is_active=lambda: True))


def compile_kernels(interpreter: Any) -> None:
    """Put the compiler in the interpreter's place when the first kernel is launched."""
    interpret = interpreter.InterpretedFunction.run

    def first(self: Any, *args: Any, **kwargs: Any) -> Any:
        from slipstream.testing.triton_cpu import install

        interpreter.InterpretedFunction.run = interpret
        install(checked=os.environ.get("SLIPSTREAM_V2_ON_CPU") == "checked")
        return self.run(*args, **kwargs)

    interpreter.InterpretedFunction.run = first


def allow_async(platform: Any) -> None:
    """Keep asynchronous scheduling where it is asked for: on a CPU vLLM turns it off, as not needed, each
    time a config is made or copied."""
    original = platform.CpuPlatform.check_and_update_config

    def check_and_update_config(vllm_config: Any) -> None:
        wanted = vllm_config.scheduler_config.async_scheduling
        original(vllm_config)
        vllm_config.scheduler_config.async_scheduling = wanted

    platform.CpuPlatform.check_and_update_config = staticmethod(check_and_update_config)


def compile_without_triton(torch_triton: Any) -> None:
    """Let torch's own compiler do as on a CPU without Triton."""
    torch_triton.has_triton = torch_triton.has_triton_package = lambda: False


def filter_by_torch(sampler: Any) -> None:
    """Let top-k and top-p be torch's, as on a CPU without Triton: their kernel is not translated, and the
    interpreter cannot run it."""
    sampler.HAS_TRITON = False


CHANGES = {
    "torch.utils._triton": compile_without_triton,
    "triton.backends": add_backend,
    "triton.runtime.interpreter": compile_kernels,
    "vllm.platforms.cpu": allow_async,
    "vllm.v1.sample.ops.topk_topp_sampler": filter_by_torch,
}


class _Finder(importlib.abc.MetaPathFinder):
    """Finds the modules of `CHANGES` as Python does, and changes them once they are loaded."""

    def find_spec(self, name: str, path: Any, target: ModuleType | None = None) -> ModuleSpec | None:
        if name not in CHANGES:
            return None
        change = CHANGES.pop(name)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                load(module)
                change(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


if os.environ.get("SLIPSTREAM_V2_ON_CPU"):
    sys.meta_path.insert(0, _Finder())
