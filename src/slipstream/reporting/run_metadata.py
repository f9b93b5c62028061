"""Where and with what a figure was measured."""

import os
import platform
import shlex
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

from slipstream.ops.host import GIB, installed_vllm, look_at_host
from slipstream.version import __version__

RELEVANT = ("VLLM_", "OMP_", "NUMBA_", "CUDA_VISIBLE_DEVICES")
SECRET = ("KEY", "TOKEN", "SECRET", "PASSWORD")


def about_this_run() -> dict[str, Any]:
    host = look_at_host()
    return {
        "command": _command(*sys.argv),
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "slipstream": __version__,
        "git": _git_state(),
        "vllm": installed_vllm()[0],
        "torch": _version("torch"),
        "python": platform.python_version(),
        "platform": host.platform,
        "processor": _processor(),
        "cores": psutil.cpu_count(logical=False) or os.cpu_count(),
        "memory_gib": round((host.total_memory or 0) / GIB, 1),
        "gpus": _gpus() if host.platform == "cuda" else [],
        "environment": {
            name: value for name, value in sorted(os.environ.items())
            if name.startswith(RELEVANT) and not any(word in name for word in SECRET)
        },
    }  # fmt: skip


def _command(program: str, *arguments: str) -> str:
    """Return the command as it was typed, without keys."""
    file = Path(program).resolve()
    script = file.suffix == ".py" and file.name != "__main__.py"
    shown = ["python", f"{file.parent.name}/{file.name}"] if script else ["slipstream"]
    hide = False
    for argument in arguments:
        name, equals, _ = argument.partition("=")
        secret = name.startswith("--") and any(word in name.upper() for word in ("API-KEY", "API_KEY"))
        shown.append("..." if hide else f"{name}=..." if secret and equals else argument)
        hide = secret and not equals
    return shlex.join(shown)


def _git_state() -> str | None:
    """Return the commit of the Slipstream that runs, `-dirty` if its files differ from it; None if not from a
    clone."""
    folder = Path(__file__).parent
    try:
        described = subprocess.run(
            ["git", "-C", str(folder), "describe", "--always", "--dirty", "--abbrev=12"],
            capture_output=True, text=True, check=True, timeout=10,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
    return described.stdout.strip()


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown"
    )


def _gpus() -> list[str]:
    try:
        output = subprocess.run(
            ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"],
            capture_output=True, text=True, check=True, timeout=10,
        ).stdout  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return []
    return output.splitlines()
