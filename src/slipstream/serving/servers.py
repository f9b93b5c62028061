"""The arms of a benchmark as real servers on loopback, all resident."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slipstream.engine.launch.arguments import STEPS_VARIABLE, TIMED_CPU_WORKER
from slipstream.engine.plugin import SCHEDULER_STEPS_VARIABLE
from slipstream.errors import SlipstreamError
from slipstream.ops.host import GIB, Host, look_at_host
from slipstream.serving.arms import Arm
from slipstream.serving.steps import StepFile

START_SECONDS = 900
STOP_SECONDS = 20


class ServerError(SlipstreamError):
    """A server of the benchmark did not start, or died."""


@dataclass
class Server:
    arm: Arm
    port: int
    log: Path
    steps: StepFile
    process: "subprocess.Popen[bytes]"

    @property
    def group(self) -> int:
        """Return the process group of all its processes: it was started as the leader of one."""
        return self.process.pid

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        request = urllib.request.Request(
            self.url + path, json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=600) as response:
            answer: dict[str, Any] = json.load(response)
        return answer

    def is_healthy(self) -> bool:
        if self.process.poll() is not None:
            raise ServerError(
                f"the server of arm {self.arm.name} stopped; its log ends:\n{self._end_of_log()}"
            )
        try:
            with urllib.request.urlopen(self.url + "/health", timeout=10):
                return True
        except (urllib.error.URLError, OSError):
            return False

    def require_answers(self, errors: Sequence[str]) -> None:
        """Raise if it died, or if no request was answered; `errors` has an empty text for each that was."""
        failed = [error for error in errors if error]
        if failed:
            self.is_healthy()
        if len(failed) == len(errors):
            raise ServerError(f"arm {self.arm.name}: every request failed: {failed[0][-300:]}")

    def _end_of_log(self) -> str:
        lines = self.log.read_text(errors="replace").splitlines()
        return "\n".join((_errors(lines) or lines)[-8:]) + f"\n(all of it: {self.log})"


def _errors(lines: Sequence[str]) -> list[str]:
    """Return the lines that name an error, with the indented ones that go on after them."""
    errors: list[str] = []
    belongs = False
    for line in lines:
        belongs = "rror" in line or (belongs and line.startswith("  "))
        errors += [line] * belongs
    return errors


@contextmanager
def running(
    model: str,
    arms: Sequence[Arm],
    flags: Sequence[str],
    folder: Path,
    tell: Callable[[str], None] = lambda text: None,
    timed: bool = True,
) -> Iterator[dict[str, Server]]:
    """Start a server per arm, and stop them in the end. They start one after the other: each measures the
    machine when it starts. `timed` servers write down what each step took."""
    folder.mkdir(parents=True, exist_ok=True)
    host = look_at_host()
    variables, shared_flags = _share_of_machine(host, len(arms), flags)
    timer = None
    if timed:
        in_worker = host.platform == "cpu" and not host.prefers_v2
        timer = STEPS_VARIABLE if in_worker else SCHEDULER_STEPS_VARIABLE
    servers: dict[str, Server] = {}
    with _reaper() as watch:
        try:
            for arm in arms:
                tell(f"starting {arm.name}")
                server = _start(model, arm, [*flags, *shared_flags], variables, folder, timer)
                watch(server.group)
                servers[arm.name] = server
                _wait_for(server)
            yield servers
        finally:
            for server in servers.values():
                with contextlib.suppress(ProcessLookupError):
                    server.process.send_signal(signal.SIGINT)
            for server in servers.values():
                _stop(server.process)


# Reads process groups, and kills them when its standard input ends: that is, when we end, however we end. The
# servers' own ways of noticing do not work while they are stopped (`turns`).
REAPER = """
import os, signal, sys
for group in [int(line) for line in sys.stdin]:
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        pass
"""


@contextmanager
def _reaper() -> Iterator[Callable[[int], None]]:
    """Yield a function that takes a process group; none of them will outlive this process."""
    reaper = subprocess.Popen(
        [sys.executable, "-c", REAPER], stdin=subprocess.PIPE, text=True, start_new_session=True
    )
    assert reaper.stdin is not None
    pipe = reaper.stdin

    def watch(group: int) -> None:
        pipe.write(f"{group}\n")
        pipe.flush()

    try:
        yield watch
    finally:
        pipe.close()
        reaper.wait()


def _share_of_machine(host: Host, num_arms: int, flags: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Divide the memory among the arms: vLLM takes most of it for its KV cache unless told."""
    given = {flag.partition("=")[0].replace("_", "-") for flag in flags}
    if "--kv-cache-memory-bytes" in given or num_arms == 1:
        return {}, []
    if host.platform == "cuda":
        if "--gpu-memory-utilization" in given:
            return {}, []
        return {}, ["--gpu-memory-utilization", f"{0.9 / num_arms:.3f}"]
    if "VLLM_CPU_KVCACHE_SPACE" in os.environ:
        return {}, []
    share = int((host.available_memory or 0) * 0.3 / num_arms / GIB)
    return {"VLLM_CPU_KVCACHE_SPACE": str(min(max(share, 1), 8))}, []


def free_port() -> int:
    """Return a port on loopback that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _start(
    model: str,
    arm: Arm,
    flags: Sequence[str],
    variables: Mapping[str, str],
    folder: Path,
    timer: str | None,
) -> Server:
    """Start the server of an arm. `timer` is the variable by which its worker or its scheduler is told to
    write down what each step took."""
    port = free_port()
    steps = folder / f"{arm.name}.steps.jsonl"
    steps.unlink(missing_ok=True)
    # -P: as for the `slipstream` command, a `copy.py` in the current folder is not Python's.
    command = [sys.executable, "-P", "-m", "slipstream", "serve", model, "--speculate", arm.speculate]
    command += [*flags, *arm.flags, "--port", str(port)]
    if timer == STEPS_VARIABLE:
        command += ["--worker-cls", TIMED_CPU_WORKER]
    environment = {**os.environ, **variables, **arm.environment}
    if timer:
        environment[timer] = str(steps.resolve())
    log = folder / f"{arm.name}.log"
    with log.open("w") as file:
        process = subprocess.Popen(
            command,
            stdout=file,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,  # Ctrl-C is for us: we stop them when the round is written
        )
    return Server(arm, port, log, StepFile(steps), process)


def _wait_for(server: Server) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if server.is_healthy():
            return
        time.sleep(0.5)
    raise ServerError(f"arm {server.arm.name} is not ready after {START_SECONDS} s: {server.log}")


def _stop(process: "subprocess.Popen[bytes]") -> None:
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(STOP_SECONDS)
    with contextlib.suppress(ProcessLookupError):  # what is left of its group, engine and workers included
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
