"""What all tests share: how they are spread over the cores, and the models, built once and cached outside
the clone."""

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling

from preloaded import preload_engines
from slipstream.testing import models

HERE = Path(__file__).parent
MAX_WORKERS = 2  # each may hold four servers of 3 GiB
SHARED_SERVERS = {
    "tests/e2e/test_examples.py": "server",
    "tests/e2e/test_server.py": "server",
    "tests/e2e/test_doc_blocks.py": "auto_server",
    "tests/e2e/test_plan.py": "auto_server",
    "tests/e2e/test_verify.py": "auto_server",
}
"""Files whose tests share a server, by the name of its fixture."""
LONGEST_FIRST = (
    "tests/e2e/test_plan.py",
    "tests/e2e/test_verify.py",
    "tests/engine/test_v2_composition.py",
    "tests/engine/test_lossless.py",
    "tests/e2e/test_training.py",
    "tests/engine/test_grammar_drafts.py",
    "tests/e2e/test_bench.py",
    "tests/engine/test_composition.py",
    "tests/e2e/test_examples.py",
    "tests/e2e/test_server.py",
    "tests/e2e/test_plain_vllm.py",
    "tests/engine/test_sampled_distribution.py",
    "tests/engine/test_v2_runner.py",
    "tests/engine/test_v2_kernels.py",
    "tests/engine/test_plain_vllm.py",
    "tests/engine/test_drafter_cache.py",
    "tests/engine/test_contract.py",
)
"""Files that take minutes, so that no worker is left alone with one of them in the end."""

# Nothing that depends on chance or on the machine's speed. To search with fresh examples:
# pytest --hypothesis-profile=search
settings.register_profile("search", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("repeatable", settings.get_profile("search"), derandomize=True, database=None)
settings.load_profile("repeatable")


def pytest_xdist_auto_num_workers() -> int:
    """Return the number of workers for `pytest -n auto`: one a core that this process may use."""
    return min(len(os.sched_getaffinity(0)), MAX_WORKERS)


def pytest_configure() -> None:
    """Bind a pytest-xdist worker, and all that it starts, to its share of the cores."""
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    if worker is None:
        return
    cores, workers = sorted(os.sched_getaffinity(0)), int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
    share = len(cores) // workers
    first = int(worker.removeprefix("gw")) % workers * share
    os.sched_setaffinity(0, cores[first : first + share] or cores)


class ByFile(LoadScopeScheduling):
    """Gives the tests of a file to one worker, because they share engines; files that share a server too."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return SHARED_SERVERS.get(file, file)

    def _reschedule(self, node: Any) -> None:
        """Give a worker its next file when its last test begins; xdist does so two tests before."""
        if not self.workqueue or self._pending_of(self.assigned_work[node]) < 2:
            super()._reschedule(node)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByFile:
    return ByFile(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that start real vLLM, and begin with the files that take longest."""
    for item in items:
        if item.path.relative_to(HERE).parts[0] in ("engine", "e2e"):
            item.add_marker(pytest.mark.engine)
    places = {HERE.parent / file: place for place, file in enumerate(LONGEST_FIRST)}
    items.sort(key=lambda item: places.get(item.path, len(places)))


@pytest.fixture(scope="session")
def quick_starts() -> None:
    """Let the engines of this process start without importing vLLM in each of theirs."""
    preload_engines()


@pytest.fixture(scope="session")
def smollm2() -> str:
    return str(models.smollm2())


@pytest.fixture(scope="session")
def drafter() -> str:
    return str(models.drafter())


@pytest.fixture(scope="session")
def padded_drafter() -> str:
    return str(models.padded_drafter())


@pytest.fixture(scope="session")
def tiny_llama() -> str:
    return str(models.tiny_llama())


@pytest.fixture(scope="session")
def other_tokenizer() -> str:
    return str(models.other_tokenizer())


@pytest.fixture(scope="session")
def medusa_heads() -> str:
    return str(models.medusa_heads())


@pytest.fixture(scope="session")
def eagle_head() -> str:
    return str(models.eagle_head())
