"""Plain next-token training of a small model on a text file, before it is distilled: for text of a kind that
the small model has seen little of."""

import json
import time
from collections.abc import Callable, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from torch.nn import functional

from slipstream.errors import ConfigError
from slipstream.training.draft_model import DraftModel
from slipstream.training.recipe import SmallModel, Training
from slipstream.training.trainer import has_fast_bfloat16, learning_rate_share, looked_at, write_whole

SEQUENCE = 256  # tokens that are read together
MOST_TOKENS = 8_000_000  # of a corpus
PORTION = 1 << 16  # characters of a text file that are tokenized together, and the rest of their last line

Tokenize = Callable[[str], list[int]]


def pretrain_once(drafter: DraftModel, small: SmallModel, training: Training, folder: Path) -> dict[str, Any]:
    """Pre-train the drafter on the corpus of its recipe, or take what an earlier run made of it. Return
    {tokens, minutes, loss}."""
    file = folder / "pretrained.pt"
    if not file.exists():
        assert small.corpus is not None
        sequences = read_corpus(Path(small.corpus), _tokenizer(str(drafter.target_config.name_or_path)))
        about = pretrain(drafter, sequences, small.corpus_minutes, training)
        write_whole(file, {"about": about, "model": drafter.state_dict()})
    content = torch.load(file, weights_only=True, map_location="cpu")
    drafter.load_state_dict(content["model"])
    made: dict[str, Any] = content["about"]
    return made


def read_corpus(file: Path, tokenize: Tokenize) -> torch.Tensor:
    """Return [sequences, SEQUENCE]: the beginning of a text file, or of the texts of JSON lines."""
    tokens = chain.from_iterable(map(tokenize, _texts(file)))
    known = torch.tensor(list(islice(tokens, MOST_TOKENS)), dtype=torch.long)
    sequences = len(known) // SEQUENCE
    if not sequences:
        raise ConfigError(f"--corpus {file}: it has {len(known)} tokens; give at least {SEQUENCE}")
    return known[: sequences * SEQUENCE].view(sequences, SEQUENCE)


def _texts(file: Path) -> Iterator[str]:
    with file.open(encoding="utf-8", errors="replace") as stream:
        if file.suffix not in (".jsonl", ".json"):
            while portion := stream.read(PORTION) + stream.readline(PORTION):
                yield portion
            return
        for number, line in enumerate(stream, start=1):
            try:
                yield str(json.loads(line)["text"])
            except (ValueError, KeyError, TypeError):
                raise ConfigError(
                    f'--corpus {file}: line {number} is not a JSON object with a text: {{"text": "..."}}'
                ) from None


def _tokenizer(target: str) -> Tokenize:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(target)
    end = [] if tokenizer.eos_token_id is None else [int(tokenizer.eos_token_id)]
    return lambda text: [*tokenizer(text, add_special_tokens=False)["input_ids"], *end]


def pretrain(
    drafter: DraftModel, sequences: torch.Tensor, minutes: float, training: Training
) -> dict[str, Any]:
    """Train on the sequences, once and for so many minutes at most. Return {tokens, minutes, loss}, the loss
    over the last tenth of the batches."""
    device = PartialState().device
    drafter.to(device)
    rate = training.learning_rate or drafter.learning_rate
    learnt = [weight for weight in drafter.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(learnt, rate, betas=(0.9, 0.95), weight_decay=0.0)
    order = torch.randperm(len(sequences), generator=torch.Generator().manual_seed(training.seed))
    batches = order.split(max(training.batch_tokens // SEQUENCE, 1))
    losses: list[float] = []
    begun, tokens = time.monotonic(), 0
    for number, rows in enumerate(batches):
        progress = max(number / len(batches), (time.monotonic() - begun) / 60 / minutes)
        if progress >= 1:
            break
        for group in optimizer.param_groups:
            group["lr"] = rate * learning_rate_share(progress, training.warmup)
        batch = sequences[rows].to(device)
        with torch.autocast(device.type, torch.bfloat16, enabled=has_fast_bfloat16()):
            loss = next_token_loss(drafter, batch, number)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(learnt, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
        tokens += batch.numel()
    last = losses[-max(len(losses) // 10, 1) :]
    return {
        "tokens": tokens, "minutes": (time.monotonic() - begun) / 60, "loss": sum(last) / len(last),
    }  # fmt: skip


def next_token_loss(drafter: DraftModel, tokens: torch.Tensor, seed: int) -> torch.Tensor:
    """Return cross-entropy of every next token of [texts, length], among the tokens that distillation
    compares too."""
    among = looked_at(drafter, tokens, seed)
    place = torch.full((len(drafter.head),), -1, device=tokens.device)
    place[among] = torch.arange(len(among), device=tokens.device)
    logits = drafter.read(tokens)[:, :-1] @ drafter.output_matrix[among].T
    return functional.cross_entropy(
        logits.flatten(0, 1).float(), place[tokens[:, 1:]].flatten(), ignore_index=-1
    )
