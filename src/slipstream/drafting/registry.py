"""The free proposers by name: ours, and other people's.

Theirs come from the entry-point group `slipstream.proposers`, or by the dotted path of the class.
"""

import logging
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any

from slipstream.drafting.base import Proposer, RequestInfo
from slipstream.errors import ConfigError

GROUP = "slipstream.proposers"
LONG = 32  # tokens that are repeated in the text that a proposer is tried on, for any shortest match

logger = logging.getLogger("slipstream")


def make_proposer(name: str, options: dict[str, Any]) -> Proposer:
    """Return the proposer of this name, made with these options."""
    make = _ours().get(name) or _installed(name)
    try:
        proposer = make(**options)
    except Exception as error:
        raise ConfigError(f"speculate: {name} cannot be made of these options: {error}") from error
    if not isinstance(proposer, Proposer) or not hasattr(proposer, "name"):
        raise ConfigError(f"speculate.plugins: {name!r} makes no slipstream.drafting.Proposer with a name")
    _ask_once(proposer)
    return proposer


def _ask_once(proposer: Proposer) -> None:
    """Use the proposer once, so that the first request does not wait for numba to compile."""
    try:
        proposer.start(RequestInfo("", num_prompt_tokens=1))
        text = list(range(LONG))
        proposer.observe("", [*text, *text[:-1]])
        proposer.propose({"": 1})
        proposer.propose_after("", [LONG - 1], 1)
        proposer.observe("", [LONG])
        proposer.propose({"": 1})
        proposer.forget("")
    except Exception:
        logger.exception("%s: fails on a short text", proposer.name)


def installed_names() -> list[str]:
    """Return other people's proposers in this environment."""
    return sorted({entry.name for entry in entry_points(group=GROUP)})


def _installed(name: str) -> Callable[..., Proposer]:
    module, _, attribute = name.rpartition(".")
    if module:
        try:
            cls: Callable[..., Proposer] = getattr(import_module(module), attribute)
        except (ImportError, AttributeError) as error:
            raise ConfigError(f"speculate.plugins: {name!r} cannot be imported: {error}") from error
        return cls
    found = [entry for entry in entry_points(group=GROUP) if entry.name == name]
    if not found:
        known = ", ".join([*_ours(), *installed_names()])
        raise ConfigError(f"speculate.plugins: no proposer is called {name!r}; known are {known}")
    try:
        make: Callable[..., Proposer] = found[0].load()
    except Exception as error:
        raise ConfigError(f"speculate.plugins: {name!r} cannot be imported: {error}") from error
    return make


def _ours() -> dict[str, Callable[..., Proposer]]:
    # numba is imported here, so that reading a configuration stays quick
    from slipstream.drafting.ngram import NgramProposer
    from slipstream.drafting.suffix import SharedTexts, SuffixProposer

    def suffix(
        share: bool, max_tokens: int, max_age: float, share_prompts: bool, per_matched_token: float
    ) -> Proposer:
        shared = SharedTexts(max_tokens, max_age) if share else None
        return SuffixProposer(shared, share_prompts, per_matched_token)

    return {"ngram": NgramProposer, "suffix": suffix}
