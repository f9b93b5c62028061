"""What the target makes of the texts: its last hidden state at every token, in shards on disk.

By transformers rather than vLLM's `extract_hidden_states`: that one runs in place of speculation, wants a KV
connector, and writes what transformers gives in one call. The last hidden state (after the final norm) is all
that is kept: it is what the engine hands to a head, and times the output matrix it is the target's whole
distribution, which would take the place of a hundred hidden states if it were stored.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file

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


def write_features(folder: Path, model: Callable[[], Any], max_gib: float, done: Progress) -> None:
    """Write shards for the portions of texts that have none; `model` is called if one is missing."""
    read: Any = None
    for number, texts in enumerate(read_responses(folder)):
        file = _file(folder, number)
        if not file.exists():
            if sum(f.stat().st_size for f in folder.glob("features-*")) > max_gib * GIB:
                return
            read = read or model().get_decoder()
            _write(file, read, texts)
        done(len(texts))


@torch.inference_mode()
def _write(file: Path, read: Any, texts: Sequence[Response]) -> None:
    shard = {}
    for batch in batches_of([len(text.tokens) for text in texts], BATCH_TOKENS):
        longest = max(len(texts[i].tokens) for i in batch)
        tokens = torch.zeros(len(batch), padded(longest), dtype=torch.long)
        for row, i in enumerate(batch):
            tokens[row, : len(texts[i].tokens)] = torch.tensor(texts[i].tokens)
        hidden = read(input_ids=tokens, use_cache=False).last_hidden_state  # padded at the end: causal
        for row, i in enumerate(batch):
            shard[str(i)] = hidden[row, : len(texts[i].tokens)].to(torch.bfloat16).clone()
    draft = file.with_suffix(".part")
    save_file(shard, draft)
    draft.rename(file)


def read_examples(folder: Path) -> Iterator[Example]:
    for number, texts in enumerate(read_responses(folder)):
        file = _file(folder, number)
        if not file.exists():
            return
        with safe_open(file, "pt") as shard:
            for i, text in enumerate(texts):
                yield Example(
                    torch.tensor(text.tokens), shard.get_tensor(str(i)), text.prompt_length, text.workload,
                    text.held_out, text.temperature,
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


def _file(folder: Path, portion: int) -> Path:
    return folder / f"features-{portion:05}.safetensors"
