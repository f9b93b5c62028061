"""What the target makes of the texts: its hidden states at every token, in shards on disk.

They are computed with transformers and not with vLLM's `extract_hidden_states`, which runs in place of
speculation, needs a KV connector, and writes what transformers returns from one call. The last hidden state
(after the final norm) is kept for all methods: it is what the engine hands to most heads, and times the
output matrix it is the target's whole distribution, which would take the place of a hundred hidden states if
it were stored. For EAGLE-3 the states before some of the layers are kept too, in files of their own, so that
the other methods do not read them.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from slipstream.training.responses import Progress, Response, read_responses

BATCH_TOKENS = 4096
GIB = 1 << 30
LENGTHS = 64
"""Texts are padded to a multiple of this. On a CPU every new shape of a matrix has its kernel compiled, which
takes longer than to run it."""


@dataclass(frozen=True)
class Example:
    tokens: torch.Tensor
    """[length]"""
    hidden: torch.Tensor
    """[length, hidden size]; of its last token nothing is ever drafted."""
    prompt_length: int
    workload: str
    held_out: bool
    temperature: float
    layers: torch.Tensor | None = None
    """[length, layers * hidden size]: the states before some layers, side by side, for methods that read
    them."""


@dataclass(frozen=True)
class Target:
    """What of the target is needed once its hidden states are there."""

    config: Any
    embedding: torch.Tensor
    """[vocabulary, hidden size]"""
    head: torch.Tensor
    """[vocabulary, hidden size]"""
    num_parameters: int

    @property
    def hidden_size(self) -> int:
        return int(self.embedding.shape[1])


def load_target(name: str) -> tuple[Any, Target]:
    """Return the whole model in its own dtype, and the parts that stay."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(name, dtype="auto").eval()
    embedding = model.get_input_embeddings().weight.detach()
    head = model.get_output_embeddings().weight.detach()
    return model, Target(model.config, embedding, head, sum(p.numel() for p in model.parameters()))


def write_features(
    folder: Path, model: Callable[[], Any], max_gib: float, done: Progress, layers: Sequence[int] = ()
) -> None:
    """Write shards for the portions of texts that have none; `model` is called if one is missing. With
    `layers` also the states before those. The limit is for the files that are read together; the first
    portion is written whatever it takes."""
    read: Any = None
    size = tokens = 0
    for number, texts in enumerate(read_responses(folder)):
        files = _files(folder, number, layers)
        known, tokens = tokens, tokens + sum(len(text.tokens) for text in texts)
        if not all(file.exists() for file in files):
            if known and size / known * tokens > max_gib * GIB:
                return
            read = read or model().get_decoder()
            _write(files, read, texts, layers)
        size += sum(file.stat().st_size for file in files)
        done(len(texts))


@torch.inference_mode()
def _write(files: Sequence[Path], read: Any, texts: Sequence[Response], layers: Sequence[int]) -> None:
    """Write those of a portion's files that are missing."""
    shards: list[dict[str, torch.Tensor]] = [{} for _ in files]
    for batch in batches_of([len(text.tokens) for text in texts], BATCH_TOKENS):
        longest = max(len(texts[i].tokens) for i in batch)
        tokens = torch.zeros(len(batch), padded(longest), dtype=torch.long)
        for row, i in enumerate(batch):
            tokens[row, : len(texts[i].tokens)] = torch.tensor(texts[i].tokens)
        # Padded at the end: causal.
        output = read(input_ids=tokens, use_cache=False, output_hidden_states=bool(layers))
        states = [output.last_hidden_state]
        if layers:
            states.append(states_before(layers, output))
        for row, i in enumerate(batch):
            for shard, state in zip(shards, states, strict=True):
                shard[str(i)] = state[row, : len(texts[i].tokens)].to(torch.bfloat16).clone()
    for file, shard in zip(files, shards, strict=True):
        if not file.exists():
            draft = file.with_suffix(".part")
            save_file(shard, draft)
            draft.rename(file)


def states_before(layers: Sequence[int], output: Any) -> torch.Tensor:
    """Return the states before these layers side by side [texts, length, layers * hidden size], of what a
    decoder of transformers returns with `output_hidden_states`. It counts them as vLLM does: state 0 is the
    embedding, state i comes out of the first i layers. (Only the last one is another: it is normed.)"""
    return torch.cat([output.hidden_states[layer] for layer in layers], dim=-1)


def read_examples(folder: Path, layers: Sequence[int] = ()) -> Iterator[Example]:
    """Yield the texts with their states, up to the first portion of which states are missing."""
    for number, texts in enumerate(read_responses(folder)):
        files = _files(folder, number, layers)
        if not all(file.exists() for file in files):
            return
        last, *others = (load_file(file) for file in files)
        for i, text in enumerate(texts):
            yield Example(
                torch.tensor(text.tokens), last[str(i)], text.prompt_length, text.workload, text.held_out,
                text.temperature, others[0][str(i)] if others else None,
            )  # fmt: skip


def padded(count: int, multiple: int = LENGTHS) -> int:
    return -(-count // multiple) * multiple


def batches_of(lengths: Sequence[int], most: int) -> list[list[int]]:
    """Return indices in groups of like length, of at most `most` tokens each, padding counted."""
    groups: list[list[int]] = []
    for i in sorted(range(len(lengths)), key=lambda i: lengths[i]):
        if groups and (len(groups[-1]) + 1) * padded(lengths[i]) <= most:
            groups[-1].append(i)
        else:
            groups.append([i])
    return groups


def _files(folder: Path, portion: int, layers: Sequence[int]) -> list[Path]:
    """Return the files of a portion: the last states, and those before these layers if there are any."""
    names = ["features"] + (["-".join(["layers", *map(str, layers)])] if layers else [])
    return [folder / f"{name}-{portion:05}.safetensors" for name in names]
