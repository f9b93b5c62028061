"""Structured output: is the text bare vLLM's, how much of it is forced, and what does drafting it take?

    python benchmarks/grammar.py MODEL --backend xgrammar --out FILE

Some two hundred requests by more than thirty schemas are written by bare vLLM and by Slipstream, with every
draft verified: prompts in chunks, in a KV cache too small for all, some with two answers, some cancelled, and
some alone. The texts are compared token for token, and finished ones must be valid by their schema. Drafts
are then made again over bare vLLM's texts, to count tokens per pass for several sets of proposers and to time
them. Answers are kept beside FILE, and are not written again.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from slipstream.reporting.run_metadata import about_this_run
from slipstream.workloads.loading import load_workload

ARMS = {"bare": "off", "fixed": "fixed:8", "auto": "auto"}
MAX_TOKENS = 64
ALONE = range(0, 200, 16)  # requests that are written once more, one at a time
CANCELLED_AFTER = 12  # tokens
DRAFT_TOKENS = 8
TIMED = (1, 32, 256)  # requests in a step
TIMED_STEPS = 8  # the first ones, before many answers are done
SETS = {
    "ngram": ("ngram",),
    "ngram, suffix": ("ngram", "suffix"),
    "grammar": ("grammar",),
    "ngram, suffix, grammar": ("ngram", "suffix", "grammar"),
}
TEXT, WHOLE, NUMBER, YES = (
    {"type": "string", "maxLength": 24},
    {"type": "integer"},
    {"type": "number"},
    {"type": "boolean"},
)


def of(optional: Sequence[str] = (), **properties: Any) -> dict[str, Any]:
    required = [name for name in properties if name not in optional]
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def many(items: Any, least: int = 1, most: int = 3) -> dict[str, Any]:
    return {"type": "array", "items": items, "minItems": least, "maxItems": most}


OTHERS: dict[str, Any] = {
    "optional": of(("nickname", "email"), name=TEXT, nickname=TEXT, age=WHOLE, email=TEXT),
    "boolean flags": of(active=YES, verified=YES, subscribed=YES, archived=YES),
    "long names": of(
        customer_identification_number=WHOLE, preferred_contact_method={"enum": ["telephone", "letter"]}
    ),
    "enum of likes": of(
        status={"enum": ["in_progress", "in_review", "in_production", "inactive"]}, owner=TEXT
    ),
    "references": {
        "$defs": {"point": of(x=NUMBER, y=NUMBER)},
        **of(start={"$ref": "#/$defs/point"}, end={"$ref": "#/$defs/point"}),
    },
    "choice of objects": {
        "anyOf": [of(kind={"const": "circle"}, radius=NUMBER), of(kind={"const": "square"}, side=NUMBER)]
    },
    "nullable": of(
        title=TEXT, subtitle={"anyOf": [TEXT, {"type": "null"}]}, pages={"anyOf": [WHOLE, {"type": "null"}]}
    ),
    "pattern": of(
        code={"type": "string", "pattern": "^[A-Z]{3}-[0-9]{4}$"}, colour={"enum": ["red", "green", "blue"]}
    ),
    "ranges": of(
        month={"type": "integer", "minimum": 1, "maximum": 12},
        share={"type": "number", "minimum": 0, "maximum": 1},
    ),
    "deep": of(a=of(b=of(c=of(value=WHOLE, unit={"enum": ["kilogram", "metre", "second"]})))),
    "matrix": of(rows=many(many(WHOLE, 2, 2), 2, 3)),
    "list of words": of(keywords=many({"type": "string", "maxLength": 12}, 2, 4)),
    "list of choices": of(permissions=many({"enum": ["read", "write", "execute", "administer"]}, 1, 4)),
    "map": {
        "type": "object",
        "additionalProperties": {"type": "integer"},
        "minProperties": 1,
        "maxProperties": 3,
    },
    "constants": of(
        version={"const": 2}, type={"const": "application/json"}, payload=of(id=WHOLE, text=TEXT)
    ),
}
SUBJECTS = [
    "the town of Arles in the south of France, 52,000 people",
    "a red bicycle of 14 kg that costs 480 euros",
    "Mira Novak, 34, who leads the laboratory in Graz", "the film The Long Harbour (1962), 94 minutes",
    "a storm over the North Sea on 3 March", "invoice 2231 for 4 chairs at 85.00 each",
    "the river Tagus, 1,007 km long",
    "an apple tree planted in 1987",
    "flight XK 204 from Porto to Oslo at 07:45", "a rectangle from (1, 2) to (4.5, 6)",
    "the library's new member Jonas Berg, who likes atlases",
]  # fmt: skip


def requests_of(model: str) -> list[dict[str, Any]]:
    """Return prompts with their schemas; of some two answers are wanted, and some are cancelled."""
    made = []
    for workload in ("json", "tools"):
        names: dict[str, str] = {}
        for request in load_workload(workload, MAX_TOKENS, model).requests:
            schema = request.body["response_format"]["json_schema"]["schema"]
            name = names.setdefault(json.dumps(schema), f"{workload} {len(names) + 1}")
            made.append({"schema": schema, "name": name, "messages": request.messages})
    for name, schema in OTHERS.items():
        for subject in SUBJECTS:
            text = f"As JSON of this schema, describe {subject}.\n{json.dumps(schema)}"
            made.append({"schema": schema, "name": name, "messages": [{"role": "user", "content": text}]})
    for number, request in enumerate(made):
        request["n"] = 2 if number % 10 == 3 else 1
        request["cancelled"] = number % 17 == 5
    return made


# ---- an engine, in a process of its own ----


def engine(arm: str, model: str, backend: str, out: str) -> None:
    """Write all requests, and some of them again alone."""
    import slipstream

    llm = slipstream.LLM(
        model, speculate=ARMS[arm], dtype="float32", enforce_eager=True, max_model_len=1024, max_num_seqs=8,
        max_num_batched_tokens=256, kv_cache_memory_bytes=64 * 1024**2, disable_log_stats=False,
        structured_outputs_config={"backend": backend},
    )  # fmt: skip
    asked = requests_of(model)
    begun = time.perf_counter()
    together = write(llm, asked)
    seconds = time.perf_counter() - begun
    alone = [write(llm, [{**asked[number], "n": 1, "cancelled": False}])["0"] for number in ALONE]
    counted = {
        m.name: m.value for m in llm.get_metrics() if isinstance(getattr(m, "value", None), int | float)
    }
    found = {
        "together": together, "alone": alone, "seconds": seconds,
        "preemptions": counted.get("vllm:num_preemptions"),
        "drafting": slipstream.drafting_report(llm) if arm != "bare" else None,
    }  # fmt: skip
    Path(out).write_text(json.dumps(found))


def write(llm: Any, asked: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the prompts and the answers, as tokens; cancelled ones as far as they had come."""
    from vllm import SamplingParams
    from vllm.sampling_params import StructuredOutputsParams

    tokenizer = llm.get_tokenizer()
    answers: dict[str, Any] = {}
    for number, request in enumerate(asked):
        prompt = tokenizer.apply_chat_template(
            request["messages"], add_generation_prompt=True, tokenize=False
        )
        tokens = tokenizer.encode(prompt, add_special_tokens=False)
        sampling: dict[str, Any] = {"temperature": 0.0}
        if request["n"] > 1:
            sampling = {"temperature": 0.7, "top_k": 1, "n": request["n"]}
        parameters = SamplingParams(
            max_tokens=MAX_TOKENS,
            structured_outputs=StructuredOutputsParams(json=request["schema"]),
            **sampling,
        )
        llm.llm_engine.add_request(str(number), {"prompt_token_ids": tokens}, parameters)
        answers[str(number)] = {"prompt": tokens, "outputs": [], "finished": []}
    while llm.llm_engine.has_unfinished_requests():
        for output in llm.llm_engine.step():
            answer = answers[output.request_id]
            answer["outputs"] = [list(o.token_ids) for o in output.outputs]
            answer["finished"] = [o.finish_reason for o in output.outputs]
            request = asked[int(output.request_id)]
            if request["cancelled"] and not output.finished and len(answer["outputs"][0]) >= CANCELLED_AFTER:
                llm.llm_engine.abort_request([output.request_id])
                answer["finished"] = ["cancelled"]
    return answers


