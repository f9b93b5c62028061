"""Drafts that a request's grammar forces: in JSON of a schema the keys, the punctuation, the rest of an enum.

What is forced is known as text; the model writes it in tokens, and grammars of JSON leave whitespace free. So
the draft is what the tokenizer makes of the forced text, joined to the text so far, with the whitespace that
the request has used before. A value that the prompt has is drafted from there, up to where it probably ends.
Between forced parts other proposers' drafts stand, cut where the grammar forbids a token. How often each kind
of token is right is learnt. Exactness does not rest on any of it: vLLM applies the grammar at every verified
position.
"""

import re
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
MIN_VALUE = 2  # characters of a string that are looked up
LONG_VALUE = 32  # characters; of longer ones only the end
AFTER_VALUE = re.compile(r"""[.,;:!?](?=\s|<|$)|[\n"\\()\[\]{}<>]""")
"""Where a value that stands in a text probably ends: after a sentence, or part of one, or in brackets."""
AFTER_NAME = re.compile(AFTER_VALUE.pattern + r"|\s(?=[a-z])")
"""The same for one that begins with a capital letter or a digit: before the next word that does not."""
TEXTS = ("a", "1", '"', "}", "]")
"""Where none of these may follow, hardly anything may."""
TAIL = 6  # tokens of the text with which forced text is tokenized
MOST_PARTS = 8  # of a draft, forced and looked up in turn
CHARACTERS_PER_TOKEN = 6  # of forced text, at most in the mean


class GrammarState(Protocol):
    """The state of a grammar at some place of a text. It is a copy: what is done to it changes no request."""

    is_json: bool
    """It is of JSON, where whitespace may stand between signs."""

    def copy(self) -> "GrammarState": ...

    def forced_text(self) -> str:
        """Return the text that must follow; empty if there is a choice."""
        ...

    def accept_text(self, text: str) -> bool:
        """Move on by this text, if it may follow. One character that may not leaves the state as it was."""
        ...

    def accept_token(self, token: int) -> bool: ...


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
    state: Callable[[], GrammarState | None]
    style: JsonStyle
    prompt_left: int
    prompt: list[int] = field(default_factory=list)
    """The end of its prompt."""
    prompt_text: str | None = None
    """As text, once that is needed."""
    tail: list[int] = field(default_factory=list)
    """The last tokens of its text."""
    drafted: list[int] = field(default_factory=list)
    """The draft at the end of its text as it is, and the kind of each of its tokens."""
    kinds: list[str] = field(default_factory=list)


