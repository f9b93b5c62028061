"""The rules of a proposer, as a test that anybody's class can be run through."""

import random
from collections.abc import Callable, Mapping, Sequence

from slipstream.drafting.base import Draft, Proposer, RequestInfo
from slipstream.drafting.faults import problem_of

VOCABULARY = 1000


class Silent(Proposer):
    """Never drafts: what is left is what Slipstream costs by itself."""

    name = "silent"

    def observe(self, request_id: str, tokens: Sequence[int]) -> None:
        pass

    def propose(self, wanted: Mapping[str, int]) -> dict[str, Draft]:
        return {}

    def forget(self, request_id: str) -> None:
        pass


def check_proposer(make: Callable[[], Proposer], steps: int = 60, seed: int = 0) -> None:
    """Raise AssertionError, saying what is wrong, unless a free proposer keeps the rules.

    Drafts are sound, whatever the text; they depend only on what was observed, not on what else was asked or
    on other requests without a common tenant; and what is forgotten can be started again.
    """
    source = random.Random(seed)
    texts = {name: _text(source) for name in ("a", "b", "c")}
    alone, together = make(), make()
    assert isinstance(alone, Proposer), "not a slipstream.drafting.Proposer"
    assert isinstance(getattr(alone, "name", None), str), "has no name"
    assert alone.free, "only free proposers run outside the workers"

    at = {name: source.randrange(1, 40) for name in texts}
    for name, text in texts.items():
        together.start(RequestInfo(name, at[name]))
        together.observe(name, text[: at[name]])
    alone.start(RequestInfo("a", at["a"]))
    alone.observe("a", texts["a"][: at["a"]])
    for _ in range(steps):
        max_tokens = source.randrange(0, 9)
        drafts = dict(together.propose(dict.fromkeys(texts, max_tokens)))
        assert drafts.keys() <= texts.keys(), f"drafts for requests that were not asked for: {drafts.keys()}"
        for name, draft in drafts.items():
            problem = problem_of(draft, max_tokens, VOCABULARY)
            assert problem is None, f"request {name}: {problem}"
        mine = dict(alone.propose({"a": max_tokens})).get("a")
        assert mine == drafts.get("a"), (
            f"other requests change a draft: {mine} alone, {drafts.get('a')} among them"
        )
        for name, text in texts.items():
            count = source.randrange(1, 5)
            together.observe(name, text[at[name] : at[name] + count])
            if name == "a":
                alone.observe("a", text[at[name] : at[name] + count])
            at[name] += count
    for name in texts:
        together.forget(name)
    together.forget("never started")
    together.start(RequestInfo("a", 1))
    together.observe("a", texts["a"][:1])
    again = dict(together.propose({"a": 4})).get("a")
    fresh = make()
    fresh.start(RequestInfo("a", 1))
    fresh.observe("a", texts["a"][:1])
    assert again == dict(fresh.propose({"a": 4})).get("a"), "a forgotten request is remembered"


def _text(source: random.Random) -> list[int]:
    """Phrases that come again, and tokens that do not."""
    phrases = [[source.randrange(VOCABULARY) for _ in range(source.randrange(1, 9))] for _ in range(8)]
    text: list[int] = []
    while len(text) < 600:
        text += source.choice(phrases) if source.random() < 0.8 else [source.randrange(VOCABULARY)]
    return text