# ---- comparing ----


def compare(
    asked: Sequence[dict[str, Any]], bare: dict[str, Any], ours: dict[str, Any], tokenizer: Any
) -> dict[str, Any]:
    """Count requests whose text differs, and finished answers that are not valid."""
    import jsonschema

    different, invalid, finished = [], [], 0
    for number, answer in bare["together"].items():
        theirs = ours["together"][number]
        if asked[int(number)]["cancelled"]:
            pairs = zip(answer["outputs"], theirs["outputs"], strict=True)
            same = all(a[: min(len(a), len(b))] == b[: min(len(a), len(b))] for a, b in pairs)
        else:
            same = answer["outputs"] == theirs["outputs"]
        if not same:
            different.append(int(number))
        for tokens, why in zip(theirs["outputs"], theirs["finished"], strict=True):
            if why == "stop":
                finished += 1
                try:
                    text = json.loads(tokenizer.decode(tokens, skip_special_tokens=True))
                    jsonschema.validate(text, asked[int(number)]["schema"])
                except (ValueError, jsonschema.ValidationError):
                    invalid.append(int(number))
    alone = [
        number
        for number, a, b in zip(ALONE, bare["alone"], ours["alone"], strict=True)
        if a["outputs"] != b["outputs"]
    ]
    return {
        "requests": len(asked), "different": different, "alone": len(ALONE), "alone_different": alone,
        "finished": finished, "invalid": invalid, "preemptions": ours["preemptions"],
        "cancelled": sum(request["cancelled"] for request in asked), "failures": ours["drafting"]["failures"],
        "faults": ours["drafting"]["faults"], "accepted": ours["drafting"]["accepted_tokens"],
        "draft_tokens": ours["drafting"]["draft_tokens"],
    }  # fmt: skip


