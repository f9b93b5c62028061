"""A vLLM compared by its source: of a wheel with a few small modules."""

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from slipstream.engine import patches
from slipstream.engine.contract import CONTRACT, Reliance, Workaround
from slipstream.ops.vllm_source import VllmSource
from slipstream.testing import vllm_contract
from slipstream.testing.vllm_contract import (
    APPLIES,
    CANNOT_BE_APPLIED,
    CHECK,
    compare,
    why_gone,
    why_unmet,
)

SCRIPT = Path(__file__).parents[3] / "scripts" / "check-vllm"
MODULES = {
    "__init__": """
import typing
MODULE_ATTRS = {"LLM": ".entrypoints.llm:LLM"}
if typing.TYPE_CHECKING:
    from vllm.params import Params
""",
    "entrypoints/__init__": "",
    "entrypoints/llm": """
class LLM:
    def generate(self, prompts, *args, use_tqdm=True, **kwargs): ...
""",
    "params": """
from .limits import *
from .limits import LIMIT as MOST
import torch

class Base:
    seed: int

    def __init__(self):
        self.of_base: int = 1

class Params(Base):
    min_p: float = 0.0

    def __init__(self):
        self.first, self.second = 1, 2

    @property
    def greedy(self): ...
""",
    "limits": """
LIMIT = 128
try:
    from vllm.fast import run
except ImportError:
    def run(slowly): ...

options = {"A": 1, "B": 2}
""",
    "fast": "def run(x, *, y): ...",
    "sampler": '''
def sample(logits, k):
    """Return tokens."""
    for row in rows:
        if not row:
            continue
        best = row.max()
        use(best)
    return None
''',
}


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    file = tmp_path / "vllm-9.9.9-py3-none-any.whl"
    with zipfile.ZipFile(file, "w") as archive:
        for name, text in MODULES.items():
            archive.writestr(f"vllm/{name}.py", text)
    return file


@pytest.fixture
def source(wheel: Path) -> VllmSource:
    return VllmSource.of_wheel(wheel)


@pytest.mark.parametrize(
    ("reliance", "problem"),
    [
        (Reliance("vllm:LLM.generate", ("prompts", "args", "use_tqdm", "kwargs")), ""),
        (
            Reliance("vllm:LLM.generate", ("prompts",)),
            "takes (prompts, args, use_tqdm, kwargs), not (prompts)",
        ),
        (Reliance("vllm:LLM.chat"), "is gone"),
        (Reliance("vllm:NoSuchThing"), "is gone"),
        (Reliance("vllm.none:LLM"), "is gone"),
        (Reliance("vllm:Params", has=("min_p", "seed", "greedy")), ""),
        (Reliance("vllm:Params", has=("max_p",)), "has no max_p"),
        (Reliance("vllm:Params", sets=("first", "second", "of_base")), ""),
        (Reliance("vllm:Params", sets=("first", "third")), "does not set third"),
        (Reliance("vllm:Params", ("x",)), "is no function"),
        (Reliance("vllm.params:LIMIT", equals=128), ""),
        (Reliance("vllm.params:MOST", equals=64), "is 128, not 64"),
        (Reliance("vllm.params:torch"), ""),
        (Reliance("vllm.limits:run", ("x", "y")), ""),
        (Reliance("vllm.limits:options", has=("A", "C")), "has no C"),
        (Reliance("vllm:entrypoints.llm.LLM"), ""),
    ],
    ids=str,
)
def test_what_differs_is_said(source: VllmSource, reliance: Reliance, problem: str) -> None:
    assert why_unmet(source, reliance) == problem


@pytest.mark.parametrize(
    ("code", "is_there"),
    [
        ("def sample():\n    for row in rows:\n        ...", True),
        ("for row in rows:\n    if not row:\n        continue", True),
        ("best = row.max()\nuse(best)", True),
        ("use( best )", True),
        ("best = row.max()\nreturn None", False),
        ("for row in rows:\n    best = row.max()", False),
        ("for row in all_rows:\n    ...", False),
        ("def other():\n    ...", False),
    ],
)
def test_code_is_found_where_it_stands(source: VllmSource, code: str, is_there: bool) -> None:
    assert (why_gone(source, "vllm.sampler:sample", code) == "") == is_there


@pytest.fixture
def small_contract(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patches, "PATCHES", [])
    for name, parameters in (("fits", ("logits", "k")), ("fixed", ("logits", "k")), ("other", ("logits",))):

        def make(original: object) -> object:
            return original

        make.__name__ = name
        patches.replaces("vllm.sampler:sample", *parameters)(make)
    monkeypatch.setattr(vllm_contract, "PATCHES", patches.PATCHES)
    monkeypatch.setattr(
        vllm_contract,
        "WORKAROUNDS",
        (
            Workaround("fits", "vllm.sampler:sample", "use(best)", "vllm-project/vllm#1"),
            Workaround("fixed", "vllm.sampler:sample", "use(worst)"),
        ),
    )
    monkeypatch.setattr(
        vllm_contract,
        "all_reliances",
        lambda: iter([("serving", Reliance("vllm:LLM")), ("tests", Reliance("vllm:X"))]),
    )


@pytest.mark.usefixtures("small_contract")
def test_a_comparison_names_features_and_patches(source: VllmSource) -> None:
    found = compare(source)
    assert found.symbols == 3
    assert found.features == ["tests", "patch other"]
    assert {remedy.name: remedy.state for remedy in found.remedies} == {
        "fits": APPLIES, "fixed": CHECK, "other": CANNOT_BE_APPLIED,
    }  # fmt: skip
    assert not found.fits


def test_the_script_reads_a_wheel_and_installs_nothing(wheel: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--wheel", str(wheel), "--json"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1, done.stderr
    found = json.loads(done.stdout)
    assert found["wheel"] == wheel.name
    assert set(CONTRACT) <= set(found["features"])
    assert all(remedy["state"] != APPLIES for remedy in found["remedies"])


def test_the_script_says_that_there_is_no_wheel(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--wheel", str(tmp_path / "none.whl")],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 2
    assert "none.whl to read" in done.stderr


def test_the_script_says_that_a_file_is_no_wheel(tmp_path: Path) -> None:
    file = tmp_path / "broken.whl"
    file.write_text("half a download")
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--wheel", str(file)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2
    assert "broken.whl cannot be read" in done.stderr
