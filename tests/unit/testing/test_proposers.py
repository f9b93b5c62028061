"""The contract of a proposer: ours and the one in the docs keep it, and each rule can be seen broken."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from slipstream.drafting import Draft, Proposer, RequestInfo
from slipstream.drafting.ngram import NgramProposer
from slipstream.drafting.suffix import SharedTexts, SuffixProposer
from slipstream.testing.proposers import check_proposer

DOCS = Path(__file__).parents[3] / "docs"


@pytest.mark.parametrize(
    "make",
    [
        NgramProposer,
        lambda: NgramProposer(1, 3),
        SuffixProposer,
        lambda: SuffixProposer(SharedTexts(1000, 60.0), share_prompts=True),
    ],
)
def test_ours_keep_it(make: Callable[[], Proposer]) -> None:
    for seed in range(3):
        check_proposer(make, seed=seed)


def test_the_one_in_the_docs_keeps_it() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", (DOCS / "drafting.md").read_text(), re.DOTALL)
    defined: dict[str, Any] = {}
    exec(code, defined)
    check_proposer(defined["Echo"])


class TooMany(NgramProposer):
    def propose(self, wanted: Mapping[str, int]) -> dict[str, Draft]:
        return super().propose({name: max_tokens + 1 for name, max_tokens in wanted.items()})


class ForEverybody(NgramProposer):
    def propose(self, wanted: Mapping[str, int]) -> dict[str, Draft]:
        return {"x": Draft([1], [0.5])}


class Leaky(NgramProposer):
    """All requests have one text."""

    def observe(self, request_id: str, tokens: Any) -> None:
        for name in {*self._texts, request_id}:
            super().observe(name, tokens)


class Remembers(NgramProposer):
    def start(self, request: RequestInfo) -> None:
        self.propose_always = getattr(self, "propose_always", 0) + 1

    def propose(self, wanted: Mapping[str, int]) -> dict[str, Draft]:
        if self.propose_always > 3:
            return {name: Draft([1], [0.5]) for name in wanted}
        return super().propose(wanted)


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        (TooMany, "wrong length"),
        (ForEverybody, "not asked for"),
        (Leaky, "other requests change a draft"),
        (Remembers, "is remembered"),
    ],
)
def test_a_broken_one_is_found(broken: Callable[[], Proposer], said: str) -> None:
    with pytest.raises(AssertionError, match=said):
        check_proposer(broken)
