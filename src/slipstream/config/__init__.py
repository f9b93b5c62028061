"""What the user asks for: one definition of every speculation option, and the forms it is read from."""

from slipstream.config.choice import Choice, choose
from slipstream.config.deployment import Deployment
from slipstream.config.forms import SPECULATION_ARGUMENTS, read_speculation
from slipstream.config.speculation import Drafter, Ngram, SpeculationConfig, Suffix

__all__ = [
    "SPECULATION_ARGUMENTS",
    "Choice",
    "Deployment",
    "Drafter",
    "Ngram",
    "SpeculationConfig",
    "Suffix",
    "choose",
    "read_speculation",
]
