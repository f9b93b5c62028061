"""Quick starts of vLLM's processes in tests: forked from a process that has imported vLLM already.

On CPU vLLM spawns its engine and its workers, and each of them imports vLLM anew, which is nearly all of the
time that an engine of a small model takes to start. Here Python's fork server starts the engine, which forks
its workers, and starts servers. They are processes of their own all the same, with the environment that they
would have if they were spawned.
"""

import gc
import multiprocessing
import os
import runpy
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from multiprocessing import forkserver, get_context
from multiprocessing.context import ForkServerContext, ForkServerProcess

from sharing_a_core.sitecustomize import fork_instead_of_spawning, sleep_instead_of_spinning
from slipstream.config import ResolvedSpeculation
from slipstream.engine.launch import environment

PRELOADED = (
    "vllm.v1.engine.core",
    "vllm.v1.executor.multiproc_executor",
    "vllm.v1.worker.cpu_worker",
    "vllm.model_executor.models.llama",
    "vllm.model_executor.layers.quantization.online.base",
    "vllm.entrypoints.cli.serve",
    "vllm.entrypoints.openai.api_server",
    "vllm.entrypoints.openai.responses.serving",
    "vllm.v1.engine.async_llm",
    "prometheus_fastapi_instrumentator",
    "model_hosting_container_standards.sagemaker",
    "slipstream.cli.serve",
    "slipstream.engine.server.endpoint",
    "slipstream.engine.core.scheduler",
    "slipstream.engine.worker.worker",
)


class PreloadedProcess(ForkServerProcess):
    """vLLM's engine, in the environment of its starter, not the fork server's; its workers are forked."""

    def start(self) -> None:
        self._environment = dict(os.environ)
        super().start()

    def run(self) -> None:
        from vllm.v1.executor import multiproc_executor

        begin(self._environment)
        multiproc_executor.get_mp_context = partial(get_context, "fork")
        super().run()


def begin(variables: Mapping[str, str]) -> None:
    """Take the environment, and leave what was imported before the fork out of garbage collections."""
    os.environ.clear()
    os.environ.update(variables)
    gc.freeze()
    sleep_instead_of_spinning()


class PreloadedContext(ForkServerContext):
    Process = PreloadedProcess


def environment_of_one_rank() -> environment.Environment:
    """Return what Slipstream sets for an engine of one rank, on the cores that this process may use."""
    return environment.cpu_environment(ResolvedSpeculation(None, ""), 1, os.environ)


def preload() -> None:
    """Start the process that others are forked from, with the libraries that Slipstream preloads."""
    forkserver.set_forkserver_preload(list(PRELOADED))
    with environment.with_variables(environment_of_one_rank().variables):
        forkserver.ensure_running()


def preload_engines() -> None:
    """Make the vLLM of this process fork its engines."""
    preload()

    from vllm.v1.engine import utils

    utils.get_mp_context = PreloadedContext
    gc.freeze()


class ForkedServer:
    """A `python -m slipstream serve` with vLLM imported already, in a session of its own, that is waited for
    and stopped as a `subprocess.Popen` is."""

    def __init__(self, command: Sequence[str], log: str, variables: Mapping[str, str]) -> None:
        preload()
        arguments = command[command.index("slipstream") :]
        self._process = ForkServerProcess(target=serve, args=(arguments, log, variables))
        self._process.start()
        self.args = command

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)


def serve(arguments: Sequence[str], log: str, variables: Mapping[str, str]) -> None:
    """Be that server."""
    os.setsid()
    file = os.open(log, os.O_WRONLY | os.O_APPEND)
    os.dup2(file, sys.stdout.fileno())
    os.dup2(file, sys.stderr.fileno())
    begin(variables)
    multiprocessing.get_context = fork_instead_of_spawning
    sys.argv = [*arguments]
    runpy.run_module("slipstream", run_name="__main__", alter_sys=True)
