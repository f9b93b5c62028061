"""Drafts that grammars force, in a real engine: the text is bare vLLM's, with both backends that say what is
forced, and most of what is drafted is accepted. Sampled text follows the law that the model's own logits
(transformers) and the grammar's mask give.
"""

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import xgrammar
from scipy.stats import chisquare
from transformers import AutoModelForCausalLM, AutoTokenizer
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
TAG = {"begin": "<call>", "schema": TOOL_CALL, "end": "</call>"}
MANY = {"type": "array", "items": PERSON, "minItems": 3, "maxItems": 3}
GRAMMARS: dict[str, dict[str, Any]] = {
    "object": {"json": PERSON},
    "tool call": {"json": TOOL_CALL},
    "array": {"json": MANY},
    "regex": {"regex": r"(ab|cd)-[0-9]{3}-END OF THE LINE"},
    "choice": {"choice": ["a very long choice indeed", "another quite long choice"]},
    "tag": {"structural_tag": json.dumps({"structures": [TAG], "triggers": ["<call>"]})},
}
CALL = '<call>{"tool": "get_weather", "arguments": {"location": "%s", "unit": "celsius"}}</call>\n'
PROMPTS = [
    "Ann is 31 and likes red. As JSON: ",
    "The weather in Oslo, Rome, Bern and Graz:\n" + CALL % "Oslo" + CALL % "Rome",
    "Three people: ",
]
PARAMETERS = [
    {"max_tokens": 80, "temperature": 0.0, "structured_outputs": grammar}
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


class Written(NamedTuple):
    backend: str
    bare: list[list[int]]
    ours: list[list[int]]
    report: dict[str, Any]
    texts: list[str]


@pytest.fixture(scope="module", params=["xgrammar", "guidance"])
def written(request: pytest.FixtureRequest, smollm2: str) -> Written:
    backend: dict[str, Any] = {"structured_outputs_config": {"backend": request.param}}
    bare = write(slipstream.LLM(smollm2, speculate="off", **OPTIONS, **backend))
    fixed = {"mode": "fixed", "num_draft_tokens": 8}
    llm = slipstream.LLM(smollm2, speculate=fixed, **OPTIONS, **backend)
    ours, tokenizer = write(llm), llm.get_tokenizer()
    texts = [tokenizer.decode(tokens, skip_special_tokens=True) for tokens in ours]
    return Written(request.param, bare, ours, slipstream.drafting_report(llm), texts)


def test_the_text_is_bare_vllms(written: Written) -> None:
    assert written.ours == written.bare
    assert written.report["failures"] == 0
    assert not written.report["faults"]
    for text in written.texts[: 2 * len(PROMPTS)]:
        json.loads(text)


def test_a_grammar_may_begin_in_mid_text(written: Written) -> None:
    text = written.texts[-2]
    if written.backend == "guidance":
        assert not text  # in vLLM 0.32 such texts end at once
        return
    call = re.search("<call>(.*?)</call>", text)
    assert call is not None
    assert json.loads(call[1]).keys() == {"tool", "arguments"}


def test_most_of_what_is_drafted_is_accepted(written: Written) -> None:
    drafted, accepted = (written.report[what]["grammar"] for what in ("draft_tokens", "accepted_tokens"))
    assert accepted > 0.25 * drafted  # all of every draft is verified
    assert accepted > 0.3 * sum(map(len, written.ours))


def test_nothing_is_forced_while_the_model_reasons(smollm2: str) -> None:
    parser = str(Path(__file__).parent / "first_line_parser.py")
    reasoning: dict[str, Any] = {"reasoning_parser": "first_line", "reasoning_parser_plugin": parser}
    sampling = sampling_of({"max_tokens": 100, "temperature": 0.0, "structured_outputs": {"json": PERSON}})
    prompts = ["Ann is 31 years old and likes the color red.", "Let us think about a person first."]
    found = []
    for speculate in ("off", {"mode": "fixed", "num_draft_tokens": 8}):
        llm = slipstream.LLM(smollm2, speculate=speculate, structured_outputs_config=reasoning, **OPTIONS)
        found.append([output.outputs[0].text for output in llm.generate(prompts, sampling, use_tqdm=False)])
    bare, ours = found
    assert ours == bare
    for text in ours:
        first, _, rest = text.partition("\n")
        assert first
        assert json.loads(rest).keys() == PERSON["properties"].keys()  # type: ignore[attr-defined]
    report = slipstream.drafting_report(llm)
    assert report["accepted_tokens"]["grammar"] > 10
    assert not report["faults"]


DRAWS = 500
SIGNIFICANT = 1e-4  # twice in a row: a false alarm in one of 1e8 runs
RARE = 1e-2  # sequences as rare as this are counted together
REGEX = r" (heads|tails), then (heads|tails)"
SENTENCE = "The coin was tossed twice. First it showed"


def law(model: str) -> dict[tuple[int, ...], float]:
    """The probability of every sequence of tokens that the regex allows and that is not rare."""
    tokenizer = AutoTokenizer.from_pretrained(model)
    network = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    info = xgrammar.TokenizerInfo.from_huggingface(tokenizer, vocab_size=network.config.vocab_size)
    grammar = xgrammar.GrammarCompiler(info).compile_regex(REGEX)
    mask = xgrammar.allocate_token_bitmask(1, network.config.vocab_size)
    found: dict[tuple[int, ...], float] = {}

    def go_on(written: list[int], probability: float) -> None:
        matcher = xgrammar.GrammarMatcher(grammar)
        for token in written:
            assert matcher.accept_token(token)
        matcher.fill_next_token_bitmask(mask)
        with torch.inference_mode():
            logits = network(torch.tensor([[*tokenizer.encode(SENTENCE), *written]])).logits[0, -1]
        xgrammar.apply_token_bitmask_inplace(logits.unsqueeze(0), mask)
        shares = logits.softmax(-1)
        for token in shares.nonzero()[:, 0].tolist():
            share = probability * float(shares[token])
            if share <= RARE:
                continue
            if token == tokenizer.eos_token_id:
                found[tuple(written)] = share
            else:
                go_on([*written, token], share)

    go_on([], 1.0)
    return found


def test_sampled_text_follows_the_law(smollm2: str) -> None:
    common = law(smollm2)
    assert len(common) > 4
    assert sum(common.values()) > 0.5
    eos = AutoTokenizer.from_pretrained(smollm2).eos_token_id
    options = {**OPTIONS, "max_num_seqs": 128}
    llm = slipstream.LLM(
        smollm2, speculate={"mode": "fixed", "num_draft_tokens": 4, "grammar": True}, **options
    )
    found = []
    for _ in range(2):  # the second only if the first looks bad, as one in ten thousand does by chance
        sampling = sampling_of({"temperature": 1.0, "max_tokens": 24, "structured_outputs": {"regex": REGEX}})
        outputs = llm.generate([SENTENCE] * DRAWS, sampling, use_tqdm=False)
        written = [tuple(t for t in output.outputs[0].token_ids if t != eos) for output in outputs]
        counts = Counter(written)
        observed = [counts[sequence] for sequence in common]
        shares = [*common.values(), 1 - sum(common.values())]
        observed.append(DRAWS - sum(observed))
        found.append(float(chisquare(observed, DRAWS * np.array(shares)).pvalue))
        if found[-1] > SIGNIFICANT:
            break
    else:
        raise AssertionError(f"twice not the law: {found}")
    report = slipstream.drafting_report(llm)
    drafted, accepted = (report[what]["grammar"] for what in ("draft_tokens", "accepted_tokens"))
    assert DRAWS < accepted < drafted
