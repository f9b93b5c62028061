"""Drafts that a request's grammar forces: in JSON of a schema the keys, the punctuation, the rest of an enum.

What is forced is known as text; the model writes it in tokens, and grammars of JSON leave whitespace free. So
the draft is what the tokenizer makes of the forced text, joined to the text so far, with the whitespace that
the request has used before. A value that the prompt has is drafted from there, up to where it probably ends.
Between forced parts other proposers' drafts stand, cut where the grammar forbids a token. How often each kind
of token is right is learnt. Exactness does not rest on any of it: vLLM applies the grammar at every verified
position.
"""

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from slipstream.drafting.base import NO_DRAFT, Draft, Proposer, RequestInfo
from slipstream.drafting.json_style import Habits, JsonStyle

FORCED, STYLE, EDGE, VALUE, END, STOP, LOOKUP = "forced", "style", "edge", "value", "end", "stop", "lookup"
PRIOR = {
    FORCED: (9.0, 10.0),
    STYLE: (3.0, 4.0),
    EDGE: (3.0, 4.0),
    VALUE: (2.0, 4.0),
    END: (2.0, 4.0),
    STOP: (3.0, 4.0),
}
"""Tokens that were right, of so many, before any has been seen."""
MEMORY = 500.0  # tokens
MAX_PROMPT = 4096  # tokens of its end in which values are looked up
MAX_PROMPT_TEXT = 16384  # characters of it
MIN_VALUE = 2  # characters of a string that are looked up
LONG_VALUE = 32  # characters; of longer ones only the end
MOST_PLACES = 16  # of a value in the prompt that are looked at
AFTER_VALUE = re.compile(r"""[.,;:!?](?=\s|<|$)|[\n"\\()\[\]{}<>]""")
"""Where a value that stands in a text probably ends: after a sentence, or part of one, or in brackets."""
AFTER_NAME = re.compile(AFTER_VALUE.pattern + r"|\s(?=[a-z])")
"""The same for one that begins with a capital letter or a digit: before the next word that does not."""
TEXTS = ("a", "1", '"', "}", "]")
"""Where none of these may follow, hardly anything may."""
TAIL = 6  # tokens of the text with which forced text is tokenized
MOST_PARTS = 8  # of a draft, forced and looked up in turn
CHARACTERS_PER_TOKEN = 6  # of forced text, at most in the mean
LONGEST_FORCED = 2000
"""Characters. A grammar works forced text out to its end, so that drafts of a longer one cost too much."""
SLOW, MOST_SLOW = 0.05, 3
"""Seconds of a draft, and how often it may take longer before a request has no more of them."""


class GrammarState(Protocol):
    """The state of a grammar at some place of a text; the proposer's own, on which no request depends."""

    def forced_text(self) -> str:
        """Return the text that must follow; empty if there is a choice."""
        ...

    def accept_text(self, text: str) -> bool:
        """Move on by this text, as one step, if it may follow; else stay."""
        ...

    def accept_token(self, token: int) -> bool:
        """Move on by this token, as one step, if it may follow; else stay."""
        ...

    def rollback(self, steps: int) -> None:
        """Undo the last so many steps."""
        ...


class Grammar(Protocol):
    """The grammar of a request."""

    is_json: bool
    """It is of JSON, where whitespace may stand between signs."""
    is_whole: bool
    """The whole text is bound by it, not only what stands between tags."""

    @property
    def is_active(self) -> bool:
        """Return whether it binds what is written next, and can say what it forces."""
        ...

    def state(self) -> GrammarState:
        """Return a new state, at the end of the text so far."""
        ...


class Tokenizer(Protocol):
    @property
    def stop_token(self) -> int | None:
        """Return the token that ends a text."""
        ...

    def encode(self, text: str) -> list[int]: ...

    def decode(self, tokens: Sequence[int]) -> str: ...


Continue = Callable[[str, Sequence[int], int], Draft]
"""What others would draft for a request after these further tokens, at most so many."""


