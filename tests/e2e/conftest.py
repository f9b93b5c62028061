from collections.abc import Iterator

import pytest

from e2e.server import QUICK, Server, running_server
from sharing_a_core.sitecustomize import fork_servers


@pytest.fixture(scope="session", autouse=True)
def forked_servers() -> None:
    """Fork the servers that have `QUICK` in their environment."""
    fork_servers()


@pytest.fixture(scope="session")
def server(smollm2: str, drafter: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Started by the command line of older guides: only the program's and the models' names are changed."""
    classic = (
        f"--host 127.0.0.1 --model {smollm2} --seed 42 -tp 1 --speculative_model {drafter} "
        "--use-v2-block-manager --num_speculative_tokens 3 --gpu_memory_utilization 0.8"
    )
    with running_server(tmp_path_factory.mktemp("server"), *classic.split()) as started:
        yield started


@pytest.fixture(scope="session")
def auto_server(smollm2: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server in `auto` that watches itself. In float32, so that its greedy text is bare vLLM's. It writes
    few requests again, as the servers that it is compared with share its core."""
    flags = (
        smollm2, "--dtype", "float32", "--enforce-eager", "--max-model-len", "1024", "--shadow", "0.1"
    )  # fmt: skip
    with running_server(tmp_path_factory.mktemp("auto"), *flags, environment=QUICK) as started:
        yield started
