"""Kernels that are compiled for the CPU and kept on disk."""

import os
import subprocess
import sys
from pathlib import Path

PROGRAM = """
import sys
import torch, triton
import triton.language as tl
from slipstream.testing.triton_cpu import install
from slipstream.testing.triton_cpu.launch import compiled

@triton.jit
def added(x_ptr, y_ptr, out_ptr, SIZE: tl.constexpr):
    at = tl.arange(0, SIZE)
    tl.store(out_ptr + at, tl.load(x_ptr + at) + tl.load(y_ptr + at))

@triton.jit
def multiplied(x_ptr, y_ptr, out_ptr, SIZE: tl.constexpr):
    at = tl.arange(0, SIZE)
    tl.store(out_ptr + at, tl.load(x_ptr + at) * tl.load(y_ptr + at))

install()
x, y = torch.arange(8), torch.arange(8) + 3
kernels = {"added": (added, x + y), "multiplied": (multiplied, x * y)}
for name in sys.argv[1:]:
    kernel, wanted = kernels[name]
    kernel[(1,)](x, y, out := torch.zeros(8, dtype=torch.int64), SIZE=8)
    assert torch.equal(out, wanted), (name, out)
    assert compiled[name]
"""


def run(folder: Path, *kernels: str) -> None:
    program = folder / "program.py"
    program.write_text(PROGRAM)
    environment = os.environ | {"TRITON_INTERPRET": "1", "SLIPSTREAM_KERNEL_CACHE": str(folder / "kernels")}
    done = subprocess.run(
        [sys.executable, str(program), *kernels], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]


def test_kernels_compiled_in_different_processes_run_in_one(tmp_path: Path) -> None:
    run(tmp_path, "added")
    run(tmp_path, "multiplied")
    run(tmp_path, "added", "multiplied")
