"""Arms: the configurations that a benchmark compares."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from slipstream.config import read_speculation
from slipstream.config.command_line import split_flags
from slipstream.errors import ConfigError

BARE = "bare"
NAME = re.compile(r"[A-Za-z0-9][\w.+-]*")
KEYS = ("name", "speculate", "environment", "flags")


@dataclass(frozen=True)
class Arm:
    name: str
    speculate: str = "off"
    """What `--speculate` takes: auto, off, fixed:K, a file, or JSON."""
    environment: Mapping[str, str] = field(default_factory=dict)
    flags: tuple[str, ...] = ()
    """Further flags of `slipstream serve` for this arm alone."""

    def __post_init__(self) -> None:
        if not NAME.fullmatch(self.name):
            raise ConfigError(f"arm name {self.name!r}: use letters, digits, and . _ + -")
        refuse_speculation(self.flags)
        read_speculation({"speculate": self.speculate})  # a mistake is found now, not when the server starts

    def as_dict(self) -> dict[str, Any]:
        config, _ = read_speculation({"speculate": self.speculate})  # a file may say something else tomorrow
        return {
            "name": self.name,
            "speculate": self.speculate,
            "config": config.model_dump(exclude_defaults=True),
            "environment": dict(self.environment),
            "flags": list(self.flags),
        }


def refuse_speculation(flags: Sequence[str]) -> None:
    """Refuse speculation among the flags of all arms: it would turn bare vLLM into something else."""
    given, _ = split_flags(flags)
    if given:
        name = next(iter(given)).replace("_", "-")
        example = json.dumps({"drafter": {"model": "DRAFTER"}})
        raise ConfigError(
            f"--{name} is not for all servers: one is bare vLLM. For bench write it as an arm, --arm "
            f"NAME=SPECULATE; for verify as --speculate SPECULATE. With a drafter that is '{example}'"
        )


def read_arms(texts: Iterable[str], file: Path | None) -> list[Arm]:
    """Return arms of `--arm` and `--arms`. The first is what the others are compared with: bare vLLM, unless
    an arm was named first that does not speculate."""
    arms = [_parse(text) for text in texts] + (_read_file(file) if file else [])
    if not arms:
        arms = [Arm("auto", "auto")]
    if arms[0].speculate != "off":
        arms = [a for a in arms if a.name == BARE] + [a for a in arms if a.name != BARE]
    if arms[0].speculate != "off":
        arms = [Arm(BARE), *arms]
    names = [arm.name for arm in arms]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigError(
            f"arm {twice[0]!r} is given twice; name them apart: --arm NAME={arms[-1].speculate}"
        )
    return arms


def _parse(text: str) -> Arm:
    """Read `bare`, `NAME=SPECULATE`, or only what `--speculate` takes."""
    if text == BARE:
        return Arm(BARE)
    name, equals, speculate = text.partition("=")
    if equals and NAME.fullmatch(name):
        return Arm(name, speculate)
    return Arm(Path(text).stem if Path(text).is_file() else re.sub(r"[^\w.+-]+", "-", text).strip("-"), text)


def _read_file(file: Path) -> list[Arm]:
    """Return a YAML or JSON list of mappings with the fields of `Arm`; `speculate` may be a mapping
    itself."""
    try:
        entries = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise ConfigError(f"--arms {file}: {error}") from None
    if not isinstance(entries, list) or not all(isinstance(e, dict) and "name" in e for e in entries):
        raise ConfigError(f"--arms {file}: write a list of arms, each with name and speculate")
    arms = []
    for entry in entries:
        if unknown := sorted(entry.keys() - set(KEYS)):
            raise ConfigError(f"--arms {file}: unknown key {unknown[0]!r}; known are {', '.join(KEYS)}")
        speculate = entry.get("speculate", "off")
        if speculate is False:  # YAML takes a bare `off` for it
            speculate = "off"
        arms.append(
            Arm(
                name=str(entry["name"]),
                speculate=speculate if isinstance(speculate, str) else json.dumps(speculate),
                environment={str(k): str(v) for k, v in (entry.get("environment") or {}).items()},
                flags=tuple(str(flag) for flag in entry.get("flags") or ()),
            )
        )
    return arms
