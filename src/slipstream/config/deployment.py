"""The part of a deployment that speculation has to agree with: the target and how it is run.

Read from keyword arguments or from a command line without importing vLLM, so that the checks come
first. Flags that are not looked at here are vLLM's business.
"""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Self

import yaml

SHORT_FLAGS = {
    "-tp": "tensor_parallel_size",
    "-pp": "pipeline_parallel_size",
    "-dp": "data_parallel_size",
}
SWITCHES = ("async_scheduling", "enable_dbo", "enable_lora", "enable_sleep_mode")


@dataclass(frozen=True)
class Deployment:
    """How the target is run. None, or the default, stands for what vLLM would do by itself."""

    model: str
    revision: str | None = None
    tokenizer: str | None = None
    dtype: str = "auto"
    quantization: str | None = None
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    data_parallel_size: int = 1
    prefill_context_parallel_size: int = 1
    distributed_executor_backend: str | None = None
    max_model_len: int | None = None
    gpu_memory_utilization: float = 0.92
    kv_cache_memory_bytes: int | None = None
    runner: str = "auto"
    convert: str = "auto"
    model_impl: str = "auto"
    hf_token: str | None = None
    generation_config: str = "auto"
    logits_processors: str | None = None
    worker_cls: str = "auto"
    scheduler_cls: str | None = None
    additional_config: Any = None
    async_scheduling: bool = False
    scheduling_policy: str = "fcfs"
    enable_dbo: bool = False
    enable_lora: bool = False
    enable_sleep_mode: bool = False
    kv_transfer_config: Any = None
    watermark_config: Any = None
    platform: str = ""
    """What the installed vLLM is built for: cpu, cuda or another; empty if that is not known."""
    v2: bool = False
    """vLLM takes its V2 model runner, with asynchronous scheduling, where nothing asks for V1."""

    @classmethod
    def from_arguments(cls, model: str, arguments: Mapping[str, Any]) -> Self:
        """Make it from vLLM's keyword arguments, or flags as text; what is not understood is left to vLLM."""
        known: dict[str, Any] = {}
        for field in fields(cls):
            value = arguments.get(field.name)
            if field.name == "model" or not value:
                continue
            if field.name == "additional_config":
                value = _json_object(value)
            if "int" in str(field.type):
                value = _whole_number(str(value))
            elif "float" in str(field.type):
                value = _fraction(str(value))
            elif "str" in str(field.type):
                value = str(value).removeprefix("torch.")
            if value is not None:
                known[field.name] = value
        return cls(model, **known)

    @classmethod
    def from_flags(cls, flags: Sequence[str]) -> Self | None:
        """Make it from the arguments of `vllm serve`; None if they do not show the model at first sight."""
        arguments: dict[str, Any] = {}
        for position, flag in enumerate(flags):
            name, _, value = flag.partition("=")
            key = SHORT_FLAGS.get(name, name[2:].replace("-", "_") if name.startswith("--") else "")
            if not key:
                continue
            if key in SWITCHES:
                arguments[key] = True
            elif value or position + 1 < len(flags):
                arguments[key] = value or flags[position + 1]
        arguments = read_config_file(flags) | arguments
        model = flags[0] if flags and not flags[0].startswith("-") else arguments.get("model")
        return cls.from_arguments(model, arguments) if model else None


def read_config_file(flags: Sequence[str]) -> dict[str, Any]:
    """Return the options in vLLM's own --config file; if it cannot be read, vLLM will say so better."""
    path = ""
    for position, flag in enumerate(flags):
        name, _, value = flag.partition("=")
        if name == "--config":
            path = value or next(iter(flags[position + 1 :]), "")
    if not path:
        return {}
    try:
        content = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError):
        return {}
    items = content.items() if isinstance(content, dict) else ()
    return {str(key).replace("-", "_"): value for key, value in items}


def opaque_reason(name: str, deployment: Deployment) -> str:
    """Return why vLLM may be able to load a model though its files cannot be read here; empty if they can."""
    if ":" in name or name.endswith(".gguf"):
        return "an address or a GGUF file"
    folder = Path(name).expanduser()
    if folder.is_dir():
        mistral = (folder / "params.json").exists() and not (folder / "config.json").exists()
        return "in Mistral's format" if mistral else ""
    if deployment.hf_token:
        return "it needs the hf_token"
    if os.environ.get("VLLM_USE_MODELSCOPE", "").lower() in ("1", "true"):
        return "it comes from ModelScope"
    return ""


def _json_object(value: Any) -> Any:
    """Read one of vLLM's JSON flags; what is no object is left to vLLM to complain of."""
    try:
        return json.loads(value) if isinstance(value, str) else value
    except ValueError:
        return None


def _fraction(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _whole_number(text: str) -> int | None:
    """Read a number as vLLM does: 2k is 2000, 2K is 2048; auto, -1 and the like are None."""
    units = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
    number, unit = (text[:-1], units[text[-1]]) if text[-1:] in units else (text, 1)
    try:
        value = int(float(number) * unit)
    except ValueError:
        return None
    return value if value > 0 else None
