"""Quick starts of vLLM's processes in tests: forked from a process that has imported vLLM already.

On CPU vLLM spawns its engine and its workers, and each of them imports vLLM anew, which is nearly all of the
time that an engine of a small model takes to start. Here Python's fork server starts the engine, which forks
its workers. They are processes of their own all the same, with the environment that they would have if they
were spawned.
"""

import os
from functools import partial
from multiprocessing import forkserver, get_context
from multiprocessing.context import ForkServerContext, ForkServerProcess

from sharing_a_core.sitecustomize import sleep_instead_of_spinning
from slipstream.config import Choice
from slipstream.engine import environment

PRELOADED = (
    "vllm.v1.engine.core",
    "vllm.v1.executor.multiproc_executor",
    "vllm.v1.worker.cpu_worker",
    "vllm.model_executor.models.llama",
)


class PreloadedProcess(ForkServerProcess):
    """vLLM's engine, in the environment of its starter, not the fork server's; its workers are forked."""

    def start(self) -> None:
        self._environment = dict(os.environ)
        super().start()

    def run(self) -> None:
        from vllm.v1.executor import multiproc_executor

        os.environ.clear()
        os.environ.update(self._environment)
        sleep_instead_of_spinning()
        multiproc_executor.get_mp_context = partial(get_context, "fork")
        super().run()


class PreloadedContext(ForkServerContext):
    Process = PreloadedProcess


def environment_of_one_rank() -> environment.Environment:
    """Return what Slipstream sets for an engine of one rank, on the cores that this process may use."""
    return environment.cpu_environment(Choice(None, ""), 1, os.environ)


def preload_engines() -> None:
    """Start the process that engines are forked from, with the libraries that Slipstream preloads, and make
    the vLLM of this process use it."""
    forkserver.set_forkserver_preload(list(PRELOADED))
    with environment.applied(environment_of_one_rank()):
        forkserver.ensure_running()

    from vllm.v1.engine import utils

    utils.get_mp_context = PreloadedContext
