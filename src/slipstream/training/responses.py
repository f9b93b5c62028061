"""The texts to learn from: prompts, and the answers that the target itself gives to them.

A drafter has to say what the target would say, so it learns from the target's own words, sampled as they will
be served. Portions of texts are written one by one; a run that is killed goes on after the last whole one.
"""

import json
import logging
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from slipstream.errors import ConfigError
from slipstream.training.recipe import Data

logger = logging.getLogger("slipstream")

MOST_HELD_OUT = 96  # prompts

Progress = Callable[[int], None]
Named = tuple[str, list[int]]
"""A workload's name and the tokens of one of its prompts."""


@dataclass(frozen=True)
class Prompt:
    tokens: list[int]
    workload: str
    held_out: bool
    temperature: float


@dataclass(frozen=True)
class Response:
    tokens: list[int]
    """Prompt and answer."""
    prompt_length: int
    workload: str
    held_out: bool
    temperature: float


def read_prompts(data: Data, target: str, seed: int) -> list[Prompt]:
    """Return as many as texts are wanted, in a fixed order with the workloads mixed. A prompt that comes
    again is sampled anew, so what is greedy comes once; prompts that are held out come once, at each
    temperature."""
    read = _reader(data, target, random.Random(seed))
    training, held_out = read(data.prompts), read(data.held_out_prompts)
    if not held_out:
        training, held_out = _apart(training, data.held_out)
    if not training:
        raise ConfigError(
            f"no prompt of {', '.join(data.prompts)} has at most {data.max_prompt_tokens} tokens, but for "
            "those held out; give more prompts, or raise data.max_prompt_tokens"
        )
    chosen = [
        Prompt(tokens, name, True, temperature)
        for name, tokens in held_out[:MOST_HELD_OUT]
        for temperature in data.temperatures
    ]
    for number in range(max(data.texts - len(chosen), 1)):
        again, place = divmod(number, len(training))
        temperatures = [t for t in data.temperatures if t > 0] if again else data.temperatures
        if not temperatures:
            break  # all is greedy, and has been answered
        name, tokens = training[place]
        chosen.append(Prompt(tokens, name, False, temperatures[number % len(temperatures)]))
    return chosen


def _reader(data: Data, target: str, chance: random.Random) -> Callable[[Sequence[str]], list[Named]]:
    from slipstream.workloads.loading import load_workloads

    tokenize = _tokenizer(target)

    def read(workloads: Sequence[str]) -> list[Named]:
        prompts: list[Named] = []
        for workload in load_workloads(workloads, data.max_tokens, target):
            several = [tokenize(request.messages, request.prompt) for request in workload.requests]
            short = [tokens for tokens in several if len(tokens) <= data.max_prompt_tokens]
            if len(short) < len(several):
                logger.warning(
                    "%s: %d of %d prompts have more than %d tokens and are left out; a recipe with a larger "
                    "data.max_prompt_tokens takes them",
                    workload.name, len(several) - len(short), len(several), data.max_prompt_tokens,
                )  # fmt: skip
            several = [list(tokens) for tokens in dict.fromkeys(map(tuple, short))]  # each once
            chance.shuffle(several)
            prompts += [(workload.name, tokens) for tokens in several]
        return _evenly(prompts)

    return read


def _apart(prompts: list[Named], share: float) -> tuple[list[Named], list[Named]]:
    """Return (the others, this share of them), each with the same mixture of workloads."""
    every = max(round(1 / share), 2)
    return (
        [prompt for i, prompt in enumerate(prompts) if i % every],
        [prompt for i, prompt in enumerate(prompts) if i % every == 0],
    )


def _evenly(prompts: list[Named]) -> list[Named]:
    """Return each workload spread over the whole, so that any first part of it has the same mixture."""
    counts: dict[str, int] = {}
    sizes: dict[str, int] = {}
    for name, _ in prompts:
        sizes[name] = sizes.get(name, 0) + 1
    placed = []
    for name, tokens in prompts:
        counts[name] = counts.get(name, 0) + 1
        placed.append((counts[name] / sizes[name], name, tokens))
    return [(name, tokens) for _, name, tokens in sorted(placed)]


def _tokenizer(target: str) -> Callable[[list[dict[str, Any]] | None, Any], list[int]]:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(target)

    def tokenize(messages: list[dict[str, Any]] | None, prompt: Any) -> list[int]:
        if isinstance(prompt, list):
            return prompt
        if messages is None:
            return list(tokenizer(prompt)["input_ids"])
        if tokenizer.chat_template is None:
            return list(tokenizer("\n\n".join(str(m["content"]) for m in messages))["input_ids"])
        return list(tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False))

    return tokenize


def write_texts(
    folder: Path, prompts: Sequence[Prompt], data: Data, target: str, engine: dict[str, Any], done: Progress
) -> None:
    """Answer what has not been answered yet."""
    folder.mkdir(parents=True, exist_ok=True)
    portions = [prompts[i : i + data.portion] for i in range(0, len(prompts), data.portion)]
    missing = [i for i in range(len(portions)) if not _file(folder, i).exists()]
    done(sum(len(portion) for i, portion in enumerate(portions) if i not in missing))
    if not missing:
        return
    with _answering(target, data, engine) as answer:
        for i in missing:
            _write(_file(folder, i), answer(portions[i]))
            done(len(portions[i]))


@contextmanager
def _answering(
    target: str, data: Data, engine: dict[str, Any]
) -> Iterator[Callable[[Sequence[Prompt]], list[Response]]]:
    """Keep the target running in vLLM for as long as it is needed."""
    import slipstream

    llm = slipstream.LLM(
        target,
        speculate="off",
        max_model_len=data.max_prompt_tokens + data.max_tokens,
        max_num_seqs=min(data.portion, 256),
        **engine,
    )

    def answer(prompts: Sequence[Prompt]) -> list[Response]:
        # No seeds: vLLM 0.32 on CPU dies of a seeded request whose prompt comes in pieces.
        sampling = [
            slipstream.SamplingParams(
                temperature=prompt.temperature,
                top_p=data.top_p if prompt.temperature else 1.0,
                max_tokens=data.max_tokens,
                detokenize=False,
            )
            for prompt in prompts
        ]
        asked = [{"prompt_token_ids": prompt.tokens} for prompt in prompts]
        answers = llm.generate(asked, sampling, use_tqdm=False)
        return [
            Response(
                [*p.tokens, *a.outputs[0].token_ids], len(p.tokens), p.workload, p.held_out, p.temperature
            )
            for p, a in zip(prompts, answers, strict=True)
        ]

    try:
        yield answer
    finally:
        llm.llm_engine.engine_core.shutdown()


def read_responses(folder: Path) -> Iterator[list[Response]]:
    """Yield the portions in the order they were written."""
    for file in sorted(folder.glob("texts-*.jsonl")):
        yield [Response(**json.loads(line)) for line in file.read_text().splitlines()]


def _file(folder: Path, portion: int) -> Path:
    return folder / f"texts-{portion:05}.jsonl"


def _write(file: Path, texts: Sequence[Response]) -> None:
    """Write the file whole or not at all."""
    draft = file.with_suffix(".part")
    draft.write_text("".join(json.dumps(asdict(text)) + "\n" for text in texts))
    draft.rename(file)