class GrammarProposer(Proposer):
    name = "grammar"

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self._habits = Habits()
        self._running: dict[str, _Running] = {}
        self._right = {kind: list(prior) for kind, prior in PRIOR.items()}

    def start(self, request: RequestInfo) -> None:
        if request.grammar is not None:
            style = JsonStyle(self._habits)
            self._running[request.id] = _Running(request.grammar, style, request.num_prompt_tokens)

    def observe(self, request_id: str, tokens: Sequence[int]) -> None:
        running = self._running.get(request_id)
        if running is None:
            return
        skipped = min(running.prompt_left, len(tokens))
        running.prompt_left -= skipped
        if skipped:
            running.prompt = [*running.prompt, *tokens[:skipped]][-MAX_PROMPT:]
        running.tail = [*running.tail, *tokens][-TAIL:]
        if skipped < len(tokens):
            self._learn(running, tokens[skipped:])
            running.style.append(self.tokenizer.decode(tokens[skipped:]))
        running.drafted, running.kinds = [], []

    def forget(self, request_id: str) -> None:
        self._running.pop(request_id, None)

    def governs(self, request_id: str) -> bool:
        """Return whether the request has a grammar."""
        return request_id in self._running

    def propose(self, wanted: Mapping[str, int]) -> dict[str, Draft]:
        return self.extend(wanted, {}, lambda request_id, tokens, max_tokens: NO_DRAFT)

    def extend(
        self, wanted: Mapping[str, int], offers: Mapping[str, Draft], go_on: Continue
    ) -> dict[str, Draft]:
        """Return drafts of what is forced and of what others offer, or would offer later in the text."""
        drafts = {}
        for request_id, max_tokens in wanted.items():
            running = self._running.get(request_id)
            state = running.state() if running is not None else None
            if running is None or state is None:
                continue
            builder = _Builder(self, running, state, max_tokens)
            for part in range(MOST_PARTS):
                if builder.add_stop():
                    break
                if not builder.add_forced() and not builder.add_value():
                    other = offers.get(request_id, NO_DRAFT) if not part else NO_DRAFT
                    if not other.tokens:
                        other = go_on(request_id, builder.tokens, max_tokens - len(builder.tokens))
                    if not builder.add_lookup(other):
                        break
                if len(builder.tokens) >= max_tokens:
                    break
            if builder.tokens:
                running.drafted, running.kinds = builder.tokens, builder.kinds
                drafts[request_id] = Draft(builder.tokens, builder.survival)
        return drafts

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
        self, proposer: GrammarProposer, running: _Running, state: GrammarState, max_tokens: int
    ) -> None:
        self._proposer, self._tokenizer = proposer, proposer.tokenizer
        self._running, self._state = running, state
        self._style = running.style.copy()
        self._max_tokens = max_tokens
        self.tokens: list[int] = []
        self.kinds: list[str] = []
        self.survival: list[float] = []

    def add_forced(self) -> bool:
        """Add what is forced here, and through whitespace that is free; return whether it is anything."""
        text, kind = self._forced_text(self._state.copy(), self._style.copy())
        return bool(text) and self._add_text(text, lambda start, end: kind)

    def add_stop(self) -> bool:
        """Add the token that ends the text, if it must end here."""
        stop = self._tokenizer.stop_token
        if stop is None or (self._state.is_json and self._style.is_within):
            return False
        trial = self._state.copy()
        if any(trial.accept_text(text) for text in TEXTS) or not self._state.accept_token(stop):
            return False
        self._add(stop, STOP, self._proposer.right(STOP))
        return True

    def add_value(self) -> bool:
        """Add the rest of a value that stands in the prompt, and what is forced after it; return whether it
        is anything."""
        rest, ends = self._find_value()
        state, style = self._state.copy(), self._style.copy()
        if not (rest or ends) or not state.accept_text(rest):
            return False
        style.append(rest, learn=False)
        after = ""
        if ends and style.in_string and state.accept_text('"'):
            style.append('"', learn=False)
            after, _ = self._forced_text(state, style)
            after = '"' + after

        def kind(start: int, end: int) -> str:
            if end <= len(rest):
                return VALUE
            return END if start <= len(rest) else STYLE

        return bool(rest or after) and self._add_text(rest + after, kind)

    def _find_value(self) -> tuple[str, bool]:
        """Return how the value at the end of the text goes on in the prompt, and whether it ends there."""
        value, running = self._style.value, self._running
        if not self._state.is_json or len(value) < (MIN_VALUE if self._style.in_string else 1):
            return "", False
        if running.prompt_text is None:
            running.prompt_text = self._tokenizer.decode(running.prompt)
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
            if not self._state.accept_token(token):
                break
            start, written = len(written), written + self._tokenizer.decode([token])
            # The model may write the last one together with what follows, as one token.
            kind = EDGE if place == len(tokens) - 1 else kind_of(start, len(written))
            self._add(token, kind, self._proposer.right(kind))
        self._style.append(written, learn=False)
        return bool(written)

    def add_lookup(self, draft: Draft) -> bool:
        """Add what another proposer drafts, as far as the grammar allows it."""
        before, added = 1.0, []
        for token, survival in zip(draft.tokens, draft.survival, strict=False):
            if len(self.tokens) >= self._max_tokens or not self._state.accept_token(token):
                break
            self._add(token, LOOKUP, survival / before if before else 0.0)
            before = survival
            added.append(token)
        if added:
            self._style.append(self._tokenizer.decode(added), learn=False)
        return bool(added)

    def _add(self, token: int, kind: str, right: float) -> None:
        self.tokens.append(token)
        self.kinds.append(kind)
        self.survival.append((self.survival[-1] if self.survival else 1.0) * min(right, 1.0))

    def _forced_text(self, state: GrammarState, style: JsonStyle) -> tuple[str, str]:
        """Return the text that must follow here, if whitespace is as usual, and whether it must be so or the
        whitespace is guessed. Both are changed."""
        text, kind = "", FORCED
        most = CHARACTERS_PER_TOKEN * (self._max_tokens - len(self.tokens))
        while len(text) < most:
            part = state.forced_text()[:most]
            if part and not state.accept_text(part):
                break
            if not part and state.is_json:
                part, kind = _guess(state, style), STYLE
            if not part:
                break
            style.append(part, learn=False)
            text += part
        return text, kind if text else FORCED

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
    at = text.rfind(searched)
    while at > 0 and searched == value and text[at - 1].isalnum():
        at = text.rfind(searched, 0, at + len(searched) - 1)
    return at + len(searched) if at >= 0 else None


def _guess(state: GrammarState, style: JsonStyle) -> str:
    """Return the sign that follows, if only one can, with the usual whitespace before it, and let the state
    accept them; else nothing, and the state is of no more use."""
    if style.in_string:
        return ""
    possible, trial = "", state.copy()
    for sign in style.next_signs():
        if trial.accept_text(sign):
            if possible:
                return ""
            possible, trial = sign, state.copy()
    space = style.whitespace_before(possible) if possible else None
    if space is None or not state.accept_text(space + possible):
        return ""
    return space + possible