@dataclass
class _Running:
    grammar: Grammar
    prompt_left: int
    state: GrammarState | None = None
    """At the end of its text, once that is bound by the grammar."""
    style: JsonStyle | None = None
    prompt: list[int] = field(default_factory=list)
    """The end of its prompt."""
    prompt_text: str | None = None
    """As text, once that is needed."""
    tail: list[int] = field(default_factory=list)
    """The last tokens of its text."""
    drafted: list[int] = field(default_factory=list)
    """The draft at the end of its text as it is, and the kind of each of its tokens."""
    kinds: list[str] = field(default_factory=list)
    num_slow: int = 0
    """How often a draft took long."""
    is_costly: bool = False
    """Drafts took long too often, or more is forced than can be drafted in time: it has no more of them."""


class GrammarProposer(Proposer):
    name = "grammar"

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self._habits = Habits()
        self._running: dict[str, _Running] = {}
        self._right = {kind: list(prior) for kind, prior in PRIOR.items()}

    def start(self, request: RequestInfo) -> None:
        if request.grammar is not None:
            running = _Running(request.grammar, request.num_prompt_tokens)
            if request.grammar.is_active:
                running.style = self._new_style(request.grammar)
            self._running[request.id] = running

    def observe(self, request_id: str, tokens: Sequence[int]) -> None:
        running = self._running.get(request_id)
        if running is None:
            return
        skipped = min(running.prompt_left, len(tokens))
        running.prompt_left -= skipped
        if skipped:
            running.prompt = [*running.prompt, *tokens[:skipped]][-MAX_PROMPT:]
        running.tail = [*running.tail, *tokens][-TAIL:]
        written = tokens[skipped:]
        self._learn(running, written)
        if written and running.style is not None:
            running.style.append(self.tokenizer.decode(written))
        if running.state is not None and not all(map(running.state.accept_token, written)):
            running.state = None
        running.drafted, running.kinds = [], []

    def forget(self, request_id: str) -> None:
        self._running.pop(request_id, None)

    def governs(self, request_id: str) -> bool:
        """Return whether a grammar binds what the request writes next, and drafts of it do not cost much."""
        running = self._running.get(request_id)
        return running is not None and not running.is_costly and running.grammar.is_active

    def propose(self, wanted: Mapping[str, int]) -> dict[str, Draft]:
        governed = {request_id: most for request_id, most in wanted.items() if self.governs(request_id)}
        return self.extend(governed, {}, lambda request_id, tokens, max_tokens: NO_DRAFT)

    def extend(
        self, wanted: Mapping[str, int], offers: Mapping[str, Draft], go_on: Continue
    ) -> dict[str, Draft]:
        """Return drafts of what is forced and of what others offer, or would offer later in the text, for
        requests that a grammar governs."""
        drafts = {}
        for request_id, max_tokens in wanted.items():
            if max_tokens < 1:
                continue
            running = self._running[request_id]
            begun = time.perf_counter()
            builder = self._build(running, request_id, max_tokens, offers.get(request_id, NO_DRAFT), go_on)
            running.num_slow += time.perf_counter() - begun > SLOW
            running.is_costly = running.is_costly or running.num_slow >= MOST_SLOW
            if builder.tokens:
                running.drafted, running.kinds = builder.tokens, builder.kinds
                drafts[request_id] = Draft(builder.tokens, builder.survival)
        return drafts

    def _build(
        self, running: _Running, request_id: str, max_tokens: int, offer: Draft, go_on: Continue
    ) -> "_Builder":
        """Build a draft part by part, and leave the state of the grammar where it was."""
        if running.style is None:
            running.style = self._new_style(running.grammar)
        state = running.state or running.grammar.state()
        running.state = None  # until it is back where it was
        builder = _Builder(self, running, state, running.style.copy(), max_tokens)
        for part in range(MOST_PARTS):
            other = NO_DRAFT if part else offer
            # What begins like something in the prompt, or what another proposer has found.
            value_first = not other.tokens or other.survival[0] < self.right(VALUE)
            if builder.add_stop():
                break
            if not builder.add_forced() and not (value_first and builder.add_value()):
                if not other.tokens:
                    other = go_on(request_id, builder.tokens, max_tokens - len(builder.tokens))
                if not builder.add_lookup(other) and (value_first or not builder.add_value()):
                    break
            if len(builder.tokens) >= max_tokens:
                break
        state.rollback(builder.steps)
        running.state = state
        return builder

    def _new_style(self, grammar: Grammar) -> JsonStyle:
        return JsonStyle(self._habits, learns=grammar.is_json and grammar.is_whole)

    def right(self, kind: str) -> float:
        """Return how often a token of this kind is right where all before it are."""
        right, of = self._right[kind]
        return right / of

    def _learn(self, running: _Running, written: Sequence[int]) -> None:
        for token, drafted, kind in zip(written, running.drafted, running.kinds, strict=False):
            if kind in self._right:
                counts = self._right[kind]
                counts[0] += token == drafted
                counts[1] += 1
                if counts[1] > MEMORY:
                    counts[0] *= 0.5
                    counts[1] *= 0.5
            if token != drafted:
                break


