"""Drafts by the grammars of vLLM's backends, with tokens of one character."""

import json
from collections.abc import Sequence
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
import xgrammar
from llguidance import LLMatcher, LLTokenizer
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from vllm.v1.structured_output.backend_types import StructuredOutputOptions
from vllm.v1.structured_output.backend_xgrammar import XgrammarGrammar

from slipstream.drafting.base import NO_DRAFT, RequestInfo
from slipstream.drafting.grammar import GrammarProposer, GrammarState
from slipstream.engine.core.grammar_state import (
    EngineTokenizer,
    GuidanceState,
    RequestGrammar,
    XgrammarState,
)

CHARACTERS = [chr(code) for code in (*range(32, 127), 10)]
STOP = len(CHARACTERS)
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "city": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "city", "age"],
    "additionalProperties": False,
}
PROMPT = "As JSON: Marta Lindqvist, who turned 41 last week, lives in Gothenburg since 2009."


class Characters:
    stop_token = STOP

    def encode(self, text: str) -> list[int]:
        return [CHARACTERS.index(character) for character in text]

    def decode(self, tokens: Sequence[int]) -> str:
        return "".join([*CHARACTERS, "STOP"][token] for token in tokens)


def matcher(schema: Any) -> xgrammar.GrammarMatcher:
    info = xgrammar.TokenizerInfo([*CHARACTERS, "</s>"], stop_token_ids=[STOP])
    return xgrammar.GrammarMatcher(xgrammar.GrammarCompiler(info).compile_json_schema(json.dumps(schema)))


class Grammar:
    """A grammar that is told what is written, as vLLM's is."""

    is_json = is_whole = is_active = True

    def __init__(self, matcher: xgrammar.GrammarMatcher) -> None:
        self.matcher = matcher

    def state(self) -> XgrammarState:
        return XgrammarState(self.matcher.fork())


def proposer_of(grammar: xgrammar.GrammarMatcher | RequestGrammar, written: str) -> GrammarProposer:
    proposer = GrammarProposer(Characters())
    bound = grammar if isinstance(grammar, RequestGrammar) else Grammar(grammar)
    proposer.start(RequestInfo("r", len(PROMPT), grammar=bound))
    proposer.observe("r", Characters().encode(PROMPT))
    proposer.observe("r", Characters().encode(written))
    return proposer


@pytest.mark.parametrize(
    ("written", "drafted"),
    [
        ("{", '"name": "'),
        ('{"name": "', ""),
        ('{"name": "Mart', 'a Lindqvist", "city": "'),  # up to the comma
        ('{"name": "x", "city": "Goth', 'enburg", "age":'),  # up to a word in small letters
        ('{"name": "x", "city": "y", "age": 4', "1"),
        ('{"name": "x", "city": "y", "age": 5', ""),
        ('{"name": "x", "city": "y", "age": 41}', "STOP"),
        ('{\n  "name": "x",', '\n  "city": "'),
    ],
)
def test_drafts(written: str, drafted: str) -> None:
    grammar = matcher(SCHEMA)
    assert grammar.accept_string(written)
    proposer = proposer_of(grammar, written)
    draft = proposer.propose({"r": 40}).get("r", NO_DRAFT)
    assert Characters().decode(draft.tokens) == drafted


def request_of(grammar: xgrammar.GrammarMatcher) -> Any:
    """Return a request as vLLM's scheduler has it."""
    held = XgrammarGrammar(vocab_size=STOP + 1, matcher=grammar, ctx=None)
    key = (StructuredOutputOptions.JSON, json.dumps(SCHEMA))
    asked = SimpleNamespace(structured_output_key=key, grammar=held, reasoning_ended=None)
    return SimpleNamespace(use_structured_output=True, structured_output_request=asked)


