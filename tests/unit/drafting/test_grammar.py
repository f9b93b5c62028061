"""Drafts that a grammar forces, with a grammar that is a list of texts and a tokenizer of pieces."""

import re
from collections.abc import Sequence

import pytest

from slipstream.drafting.base import NO_DRAFT, Draft, RequestInfo
from slipstream.drafting.composer import Composer
from slipstream.drafting.grammar import LONGEST_FORCED, MOST_SLOW, GrammarProposer, _last_place
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

    def __init__(self, written: str = "") -> None:
        self.written = written
        self.before: list[str] = []

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
        self.before.append(self.written)
        self.written += text
        return True

    def accept_token(self, token: int) -> bool:
        if token == STOP:
            self.before.append(self.written)
            return self.written in TEXTS
        return self.accept_text(Pieces().decode([token]))

    def rollback(self, steps: int) -> None:
        for _ in range(steps):
            self.written = self.before.pop()


class Grammar:
    """The grammar of a request; vLLM would move its state on."""

    is_json = is_whole = True

    def __init__(self, written: str = "", is_active: bool = True) -> None:
        self.written, self.is_active = written, is_active
        self.states: list[State] = []

    def state(self) -> State:
        self.states.append(State(self.written))
        return self.states[-1]


class Request:
    def __init__(self) -> None:
        self.grammar = Grammar()
        self.proposer = GrammarProposer(Pieces())
        self.start()

    def start(self) -> None:
        self.proposer.start(RequestInfo("r", 1, None, self.grammar))
        self.proposer.observe("r", [VOCABULARY["x"]])

    def write(self, text: str) -> None:
        self.grammar.written += text
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
    assert request.drafted(0) == ""
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


def test_the_state_follows_the_text() -> None:
    """It is taken from the request's grammar once, and is back where it was after each draft."""
    request = Request()
    for text in ('{"', "name", '":', ' "', "Ann", '",'):
        request.draft(offer="{", later="Ann")
        request.write(text)
        (state,) = request.grammar.states
        assert state.written == request.grammar.written
    request.write("x")  # as no grammar would allow
    assert request.proposer._running["r"].state is None


def test_a_failure_leaves_no_wrong_state() -> None:
    request = Request()

    def fail(request_id: str, tokens: Sequence[int], most: int) -> Draft:
        raise RuntimeError("planted")

    with pytest.raises(RuntimeError, match="planted"):
        request.proposer.extend({"r": 16}, {}, fail)
    assert request.drafted() == '{"name": "'
    assert len(request.grammar.states) == 2


def test_nothing_is_drafted_while_the_grammar_is_not_active() -> None:
    request = Request()
    request.grammar.is_active = False
    request.start()
    assert not request.proposer.governs("r")
    request.proposer.observe("r", Pieces().encode('"x:'))  # which is no JSON
    request.grammar.is_active = True
    assert request.drafted() == '{"name": "'


def test_a_grammar_that_costs_too_much_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    request = Request()
    monkeypatch.setattr(State, "forced_text", lambda state: "{" * (LONGEST_FORCED + 1))
    request.draft()
    assert not request.proposer.governs("r")


def test_slow_drafts_end(monkeypatch: pytest.MonkeyPatch) -> None:
    request = Request()
    monkeypatch.setattr("slipstream.drafting.grammar.SLOW", -1.0)
    for _ in range(MOST_SLOW):
        assert request.proposer.governs("r")
        request.draft()
    assert not request.proposer.governs("r")


def test_survival_is_learnt() -> None:
    request = Request()
    first = request.draft().survival
    assert sorted(first, reverse=True) == first
    for _ in range(40):
        again = Request()
        again.proposer = request.proposer
        again.start()
        again.draft()
        again.write('{"name": "')
    assert Request().draft().survival == first
    request.start()
    assert request.draft().survival[-1] > 1.2 * first[-1]


@pytest.mark.parametrize(
    ("text", "value", "place"),
    [
        ("Ann and Bob", "An", 2),
        ("Joann and Ann", "nn", None),
        ("a" * 100_000, "aa", None),
        ("Ann, Anna", "Ann", 8),
        ("", "a", None),
    ],
)
def test_values_are_found_where_they_begin_words(text: str, value: str, place: int | None) -> None:
    assert _last_place(text, value) == place


def test_requests_without_a_grammar_are_left_alone() -> None:
    proposer = GrammarProposer(Pieces())
    proposer.start(RequestInfo("r", 1))
    proposer.observe("r", [1, 2])
    assert not proposer.governs("r")
    assert proposer.propose({"r": 4}) == {}


@pytest.mark.parametrize(("has_grammar", "is_active"), [(True, True), (True, False), (False, False)])
def test_the_composer_puts_it_in_place_of_others(has_grammar: bool, is_active: bool) -> None:
    written = '{"name": "'
    other = Fake("p", always(Pieces().encode("Bobx"), [0.8, 0.6]))
    composer = Composer([other, GrammarProposer(Pieces())], 100)
    composer.start(RequestInfo("r", 1, None, Grammar(written, is_active) if has_grammar else None))
    composer.observe("r", [VOCABULARY["x"], *Pieces().encode(written)])
    composer.begin_step(["r"])
    (offer,) = composer.ask_free({"r": 8}).values()
    expected = 'Bob", "age":' if is_active else "Bobx"
    assert Pieces().decode(offer.tokens) == expected
    assert offer.proposer == ("grammar" if is_active else "p")
