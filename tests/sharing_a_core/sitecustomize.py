"""On PYTHONPATH, this lets vLLM's processes share a core, and start quickly if that is asked for.

While an engine waits for its worker it sleeps, where it would spin and take half of the core that both are
bound to. With FORK_VARIABLE set, vLLM forks its processes, as it does on GPUs, where on CPU it would spawn
them: a spawned process imports vLLM anew, which is most of the time that a small server takes to start. And
the servers that a command starts are forked from one process that has imported vLLM (`preloaded`).
"""

import multiprocessing
import os
import subprocess
import time
from typing import Any

FORK_VARIABLE = "TESTS_FORK_ENGINES"

_get_context = multiprocessing.get_context
_Popen = subprocess.Popen


def fork_instead_of_spawning(method: str | None = None) -> Any:
    return _get_context("fork" if method == "spawn" else method)


def sleep_instead_of_spinning() -> None:
    os.sched_yield = lambda: time.sleep(1e-4)


class PopenWithForkedServers(subprocess.Popen[Any]):
    """Starts `python -m slipstream serve` by forking, if the variable is set for it, and all else as ever."""

    def __new__(cls, args: Any, *further: Any, **options: Any) -> Any:
        environment = options.get("env") or os.environ
        if "slipstream serve" not in " ".join(map(str, args)) or FORK_VARIABLE not in environment:
            return _Popen(args, *further, **options)
        from preloaded import ForkedServer

        return ForkedServer(args, options["stdout"].name, dict(environment))


def fork_servers() -> None:
    subprocess.Popen = PopenWithForkedServers  # type: ignore[misc]


if __name__ == "sitecustomize":
    sleep_instead_of_spinning()
    if os.environ.get(FORK_VARIABLE):
        multiprocessing.get_context = fork_instead_of_spawning
        fork_servers()
