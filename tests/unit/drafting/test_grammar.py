"""Drafts that a grammar forces, with a grammar that is a list of texts and a tokenizer of pieces."""

import re
from collections.abc import Sequence

import pytest

from slipstream.drafting.base import NO_DRAFT, Draft, RequestInfo
from slipstream.drafting.composer import Composer
from slipstream.drafting.grammar import GrammarProposer
from unit.drafting.fakes import Fake, always

PIECES = [
    '{"',
    "name",
    '":',
    ' "',
    "Ann",
    "Bob",
    '",',
    ' "',
    "age",
    " ",
    "1",
    "5",
    "}",
    '"',
    ":",
    ",",
    "{",
    "x",
]
VOCABULARY = {piece: number for number, piece in enumerate(dict.fromkeys(PIECES))}
TEXTS = [
    f'{{{a}"name"{b}:{c}"{who}"{d},{e}"age"{f}:{g}{age}{h}}}'
    for a in ("", " ") for b in ("",) for c in ("", " ") for who in ("Ann", "Bob", "x") for d in ("",)
    for e in ("", " ") for f in ("",) for g in ("", " ") for age in ("1", "5") for h in ("",)
]  # fmt: skip


STOP = len(VOCABULARY)


class Pieces:
    """Takes the longest piece each time."""

    stop_token = STOP

    def encode(self, text: str) -> list[int]:
        longest = sorted(VOCABULARY, key=len, reverse=True)
        found = re.findall("|".join(map(re.escape, longest)), text)
        assert "".join(found) == text
        return [VOCABULARY[piece] for piece in found]

    def decode(self, tokens: Sequence[int]) -> str:
        pieces = [*VOCABULARY, "STOP"]
        return "".join(pieces[token] for token in tokens)


class State:
    """Allows the beginnings of some texts."""

    is_json = True

    def __init__(self, written: str = "") -> None:
        self.written = written

    def copy(self) -> "State":
        return State(self.written)

    def _rests(self) -> list[str]:
        return [text[len(self.written) :] for text in TEXTS if text.startswith(self.written)]

    def forced_text(self) -> str:
        rests = self._rests()
        forced = ""
        while rests[0][len(forced) :] and all(rest.startswith(rests[0][: len(forced) + 1]) for rest in rests):
            forced = rests[0][: len(forced) + 1]
        return forced

    def accept_text(self, text: str) -> bool:
        if not any(rest.startswith(text) for rest in self._rests()):
            return False
        self.written += text
        return True

    def accept_token(self, token: int) -> bool:
        if token == STOP:
            return self.written in TEXTS
        return self.accept_text(Pieces().decode([token]))


class Request:
    def __init__(self) -> None:
        self.state = State()
        self.proposer = GrammarProposer(Pieces())
        self.proposer.start(RequestInfo("r", 1, None, self.state.copy))
        self.proposer.observe("r", [VOCABULARY["x"]])

    def write(self, text: str) -> None:
        assert self.state.accept_text(text)
        self.proposer.observe("r", Pieces().encode(text))

    def drafted(self, max_tokens: int = 16, offer: str = "", later: str = "") -> str:
        draft = self.draft(max_tokens, offer, later)
        return Pieces().decode(draft.tokens)

    def draft(self, max_tokens: int = 16, offer: str = "", later: str = "") -> Draft:
        def as_draft(text: str) -> Draft:
            tokens = Pieces().encode(text)
            return Draft(tokens, [0.8 ** (j + 1) for j in range(len(tokens))])

        offers = {"r": as_draft(offer)} if offer else {}
        go_on = lambda request, tokens, most: as_draft(later) if later else NO_DRAFT  # noqa: E731
        return self.proposer.extend({"r": max_tokens}, offers, go_on).get("r", NO_DRAFT)


def test_what_is_forced_through_whitespace_that_is_usual() -> None:
    request = Request()
    assert request.drafted() == '{"name": "'
    assert request.drafted(2) == '{"name'
    request.write('{"name": "Ann')
    assert request.drafted() == '", "age":'


def test_the_texts_own_whitespace() -> None:
    request = Request()
    request.write('{"name":"Ann"')
    assert request.drafted() == ', "age":'


def test_others_drafts_are_cut_and_gone_on_from() -> None:
    request = Request()
    request.write('{"name": "')
    assert request.drafted(offer="Bobx") == 'Bob", "age":'
    assert request.drafted(offer="Bobx", later="5") == 'Bob", "age":5}STOP'
    assert request.drafted(offer="age") == ""


def test_nothing_that_the_grammar_forbids() -> None:
    request = Request()
    request.write('{"name": "Bob", "age": ')
    assert request.drafted(offer="x") == ""
    assert request.drafted(offer="1x") == "1}STOP"


def test_a_draft_moves_no_state() -> None:
    request = Request()
    before = request.state.written
    request.draft(offer="{", later="Ann")
    assert request.state.written == before


def test_survival_is_learnt() -> None:
    request = Request()
    first = request.draft().survival
    assert sorted(first, reverse=True) == first
    for _ in range(40):
        again = Request()
        again.proposer = request.proposer
        again.proposer.start(RequestInfo("r", 1, None, again.state.copy))
        again.proposer.observe("r", [VOCABULARY["x"]])
        again.draft()
        again.write('{"name": "')
    assert Request().draft().survival == first
    request.proposer.start(RequestInfo("r", 1, None, State().copy))
    request.proposer.observe("r", [VOCABULARY["x"]])
    assert request.draft().survival[-1] > 1.2 * first[-1]


def test_requests_without_a_grammar_are_left_alone() -> None:
    proposer = GrammarProposer(Pieces())
    proposer.start(RequestInfo("r", 1))
    proposer.observe("r", [1, 2])
    assert not proposer.governs("r")
    assert proposer.propose({"r": 4}) == {}


@pytest.mark.parametrize("grammar", [True, False])
def test_the_composer_puts_it_in_place_of_others(grammar: bool) -> None:
    state = State('{"name": "')
    other = Fake("p", always(Pieces().encode("Bobx"), [0.8, 0.6]))
    composer = Composer([other, GrammarProposer(Pieces())], 100)
    composer.start(RequestInfo("r", 1, None, state.copy if grammar else None))
    composer.observe("r", [VOCABULARY["x"], *Pieces().encode(state.written)])
    composer.begin_step(["r"])
    (offer,) = composer.ask_free({"r": 8}).values()
    expected = 'Bob", "age":' if grammar else "Bobx"
    assert Pieces().decode(offer.tokens) == expected
    assert offer.proposer == ("grammar" if grammar else "p")
