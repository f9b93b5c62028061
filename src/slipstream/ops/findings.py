"""What a check looks at, and what it finds.

A fail is something that would crash, or would quietly not do what was asked; a warning costs speed or
surprises.
"""

from dataclasses import dataclass
from enum import StrEnum

from slipstream.checkpoints import Checkpoint
from slipstream.config import Deployment, ResolvedSpeculation
from slipstream.ops.host import Host


class Status(StrEnum):
    PASS = "pass"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True)
class Finding:
    check: str
    status: Status
    reason: str
    fix: str = ""


@dataclass(frozen=True)
class Setup:
    """All that the checks look at."""

    deployment: Deployment
    choice: ResolvedSpeculation
    host: Host
    target: Checkpoint | None

    @property
    def drafter(self) -> Checkpoint | None:
        return self.choice.drafter_checkpoint

    @property
    def runner(self) -> str:
        return self.host.runner(self.choice)


def describe(checkpoint: Checkpoint) -> str:
    size = checkpoint.num_parameters
    parts = [", ".join(checkpoint.architectures) or checkpoint.config.get("model_type", "unknown kind")]
    if size:
        parts.append(f"{size / 1e9:.2f}B parameters" if size >= 1e8 else f"{size / 1e6:.1f}M parameters")
    return f"{checkpoint.name} ({', '.join(parts)})"
