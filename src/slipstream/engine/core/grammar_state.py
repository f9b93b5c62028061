"""The state of a request's grammar in vLLM, copied, so that a draft can be tried on it (`drafting.grammar`).

vLLM keeps it with the request, in the scheduler's process, at the end of what is known of its text. Of its
backends xgrammar (the default) and guidance say what is forced; for others nothing is drafted.
"""

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

from vllm.v1.structured_output.backend_guidance import GuidanceGrammar
from vllm.v1.structured_output.backend_types import StructuredOutputOptions
from vllm.v1.structured_output.backend_xgrammar import XgrammarGrammar

from slipstream.drafting.grammar import GrammarState

OF_JSON = (
    StructuredOutputOptions.JSON, StructuredOutputOptions.JSON_OBJECT, StructuredOutputOptions.STRUCTURAL_TAG
)  # fmt: skip


class XgrammarState:
    def __init__(self, matcher: Any, is_json: bool) -> None:
        self._matcher, self.is_json = matcher, is_json

    def copy(self) -> "XgrammarState":
        return XgrammarState(self._matcher.fork(), self.is_json)

    def forced_text(self) -> str:
        text: str = "" if self._matcher.is_terminated() else self._matcher.find_jump_forward_string()
        return text

    def accept_text(self, text: str) -> bool:
        accepted: bool = self._matcher.accept_string(text)
        return accepted

    def accept_token(self, token: int) -> bool:
        if self._matcher.is_terminated():
            return False
        accepted: bool = self._matcher.accept_token(token)
        return accepted


class GuidanceState:
    def __init__(self, matcher: Any, tokenizer: Any, is_json: bool) -> None:
        self._matcher, self._tokenizer, self.is_json = matcher, tokenizer, is_json

    def copy(self) -> "GuidanceState":
        return GuidanceState(self._matcher.deep_copy(), self._tokenizer, self.is_json)

    def forced_text(self) -> str:
        if self._matcher.is_stopped():
            return ""
        return str(self._matcher.compute_ff_bytes().decode("utf-8", errors="ignore"))

    def accept_text(self, text: str) -> bool:
        tokens = self._tokenizer.tokenize_str(text)
        return bool(self._matcher.try_consume_tokens(tokens) == len(tokens))

    def accept_token(self, token: int) -> bool:
        return bool(not self._matcher.is_stopped() and self._matcher.try_consume_tokens([token]) == 1)


def grammar_of(request: Any, manager: Any) -> Callable[[], GrammarState | None] | None:
    """Return what gives the state of the request's grammar; None for a request without. It gives None while
    nothing is constrained, as the model reasons first."""
    if not request.use_structured_output:
        return None

    kind, _ = request.structured_output_request.structured_output_key
    is_json = kind in OF_JSON

    def state() -> GrammarState | None:
        asked = request.structured_output_request
        reasons = manager._get_reasoner(request) is not None and not manager.enable_in_reasoning
        if reasons and not asked.reasoning_ended:
            return None
        grammar = asked.grammar
        if isinstance(grammar, XgrammarGrammar) and not grammar.is_terminated():
            return XgrammarState(grammar.matcher.fork(), is_json)
        if isinstance(grammar, GuidanceGrammar) and not grammar.is_terminated():
            return GuidanceState(grammar.ll_matcher.deep_copy(), grammar.ll_tokenizer, is_json)
        return None

    return state


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
