"""The grammars of requests in vLLM, and copies of their state on which drafts are tried (`drafting.grammar`).

vLLM keeps a grammar with its request, in the scheduler's process, at the end of what is known of its text. Of
its backends xgrammar (the default) and guidance say what is forced; for others nothing is drafted. A copy of
xgrammar's state shares nothing with it that changes; one of guidance's shares the lexer, whose work is
limited between two masks: drafts use it little.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

from vllm.v1.structured_output.backend_guidance import GuidanceGrammar
from vllm.v1.structured_output.backend_types import StructuredOutputOptions
from vllm.v1.structured_output.backend_xgrammar import XgrammarGrammar

from slipstream.drafting.grammar import GrammarState

OF_JSON = (
    StructuredOutputOptions.JSON, StructuredOutputOptions.JSON_OBJECT, StructuredOutputOptions.STRUCTURAL_TAG
)  # fmt: skip

MOST_STEPS = 1024  # that can be undone


class XgrammarState:
    def __init__(self, matcher: Any) -> None:
        self._matcher = matcher

    def forced_text(self) -> str:
        if self._matcher.is_terminated():
            return ""
        try:
            return str(self._matcher.find_jump_forward_string())
        except UnicodeDecodeError as error:  # it may end within a character
            return bytes(error.object[: error.start]).decode()

    def accept_text(self, text: str) -> bool:
        return bool(not self._matcher.is_terminated() and self._matcher.accept_string(text))

    def accept_token(self, token: int) -> bool:
        return bool(not self._matcher.is_terminated() and self._matcher.accept_token(token))

    def rollback(self, steps: int) -> None:
        if steps:
            self._matcher.rollback(steps)


class GuidanceState:
    def __init__(self, matcher: Any, tokenizer: Any) -> None:
        self._matcher, self._tokenizer = matcher, tokenizer
        self._steps: list[int] = []
        """Tokens of each."""

    def forced_text(self) -> str:
        if self._matcher.is_stopped():
            return ""
        return str(self._matcher.compute_ff_bytes().decode("utf-8", errors="ignore"))

    def accept_text(self, text: str) -> bool:
        return self._accept(self._tokenizer.tokenize_str(text))

    def accept_token(self, token: int) -> bool:
        return self._accept([token])

    def rollback(self, steps: int) -> None:
        if steps:
            self._matcher.rollback(sum(self._steps[-steps:]))
            del self._steps[-steps:]

    def _accept(self, tokens: list[int]) -> bool:
        if self._matcher.is_stopped():
            return False
        accepted = int(self._matcher.try_consume_tokens(tokens))
        if accepted < len(tokens):
            self._matcher.rollback(accepted)
            return False
        self._steps.append(accepted)
        if len(self._steps) > 2 * MOST_STEPS:
            del self._steps[:MOST_STEPS]
        return True


class RequestGrammar:
    """The grammar of a request of vLLM's."""

    def __init__(self, request: Any, manager: Any) -> None:
        self._request, self._manager = request, manager
        kind, _ = request.structured_output_request.structured_output_key
        self.is_json = kind in OF_JSON
        self.is_whole = kind is not StructuredOutputOptions.STRUCTURAL_TAG

    @property
    def is_active(self) -> bool:
        """Return False while nothing is constrained, as the model reasons first, and for other backends."""
        asked = self._request.structured_output_request
        reasons = self._manager._get_reasoner(self._request) is not None
        if reasons and not self._manager.enable_in_reasoning and not asked.reasoning_ended:
            return False
        known = isinstance(asked.grammar, XgrammarGrammar | GuidanceGrammar)
        return known and not asked.grammar.is_terminated()

    def state(self) -> GrammarState:
        grammar = self._request.structured_output_request.grammar
        if isinstance(grammar, XgrammarGrammar):
            return XgrammarState(grammar.matcher.fork())
        return GuidanceState(grammar.ll_matcher.deep_copy(), grammar.ll_tokenizer)


class EngineTokenizer:
    """The tokenizer with which vLLM makes grammars."""

    def __init__(self, manager: Any) -> None:
        self._manager = manager
        self._texts: dict[int, str] = {}

    @property
    def stop_token(self) -> int | None:
        token: int | None = self._manager.tokenizer.eos_token_id
        return token

    def encode(self, text: str) -> list[int]:
        tokenizer = self._manager.tokenizer
        if fast := getattr(tokenizer, "backend_tokenizer", None):
            return list(fast.encode(text, add_special_tokens=False).ids)
        return list(tokenizer.encode(text, add_special_tokens=False))

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens in mid-text: at the beginning of a text some tokenizers drop a space."""
        if len(tokens) != 1:
            return self._decode_in_text(tokens)
        if (text := self._texts.get(tokens[0])) is None:
            text = self._texts[tokens[0]] = self._decode_in_text(tokens)
        return text

    def _decode_in_text(self, tokens: Sequence[int]) -> str:
        before, length = self._before
        return self._decode([*before, *tokens])[length:]

    @cached_property
    def _before(self) -> tuple[list[int], int]:
        tokens = self.encode("a")
        return tokens, len(self._decode(tokens))

    def _decode(self, tokens: list[int]) -> str:
        tokenizer = self._manager.tokenizer
        decode = getattr(tokenizer, "backend_tokenizer", tokenizer).decode
        return str(decode(tokens, skip_special_tokens=False))
