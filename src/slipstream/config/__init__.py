"""What the user asks for: one definition of every speculation option, and the forms it is read from."""

from slipstream.config.deployment import Deployment
from slipstream.config.parse import SPECULATION_ARGUMENTS, VLLM_FORM, read_speculation
from slipstream.config.resolve import ResolvedSpeculation, choose
from slipstream.config.speculation import Drafter, Ngram, SpeculationConfig, Suffix

__all__ = [
    "SPECULATION_ARGUMENTS",
    "VLLM_FORM",
    "Deployment",
    "Drafter",
    "Ngram",
    "ResolvedSpeculation",
    "SpeculationConfig",
    "Suffix",
    "choose",
    "read_speculation",
]