def test_a_draft_leaves_the_grammar_where_it_is() -> None:
    grammar = matcher(SCHEMA)
    grammar.accept_string('{"name": "Mart')
    manager = SimpleNamespace(_get_reasoner=lambda request: None)
    proposer = proposer_of(RequestGrammar(request_of(grammar), manager), '{"name": "Mart')
    assert proposer.propose({"r": 40})["r"].tokens
    assert grammar.accept_string('ha", "city": "Oslo", "age": 1}')


def test_it_is_not_active_while_the_model_reasons() -> None:
    request = request_of(matcher(SCHEMA))
    manager = SimpleNamespace(_get_reasoner=lambda request: object(), enable_in_reasoning=False)
    grammar = RequestGrammar(request, manager)
    assert not grammar.is_active
    request.structured_output_request.reasoning_ended = True
    assert grammar.is_active
    request.structured_output_request.grammar = Future()  # as while it is compiled
    assert not grammar.is_active


@pytest.mark.parametrize("backend", ["xgrammar", "guidance"])
def test_steps_are_undone(backend: str) -> None:
    state: GrammarState = XgrammarState(matcher(SCHEMA))
    if backend == "guidance":
        tokenizer = LLTokenizer("byte")
        compiled = LLMatcher.grammar_from_json_schema(json.dumps(SCHEMA))
        state = GuidanceState(LLMatcher(tokenizer, compiled), tokenizer)
    assert state.accept_text('{"name": "')
    for _ in range(3):
        assert state.accept_text('x", ')
        assert not state.accept_text('"city": nothing')
        assert state.accept_text('"city": "')
        assert state.forced_text() == ""
        state.rollback(2)
    assert state.accept_text('x", "city": "y", "age": 1')


def test_forced_text_may_end_within_a_character() -> None:
    """The two begin with the same byte."""
    state = XgrammarState(matcher({"enum": ["\u0434\u0430", "\u043d\u0435\u0442"]}))
    assert state.forced_text() == '"'


def test_nothing_is_said_after_the_end(capfd: pytest.CaptureFixture[str]) -> None:
    grammar = matcher({"const": 1})
    assert grammar.accept_string("1")
    assert grammar.accept_token(STOP)
    assert not XgrammarState(grammar).accept_text("a")
    assert capfd.readouterr().err == ""


def test_spaces_at_the_beginning_of_tokens() -> None:
    """Tokenizers as Llama 2's drop one at the beginning of a text."""
    vocabulary = {
        piece: number for number, piece in enumerate(("<unk>", "\u2581", "a", "\u2581a", "b", "\u2581b"))
    }
    fast = Tokenizer(BPE(vocabulary, [("\u2581", "a"), ("\u2581", "b")], unk_token="<unk>"))
    fast.pre_tokenizer, fast.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    tokenizer = EngineTokenizer(SimpleNamespace(tokenizer=SimpleNamespace(backend_tokenizer=fast)))
    assert fast.decode([5, 4]) == "bb"
    assert tokenizer.decode([5, 4]) == " bb"


def test_free_text_is_not_ended() -> None:
    """As with tool calls in mid-text: the grammar begins where a tag does."""
    info = xgrammar.TokenizerInfo([*CHARACTERS, "</s>"], stop_token_ids=[STOP])
    tag = xgrammar.StructuralTagItem(begin="<call>", schema=SCHEMA, end="</call>")
    compiled = xgrammar.GrammarCompiler(info).compile_structural_tag([tag], ["<call>"])
    grammar = xgrammar.GrammarMatcher(compiled)
    proposer = proposer_of(grammar, "Well")
    grammar.accept_string("Well")
    assert proposer.propose({"r": 40}) == {}
    proposer.observe("r", Characters().encode("<call>"))
    grammar.accept_string("<call>")
    assert Characters().decode(proposer.propose({"r": 10})["r"].tokens) == '{"name": "'


def test_it_ends_with_the_text() -> None:
    grammar = matcher(SCHEMA)
    grammar.accept_string('{"name": "a", "city": "b", "age": 1}')
    grammar.accept_token(STOP)
    assert not XgrammarState(grammar).accept_token(STOP)
    assert XgrammarState(grammar).forced_text() == ""
