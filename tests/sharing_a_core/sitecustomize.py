"""On PYTHONPATH, this lets vLLM's processes share a core, and start quickly if that is asked for.

While an engine waits for its worker it sleeps, where it would spin and take half of the core that both are
bound to. With FORK_VARIABLE set, vLLM forks its processes, as it does on GPUs, where on CPU it would spawn
them: a spawned process imports vLLM anew, which is most of the time that a small server takes to start.
"""

import multiprocessing
import os
import time
from typing import Any

FORK_VARIABLE = "TESTS_FORK_ENGINES"

_get_context = multiprocessing.get_context


def fork_instead_of_spawning(method: str | None = None) -> Any:
    return _get_context("fork" if method == "spawn" else method)


def sleep_instead_of_spinning() -> None:
    os.sched_yield = lambda: time.sleep(1e-4)


if __name__ == "sitecustomize":
    sleep_instead_of_spinning()
    if os.environ.get(FORK_VARIABLE):
        multiprocessing.get_context = fork_instead_of_spawning
