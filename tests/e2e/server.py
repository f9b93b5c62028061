"""A real `slipstream serve` on loopback, for as long as a test module needs it."""

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from preloaded import environment_of_one_rank
from sharing_a_core.sitecustomize import FORK_VARIABLE

TESTS = Path(__file__).parents[1]
START_SECONDS = 600
# vLLM's settings for a small machine: no compilation, a small KV cache; and for tests that have one core.
SMALL = {
    "VLLM_CPU_CI_ENV": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "PYTHONPATH": f"{TESTS / 'sharing_a_core'}:{TESTS}",
}
# And its processes are forked, with the libraries preloaded that Slipstream gives to those that are spawned.
QUICK = {
    **SMALL,
    FORK_VARIABLE: "1",
    "LD_PRELOAD": environment_of_one_rank().variables.get("LD_PRELOAD", ""),
}


@dataclass(frozen=True)
class Server:
    port: int
    log: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def get(self, path: str) -> str:
        with urllib.request.urlopen(self.url + path, timeout=10) as response:
            return str(response.read().decode())


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


SLIPSTREAM = ("-m", "slipstream", "serve")
PLAIN_VLLM = (str(TESTS / "e2e" / "vllm_command.py"), "serve")


@contextmanager
def running_server(
    folder: Path, *flags: str, environment: Mapping[str, str] = SMALL, program: Sequence[str] = SLIPSTREAM
) -> Iterator[Server]:
    """Start `slipstream serve` with `flags`, wait until it is healthy, and stop it in the end."""
    server = Server(free_port(), folder / "server.log")
    command = [sys.executable, *program, *flags, "--port", str(server.port)]
    environ = {**os.environ, **environment, "COLUMNS": "200"}
    with server.log.open("w") as log:
        process = subprocess.Popen(
            command, stdout=log, stderr=subprocess.STDOUT, env=environ, start_new_session=True
        )
        try:
            _wait_until_healthy(server, process)
            yield server
        finally:
            _stop(process)


def _stop(process: "subprocess.Popen[bytes]") -> None:
    process.send_signal(signal.SIGINT)
    try:
        process.wait(30)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _wait_until_healthy(server: Server, process: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise AssertionError(f"the server stopped:\n{server.log.read_text()[-3000:]}")
        try:
            server.get("/health")
            return
        except (urllib.error.URLError, OSError):
            time.sleep(0.5)
    raise AssertionError(f"no answer within {START_SECONDS} s:\n{server.log.read_text()[-3000:]}")
