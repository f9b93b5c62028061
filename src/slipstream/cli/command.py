"""What `serve` and `doctor` both read from their command line."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from slipstream.config import Deployment, SpeculationConfig, read_speculation
from slipstream.config.command_line import split_flags
from slipstream.errors import ConfigError


@dataclass(frozen=True)
class Command:
    deployment: Deployment
    speculation: SpeculationConfig
    notes: list[str]
    vllm_flags: list[str]


def read_command(
    flags: Sequence[str], ask_vllm: Callable[[Sequence[str]], Deployment | None] = lambda flags: None
) -> Command:
    """Read `MODEL [flags of ours and of vllm serve]`. Only vLLM's own parser can tell a model that comes
    later from the value of a flag; it takes seconds to import, so it is asked last."""
    arguments, vllm_flags = split_flags(flags)
    speculation, notes = read_speculation(arguments)
    deployment = Deployment.from_flags(vllm_flags) or ask_vllm(vllm_flags)
    if deployment is None:
        raise ConfigError("no model is given; write MODEL before the options")
    return Command(deployment, speculation, notes, vllm_flags)
