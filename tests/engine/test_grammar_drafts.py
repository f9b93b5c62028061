"""Drafts that grammars force, in a real engine: the text is bare vLLM's, with both backends that say what is
forced, and hardly any of the forced tokens is rejected."""

import json
from typing import Any

import pytest
from vllm import LLM

import slipstream
from engine.runs import sampling_of

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "color": {"enum": ["red", "green", "greenish", "blue"]},
    },
    "required": ["name", "age", "color"],
    "additionalProperties": False,
}
TOOL_CALL = {
    "type": "object",
    "properties": {
        "tool": {"const": "get_weather"},
        "arguments": {
            "type": "object",
            "properties": {
                "location": {"type": "string", "maxLength": 16},
                "unit": {"enum": ["celsius", "fahrenheit"]},
            },
            "required": ["location", "unit"],
            "additionalProperties": False,
        },
    },
    "required": ["tool", "arguments"],
    "additionalProperties": False,
}
MANY = {"type": "array", "items": PERSON, "minItems": 3, "maxItems": 3}
GRAMMARS: dict[str, dict[str, Any]] = {
    "object": {"json": PERSON},
    "tool call": {"json": TOOL_CALL},
    "array": {"json": MANY},
    "regex": {"regex": r"(ab|cd)-[0-9]{3}-END OF THE LINE"},
    "choice": {"choice": ["a very long choice indeed", "another quite long choice"]},
}
PROMPTS = ["Ann is 31 and likes red. As JSON: ", "The weather in Oslo, in celsius: ", "Three people: "]
PARAMETERS = [
    {"max_tokens": 120, "temperature": 0.0, "structured_outputs": grammar}
    for grammar in GRAMMARS.values()
    for _ in PROMPTS
]
OPTIONS: dict[str, Any] = {
    "dtype": "float32", "enforce_eager": True, "max_model_len": 512, "max_num_seqs": 8,
    "kv_cache_memory_bytes": 256 * 1024**2,
}  # fmt: skip


def write(llm: LLM) -> list[list[int]]:
    samplings = [sampling_of(parameters) for parameters in PARAMETERS]
    outputs = llm.generate(PROMPTS * len(GRAMMARS), samplings, use_tqdm=False)
    return [list(output.outputs[0].token_ids) for output in outputs]


@pytest.fixture(scope="module", params=["xgrammar", "guidance"])
def texts(request: pytest.FixtureRequest, smollm2: str) -> tuple[list[Any], list[Any], dict[str, Any], Any]:
    backend: dict[str, Any] = {"structured_outputs_config": {"backend": request.param}}
    bare = write(slipstream.LLM(smollm2, speculate="off", **OPTIONS, **backend))
    fixed = {"mode": "fixed", "num_draft_tokens": 8, "ngram": {}, "suffix": {}}
    llm = slipstream.LLM(smollm2, speculate=fixed, **OPTIONS, **backend)
    return bare, write(llm), slipstream.drafting_report(llm), llm.get_tokenizer()


def test_the_text_is_bare_vllms(texts: tuple[list[Any], list[Any], dict[str, Any], Any]) -> None:
    bare, ours, report, tokenizer = texts
    assert ours == bare
    assert report["failures"] == 0
    assert not report["faults"]
    for tokens in ours[: 2 * len(PROMPTS)]:
        json.loads(tokenizer.decode(tokens, skip_special_tokens=True))


def test_most_of_what_is_drafted_is_accepted(texts: tuple[list[Any], list[Any], dict[str, Any], Any]) -> None:
    _, ours, report, _ = texts
    drafted, accepted = (report[what]["grammar"] for what in ("draft_tokens", "accepted_tokens"))
    assert accepted > 0.6 * drafted
    assert accepted > 0.3 * sum(map(len, ours))
