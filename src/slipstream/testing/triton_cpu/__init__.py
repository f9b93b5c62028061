"""Triton kernels at the speed of the CPU, so that vLLM's V2 model runner can be tested and measured without a
GPU.

Triton compiles for GPUs only; without one it has an interpreter that takes half a second for what should take
a millisecond. `install()` puts a compiler in the interpreter's place: a kernel is translated for its
constants and types (`translate`), compiled by numba (`operations`) and kept on disk. What cannot be
translated runs in the interpreter, with a warning. An instrument for tests and benchmarks: nothing in
production uses it.
"""

from slipstream.testing.triton_cpu.launch import install

__all__ = ["install"]
