from importlib.metadata import EntryPoint
from typing import Any

import pytest

from slipstream.drafting import registry
from slipstream.drafting.ngram import NgramProposer
from slipstream.drafting.registry import GROUP, installed_names, make_proposer
from slipstream.drafting.suffix import SuffixProposer
from slipstream.errors import ConfigError
from unit.drafting.fakes import Fake

SUFFIX: dict[str, Any] = {"max_tokens": 100, "max_age": 9.0, "share_prompts": False, "per_matched_token": 1.0}


@pytest.fixture
def theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody else's package is installed."""
    entries = [
        EntryPoint("theirs", "unit.drafting.fakes:Fake", GROUP),
        EntryPoint("no-proposer", "builtins:dict", GROUP),
    ]

    def entry_points(group: str) -> list[EntryPoint]:
        return entries if group == GROUP else []

    monkeypatch.setattr(registry, "entry_points", entry_points)


def test_ours() -> None:
    assert isinstance(make_proposer("ngram", {"min": 3, "max": 4}), NgramProposer)
    for share in (True, False):
        suffix = make_proposer("suffix", {"share": share, **SUFFIX})
        assert isinstance(suffix, SuffixProposer)
        assert (suffix._shared is not None) == share


@pytest.mark.usefixtures("theirs")
def test_an_unknown_name_names_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="'ngarm'; known are ngram, suffix, no-proposer, theirs"):
        make_proposer("ngarm", {})


@pytest.mark.parametrize(("name", "options"), [("ngram", {"minn": 1}), ("suffix", {"minn": 1})])
def test_wrong_options(name: str, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=rf"{name} cannot be made .*'minn'"):
        make_proposer(name, options)


@pytest.mark.usefixtures("theirs")
def test_somebody_else_s() -> None:
    assert installed_names() == ["no-proposer", "theirs"]
    proposer = make_proposer("theirs", {"name": "named"})
    assert isinstance(proposer, Fake)
    assert proposer.name == "named"
    with pytest.raises(ConfigError, match=r"'no-proposer' makes no slipstream\.drafting\.Proposer"):
        make_proposer("no-proposer", {})