# ---- drafts made again ----


class Drafting:
    """A composer, and the texts that it drafts for, one step after the other."""

    def __init__(
        self, names: Sequence[str], compile_: Callable[[Any], Any], tokenizer: Any, vocab_size: int
    ) -> None:
        from slipstream.drafting.composer import Composer
        from slipstream.drafting.grammar import GrammarProposer
        from slipstream.drafting.registry import make_proposer
        from slipstream.engine.core.grammar_state import EngineTokenizer

        options: dict[str, dict[str, Any]] = {
            "ngram": {"min": 2, "max": 5},
            "suffix": {
                "share": False, "max_tokens": 0, "max_age": 0.0, "share_prompts": False,
                "per_matched_token": 1.0,
            },
        }  # fmt: skip
        proposers = [make_proposer(name, options[name]) for name in names if name in options]
        self._grammar = GrammarProposer(EngineTokenizer(SimpleNamespace(tokenizer=tokenizer)))
        if "grammar" in names:
            proposers.append(self._grammar)
        self.composer = Composer(proposers, vocab_size)
        self._compile = compile_
        self._left: dict[str, list[int]] = {}
        self._advance: dict[str, Callable[[int], None]] = {}
        self.passes: dict[str, int] = defaultdict(int)
        self.kinds: dict[str, Counter[str]] = defaultdict(Counter)
        """Of the right tokens of the grammar's drafts, by request."""

    def start(self, name: str, prompt: list[int], answer: list[int], schema: Any) -> None:
        from slipstream.drafting.base import RequestInfo

        grammar, advance = self._compile(schema)
        self.composer.start(RequestInfo(name, len(prompt), grammar=grammar))
        self.composer.observe(name, [*prompt, answer[0]])
        advance(answer[0])
        self._advance[name] = advance
        self._left[name] = answer[1:]
        self.passes[name] = 1

    def step(self) -> float:
        """Draft for all that are not at their end, and write on; return the seconds of drafting."""
        wanted = {name: min(DRAFT_TOKENS, max(len(left) - 1, 1)) for name, left in self._left.items() if left}
        begun = time.perf_counter()
        self.composer.begin_step(wanted)
        offers = self.composer.ask_free(wanted)
        seconds = time.perf_counter() - begun
        for name in wanted:
            left = self._left[name]
            draft = list(offers[name].tokens) if name in offers else []
            right = 0
            while right < min(len(draft), len(left) - 1) and draft[right] == left[right]:
                right += 1
            if name in self._grammar._running:
                self.kinds[name].update(self._grammar._running[name].kinds[:right])
            written, self._left[name] = left[: right + 1], left[right + 1 :]
            self.passes[name] += 1
            begun = time.perf_counter()
            self.composer.observe(name, written)
            seconds += time.perf_counter() - begun
            for token in written:
                self._advance[name](token)
        return seconds

    @property
    def goes_on(self) -> bool:
        return any(self._left.values())


