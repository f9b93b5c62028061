"""Features that were reported broken together with speculation, one by one, on this vLLM and this model:
greedy texts against bare vLLM's."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from slipstream.serving.client import Answer, NoAnswer, Refused, Served
from slipstream.verify.greedy import differences, verdict_of

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
TIGHT = (
    "--max-num-batched-tokens", "64", "--max-num-seqs", "16",
    "--max-model-len", "1024", "--block-size", "32", "--num-gpu-blocks-override", "40",
    "--enforce-eager",
)  # fmt: skip
"""A server with these takes prompts in pieces, and runs out of KV cache when 16 requests write at once; it is
not worth compiling for."""
ROOM = 24  # tokens that are left for the answer near the longest context


@dataclass(frozen=True)
class Case:
    name: str
    fields: Mapping[str, Any]
    reported: str = ""
    """Where, of vllm-project/vllm."""
    at_once: int = 8
    happened: str = ""
    """The counter of the speculative server that must have risen, or the case was not exercised."""
    tight: bool = False
    long: bool = False


CASES = (
    Case("prefix cache hit", {"max_tokens": 32}, "#43559", happened="cached_prompt_tokens"),
    Case("structured output", {"max_tokens": 48, "structured_outputs": {"json": SCHEMA}}, "#15554, #27969"),
    Case("n=3, top-k 1", {"max_tokens": 24, "n": 3, "temperature": 1, "top_k": 1}),
    Case("penalties", {"max_tokens": 32, "repetition_penalty": 1.2, "frequency_penalty": 0.4}, "#18902"),
    Case("min-p", {"max_tokens": 24, "temperature": 1, "min_p": 1.0}),
    Case("logit bias", {"max_tokens": 24, "logit_bias": {"10": 5, "20": -100}}),
    Case("bad words, min length", {"max_tokens": 32, "min_tokens": 16, "bad_words": ["the"]}),
    Case("stop string", {"max_tokens": 48, "stop": ["."]}),
    Case("logprobs", {"max_tokens": 32, "logprobs": 3}, "#34497"),
    Case("end of the context", {"max_tokens": ROOM}, "#42533", at_once=2, long=True),
    Case("prompt in pieces", {"max_tokens": 24}, "#53488", at_once=2, tight=True),
    Case(
        "preemption", {"max_tokens": 96, "ignore_eos": True}, "#41190, #31876", 16, "preemptions", tight=True
    ),
)


@dataclass(frozen=True)
class Found:
    name: str
    reported: str
    verdict: str
    """equal, ties, differs; refused (HTTP 4xx), failed (5xx, or no answer at all); or not exercised."""
    compared: int = 0
    differing: int = 0
    draft_tokens: float = 0.0
    note: str = ""
    gaps: list[float] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def check_known_bad(
    bare: Served,
    speculative: Served,
    prompts: Sequence[Sequence[int]],
    noise: float,
    cases: Sequence[Case] = CASES,
    done: Callable[[str], None] = lambda case: None,
) -> list[Found]:
    found = []
    longest = bare.longest
    for case in cases:
        asked = _long(prompts, longest) if case.long else [*prompts]
        found.append(_check(case, bare, speculative, asked, noise))
        done(case.name)
    return found


def _long(prompts: Sequence[Sequence[int]], longest: int) -> list[list[int]]:
    """Two prompts that leave room for the answer only."""
    return [([*prompt] * longest)[: longest - ROOM] for prompt in prompts[:2]]


def _check(
    case: Case, bare: Served, speculative: Served, prompts: Sequence[Sequence[int]], noise: float
) -> Found:
    requests = [{"prompt": list(prompt), "temperature": 0, **case.fields} for prompt in prompts]
    try:
        reference = _flat(bare.ask([{"logprobs": 2, **request} for request in requests], case.at_once))
    except NoAnswer as error:
        return Found(case.name, case.reported, "not exercised", note=f"bare vLLM: {error}")
    try:
        before = speculative.counters()
        texts = _flat(speculative.ask(requests, case.at_once))
        risen = speculative.risen_since(before)
    except Refused as error:
        return Found(case.name, case.reported, "refused", note=str(error))
    except NoAnswer as error:
        return Found(case.name, case.reported, "failed", note=str(error))
    if case.happened and not risen[case.happened]:
        return Found(case.name, case.reported, "not exercised", note=f"no {case.happened}")
    gaps = [difference.gap for difference in differences(reference, texts)]
    note = "" if risen["draft_tokens"] else "served without drafts"
    return Found(
        case.name, case.reported, verdict_of(gaps, noise), len(texts), len(gaps), risen["draft_tokens"], note,
        gaps,
    )  # fmt: skip


def _flat(answers: Sequence[Sequence[Answer]]) -> list[Answer]:
    return [answer for several in answers for answer in several]
