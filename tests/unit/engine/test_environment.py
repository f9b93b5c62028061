"""What is set for vLLM on CPU. No vllm is imported here."""

import os

import pytest

from slipstream.config import Ngram
from slipstream.config.resolve import ResolvedSpeculation
from slipstream.engine.launch import environment
from slipstream.engine.launch.environment import (
    cpu_environment,
    restore,
    set_variables,
    with_variables,
)

NGRAM = ResolvedSpeculation("ngram", "", num_draft_tokens=3, ngram=Ngram())
OFF = ResolvedSpeculation(None, "")


@pytest.fixture(autouse=True)
def _machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "_find_tcmalloc", lambda: "libtcmalloc_minimal.so.4")
    monkeypatch.setattr(environment, "_find_libiomp", lambda: "/env/lib/libiomp5.so")
    monkeypatch.setattr(environment, "physical_cores", lambda: [0, 1, 2, 3])
    monkeypatch.setattr(environment, "_num_numa_nodes", lambda: 1)
    monkeypatch.setattr("platform.system", lambda: "Linux")
    monkeypatch.setattr("platform.machine", lambda: "x86_64")


def test_everything_vllm_asks_for_is_set() -> None:
    made = cpu_environment(NGRAM, ranks=2, environ={})
    assert made.variables == {
        "LD_PRELOAD": "libtcmalloc_minimal.so.4:/env/lib/libiomp5.so",
        "VLLM_CPU_OMP_THREADS_BIND": "0,1|2,3",
        "NUMBA_THREADING_LAYER": "workqueue",
    }
    assert not made.missing


def test_what_the_user_has_set_stays() -> None:
    own = {
        "LD_PRELOAD": "/opt/libtcmalloc.so:/opt/other.so",
        "VLLM_CPU_OMP_THREADS_BIND": "3",
        "NUMBA_THREADING_LAYER": "omp",
    }
    made = cpu_environment(NGRAM, ranks=1, environ=own)
    assert made.variables["LD_PRELOAD"] == "/opt/libtcmalloc.so:/opt/other.so:/env/lib/libiomp5.so"
    assert "VLLM_CPU_OMP_THREADS_BIND" not in made.variables
    assert made.variables["NUMBA_THREADING_LAYER"] == "omp"
    assert any("workqueue" in text for text in made.missing)


def test_numba_is_left_alone_where_it_does_not_draft() -> None:
    assert "NUMBA_THREADING_LAYER" not in cpu_environment(OFF, 1, {}).variables


def test_many_cores_are_left_to_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "physical_cores", lambda: list(range(32)))
    assert "VLLM_CPU_OMP_THREADS_BIND" not in cpu_environment(OFF, 1, {}).variables
    # two ranks on one memory node: vLLM's own binding has no place for the second
    assert cpu_environment(OFF, 2, {}).variables["VLLM_CPU_OMP_THREADS_BIND"].count("|") == 1


def test_what_is_missing_is_said_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "_find_tcmalloc", lambda: None)
    monkeypatch.setattr(environment, "_find_libiomp", lambda: None)
    made = cpu_environment(OFF, 1, {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"})
    assert "LD_PRELOAD" not in made.variables
    said = " ".join(made.missing)
    for part in ("apt install libtcmalloc-minimal4", "pip install intel-openmp", "too late for preloading"):
        assert part in said


def test_more_ranks_than_cores() -> None:
    """Left to itself vLLM would not start."""
    made = cpu_environment(OFF, 5, {})
    assert "5 ranks share 4 cores" in made.missing[0]
    assert made.variables["VLLM_CPU_OMP_THREADS_BIND"] == "0|1|2|3|0"


def test_the_environment_is_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEPT", "before")
    monkeypatch.setenv("CHANGED", "before")
    with with_variables({"KEPT": "during", "NEW": "1"}):
        assert (os.environ["KEPT"], os.environ["NEW"]) == ("during", "1")
        set_variables({"FOR_ENGINES": "1", "CHANGED": "ours"})
        os.environ["CHANGED"] = "by another"
        os.environ["ANOTHERS"] = "1"
    assert (os.environ["KEPT"], os.environ["CHANGED"]) == ("before", "by another")
    assert not {"NEW", "FOR_ENGINES"} & os.environ.keys()
    assert os.environ.pop("ANOTHERS") == "1"


def test_a_second_engine_does_not_take_ours_for_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VLLM_CPU_OMP_THREADS_BIND", raising=False)
    set_variables({"VLLM_CPU_OMP_THREADS_BIND": "0,1"})
    set_variables({"VLLM_CPU_OMP_THREADS_BIND": "0"})
    restore()
    assert "VLLM_CPU_OMP_THREADS_BIND" not in os.environ