def compiler(tokenizer: Any, vocab_size: int) -> Callable[[Any], Any]:
    """Return what makes of a schema the state of its grammar and a way to move it on; with xgrammar."""
    import xgrammar

    from slipstream.engine.core.grammar_state import XgrammarState

    compiled = xgrammar.GrammarCompiler(
        xgrammar.TokenizerInfo.from_huggingface(tokenizer, vocab_size=vocab_size)
    )

    def make(schema: Any) -> tuple[Any, Callable[[int], Any]]:
        matcher = xgrammar.GrammarMatcher(compiled.compile_json_schema(json.dumps(schema)))

        grammar = SimpleNamespace(
            is_json=True, is_whole=True, is_active=True, state=lambda: XgrammarState(matcher.fork())
        )
        return grammar, matcher.accept_token

    return make


def draft_again(asked: Sequence[dict[str, Any]], bare: dict[str, Any], tokenizer: Any) -> dict[str, Any]:
    vocab_size = len(tokenizer)
    compile_ = compiler(tokenizer, vocab_size)
    texts = [
        (number, asked[int(number)], answer["prompt"], answer["outputs"][0])
        for number, answer in bare["together"].items() if len(answer["outputs"][0]) > 2
    ]  # fmt: skip
    by_set: dict[str, Any] = {}
    by_schema: dict[str, dict[str, float]] = defaultdict(dict)
    for name, proposers in SETS.items():
        drafting = Drafting(proposers, compile_, tokenizer, vocab_size)
        tokens: dict[str, int] = defaultdict(int)
        passes: dict[str, int] = defaultdict(int)
        kinds: dict[str, Counter[str]] = defaultdict(Counter)
        for number, request, prompt, answer in texts:  # one after the other
            drafting.start(number, prompt, answer, request["schema"])
            while drafting.goes_on:
                drafting.step()
            drafting.composer.forget(number)
            tokens[request["name"]] += len(answer)
            passes[request["name"]] += drafting.passes[number]
            kinds[request["name"]].update(drafting.kinds[number])
        assert not drafting.composer.faults.counts, drafting.composer.faults.counts
        by_set[name] = sum(tokens.values()) / sum(passes.values())
        for schema in tokens:
            by_schema[schema][name] = round(tokens[schema] / passes[schema], 3)
            if name == "grammar":
                for kind, count in kinds[schema].items():
                    by_schema[schema][f"share of tokens: {kind}"] = round(count / tokens[schema], 3)
    return {
        "tokens_per_pass": by_set,
        "by_schema": by_schema,
        "microseconds": timed(texts, compile_, tokenizer),
    }


def timed(texts: Sequence[Any], compile_: Any, tokenizer: Any) -> dict[str, Any]:
    """Return microseconds of drafting per step, with and without the grammar, by the number of requests."""
    found: dict[str, Any] = {}
    for count in TIMED:
        found[str(count)] = {}
        for name in ("ngram, suffix", "ngram, suffix, grammar"):
            drafting = Drafting(SETS[name], compile_, tokenizer, len(tokenizer))
            for at in range(count):
                _, request, prompt, answer = texts[at % len(texts)]
                drafting.start(str(at), prompt, answer, request["schema"])
            seconds = []
            while drafting.goes_on and len(seconds) < TIMED_STEPS:
                seconds.append(drafting.step())
            found[str(count)][name] = round(statistics.median(seconds) * 1e6)
    return found


def main() -> None:
    from transformers import AutoTokenizer

    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--backend", default="xgrammar")
    parser.add_argument("--arms", default="fixed,auto")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    asked = requests_of(options.model)
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    written: dict[str, Any] = {}
    for arm in ("bare", *options.arms.split(",")):
        file = options.out.with_suffix(f".{arm}.answers")
        if not file.exists():
            command = [sys.executable, __file__, "--engine", arm, options.model, options.backend, str(file)]
            subprocess.run(command, check=True, env={**os.environ, "VLLM_ENABLE_V1_MULTIPROCESSING": "0"})
        written[arm] = json.loads(file.read_text())
    found: dict[str, Any] = {
        "about": about_this_run(), "backend": options.backend, "schemas": len({r["name"] for r in asked}),
        "equal": {
            arm: compare(asked, written["bare"], answers, tokenizer)
            for arm, answers in written.items() if arm != "bare"
        },
    }  # fmt: skip
    if options.backend == "xgrammar":
        found |= draft_again(asked, written["bare"], tokenizer)
    options.out.write_text(json.dumps(found, indent=1) + "\n")
    sys.stderr.write(json.dumps({k: v for k, v in found.items() if k != "about"}, indent=1) + "\n")


if __name__ == "__main__":
    if sys.argv[1] == "--engine":
        engine(*sys.argv[2:])
    else:
        main()