class _Builder:
    """Makes a draft, part by part."""

    def __init__(
        self,
        proposer: GrammarProposer,
        running: _Running,
        state: GrammarState,
        style: JsonStyle,
        max_tokens: int,
    ) -> None:
        self._proposer, self._tokenizer = proposer, proposer.tokenizer
        self._running, self._state, self._style = running, state, style
        self._is_json = running.grammar.is_json
        self._max_tokens = max_tokens
        self.tokens: list[int] = []
        self.kinds: list[str] = []
        self.survival: list[float] = []
        self.steps = 0
        """By which the state has moved on."""

    def add_forced(self) -> bool:
        """Add what is forced here, and through whitespace that is free; return whether it is anything."""
        text, kind, steps = self._forced_text(self._style.copy())
        self._state.rollback(steps)
        return bool(text) and self._add_text(text, lambda start, end: kind)

    def add_stop(self) -> bool:
        """Add the token that ends the text, if it must end here."""
        stop = self._tokenizer.stop_token
        if stop is None or (self._is_json and self._style.is_within) or any(map(self._allows, TEXTS)):
            return False
        return self._add(stop, STOP, self._proposer.right(STOP))

    def add_value(self) -> bool:
        """Add the rest of a value that stands in the prompt, and what is forced after it; return whether it
        is anything."""
        rest, ends = self._find_value()
        if not (rest or ends) or (rest and not self._state.accept_text(rest)):
            return False
        steps, style, after = int(bool(rest)), self._style.copy(), ""
        style.append(rest, learn=False)
        if ends and style.in_string and self._state.accept_text('"'):
            style.append('"', learn=False)
            after, _, more = self._forced_text(style)
            after, steps = '"' + after, steps + 1 + more
        self._state.rollback(steps)

        def kind(start: int, end: int) -> str:
            if end <= len(rest):
                return VALUE
            return END if start <= len(rest) else STYLE

        return bool(rest or after) and self._add_text(rest + after, kind)

    def _find_value(self) -> tuple[str, bool]:
        """Return how the value at the end of the text goes on in the prompt, and whether it ends there."""
        value, running = self._style.value, self._running
        if not self._is_json or len(value) < (MIN_VALUE if self._style.in_string else 1):
            return "", False
        if running.prompt_text is None:
            running.prompt_text = self._tokenizer.decode(running.prompt)[-MAX_PROMPT_TEXT:]
        place = _last_place(running.prompt_text, value)
        if place is None:
            return "", False
        most = CHARACTERS_PER_TOKEN * (self._max_tokens - len(self.tokens))
        following = running.prompt_text[place : place + most]
        if not self._style.in_string:
            return re.match(r"[\d.]*", following)[0].rstrip("."), False  # type: ignore[index]
        end = (AFTER_VALUE if value[0].islower() else AFTER_NAME).search(following)
        return (following[: end.start()], True) if end else (following, False)

    def _add_text(self, text: str, kind_of: Callable[[int, int], str]) -> bool:
        """Add the tokens of a text; of which kind they are is told by the characters they begin and end at.
        Return whether there are any."""
        tokens = self._tokenize(text)
        written = ""
        for place, token in enumerate(tokens[: self._max_tokens - len(self.tokens)]):
            longer = written + self._tokenizer.decode([token])
            # The model may write the last one together with what follows, as one token.
            kind = EDGE if place == len(tokens) - 1 else kind_of(len(written), len(longer))
            if not self._add(token, kind, self._proposer.right(kind)):
                break
            written = longer
        self._style.append(written, learn=False)
        return bool(written)

    def add_lookup(self, draft: Draft) -> bool:
        """Add what another proposer drafts, as far as the grammar allows it."""
        before, added = 1.0, []
        for token, survival in zip(draft.tokens, draft.survival, strict=False):
            if len(self.tokens) >= self._max_tokens:
                break
            if not self._add(token, LOOKUP, survival / before if before else 0.0):
                break
            before = survival
            added.append(token)
        if added:
            self._style.append(self._tokenizer.decode(added), learn=False)
        return bool(added)

    def _add(self, token: int, kind: str, right: float) -> bool:
        """Add a token, if the grammar allows it; return whether it does."""
        if not self._state.accept_token(token):
            return False
        self.steps += 1
        self.tokens.append(token)
        self.kinds.append(kind)
        self.survival.append((self.survival[-1] if self.survival else 1.0) * min(right, 1.0))
        return True

    def _allows(self, text: str) -> bool:
        if self._state.accept_text(text):
            self._state.rollback(1)
            return True
        return False

    def _forced_text(self, style: JsonStyle) -> tuple[str, str, int]:
        """Return the text that must follow here, if whitespace is as usual; whether it must be so or the
        whitespace is guessed; and by how many steps the state has moved on. The style follows it."""
        text, kind, steps = "", FORCED, 0
        most = CHARACTERS_PER_TOKEN * (self._max_tokens - len(self.tokens))
        while len(text) < most:
            part = self._state.forced_text()
            if len(part) > LONGEST_FORCED:
                self._running.is_costly = True
            if part:
                part = part[:most]
                accepted = self._state.accept_text(part)
            else:
                part = self._guess(style) if self._is_json else ""
                accepted = bool(part) and self._state.accept_text(part)
                kind = STYLE if accepted else kind
            if not accepted:
                break
            steps += 1
            style.append(part, learn=False)
            text += part
        return text, kind, steps

    def _guess(self, style: JsonStyle) -> str:
        """Return the sign that follows, if only one can, with the usual whitespace before it; else ""."""
        if style.in_string:
            return ""
        possible = ""
        for sign in style.next_signs():
            if self._allows(sign):
                if possible:
                    return ""
                possible = sign
        space = style.whitespace_before(possible) if possible else None
        return "" if space is None else space + possible

    def _tokenize(self, text: str) -> list[int]:
        """Return the tokens that the tokenizer makes of the text where it stands."""
        tail = [*self._running.tail, *self.tokens][-TAIL:]
        before = self._tokenizer.decode(tail)
        joined = self._tokenizer.encode(before + text)
        if joined[: len(tail)] == tail:
            return joined[len(tail) :]
        known = self._tokenizer.encode(before)
        return joined[len(known) :] if joined[: len(known)] == known else self._tokenizer.encode(text)


def _last_place(text: str, value: str) -> int | None:
    """Return where the value ends in the text; the last time, and only where it begins a word."""
    searched = value[-LONG_VALUE:]
    at = len(text)
    for _ in range(MOST_PLACES):
        at = text.rfind(searched, 0, at + len(searched) - 1)
        if at < 0:
            return None
        if at == 0 or searched != value or not text[at - 1].isalnum():
            return at + len(searched)
    return None
