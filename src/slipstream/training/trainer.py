"""The loop: batches, loss, evaluation, early stop; killed at any time, it goes on where it was."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator, DistributedDataParallelKwargs
from torch.nn import functional
from torch.nn.utils import parametrize

from slipstream.training.drafter import Batch, TrainableDrafter
from slipstream.training.evaluate import alone, guess
from slipstream.training.features import Example, batches_of, padded
from slipstream.training.recipe import Training

LOOKED_AT = 4096
"""Tokens that the loss is over: the batch's own, then the common ones, then others by chance, to learn when
not to draft them."""
PLACES = 128  # their number is a multiple of this: see `features.LENGTHS`
LATER = 0.8  # what a draft token counts for, relative to the one before it
WHOLE_TEXTS = 0.1
"""The first part of training is on the prompts too, as the MLP speculator's is on text; then on answers."""
ALL_TOKENS = 0.75
"""From here on a recurrent drafter learns all its draft tokens; before, one after the other is added."""
SAVED_EVERY = 60.0  # seconds


@dataclass
class Point:
    """An evaluation."""

    step: int
    minutes: float
    loss: float
    length: float
    survival: list[float]
    speedup: float
    """Predicted, for one request at a time."""


@dataclass
class State:
    step: int = 0
    seconds: float = 0.0
    history: list[Point] = field(default_factory=list)

    @property
    def best(self) -> int | None:
        """Return which evaluation was the best."""
        lengths = [point.length for point in self.history]
        return lengths.index(max(lengths)) if lengths else None


class Trainer:
    def __init__(
        self,
        drafter: TrainableDrafter,
        examples: Sequence[Example],
        held_out: Sequence[Example],
        training: Training,
        folder: Path,
        told: Callable[[State, float], None] = lambda state, progress: None,
    ) -> None:
        self._examples, self._held_out = examples, held_out
        self._training = training
        self._file, self._best_file = folder / "checkpoint.pt", folder / "best.pt"
        self._told = told
        # Of a recurrent drafter not every weight is in use from the start.
        several = DistributedDataParallelKwargs(find_unused_parameters=True)
        precision = "bf16" if has_fast_bfloat16() else "no"
        self._accelerator = Accelerator(mixed_precision=precision, kwargs_handlers=[several])
        self._batches = batches_of([len(e.tokens) for e in examples], training.batch_tokens)
        share = math.ceil(len(self._batches) / self._accelerator.num_processes)
        self._steps = max(round(training.epochs * share), 1)
        self.state = State()
        learnt = [p for p in drafter.parameters() if p.requires_grad]
        self._rate = training.learning_rate or drafter.learning_rate
        optimizer = torch.optim.AdamW(learnt, self._rate, betas=(0.9, 0.95), weight_decay=0.0)
        self._drafter = drafter
        self._model, self._optimizer = self._accelerator.prepare(drafter, optimizer)
        self._resume()

    @property
    def progress(self) -> float:
        """Return 0 to 1, by steps or by time, whichever is further."""
        return max(self.state.step / self._steps, self.state.seconds / 60 / self._training.budget_minutes)

    @property
    def epochs(self) -> float:
        """Return how often all examples have been seen."""
        return self.state.step * self._accelerator.num_processes / len(self._batches)

    def run(self) -> State:
        """Train to the end; the drafter is then the best one seen."""
        torch.manual_seed(self._training.seed)
        saved = time.monotonic()
        losses: list[float] = []
        due = len(self.state.history) + 1
        while self.progress < 1 and not self._gives_up():
            begun = time.monotonic()
            losses.append(self._step())
            self.state.step += 1
            self.state.seconds += time.monotonic() - begun
            self._told(self.state, self.progress)
            if self.progress >= due / self._training.evaluations or self.progress >= 1:
                self._evaluate(sum(losses) / len(losses))
                losses = []
                due = math.floor(self.progress * self._training.evaluations) + 1
                saved = self._save()
            elif time.monotonic() - saved > SAVED_EVERY:
                saved = self._save()
        if self._best_file.exists():
            self._drafter.load_state_dict(torch.load(self._best_file, weights_only=True))
        return self.state

    def _gives_up(self) -> bool:
        best = self.state.best
        return best is not None and len(self.state.history) - 1 - best >= self._training.patience

    def _step(self) -> float:
        for group in self._optimizer.param_groups:
            group["lr"] = self._rate * learning_rate_share(self.progress, self._training.warmup)
        batch = self._batch()
        with self._accelerator.autocast(), parametrize.cached():
            loss = loss_of(self._drafter, self._model, batch, self.progress, self.state.step)
        self._accelerator.backward(loss)
        self._accelerator.clip_grad_norm_(self._model.parameters(), 1.0)
        self._optimizer.step()
        self._optimizer.zero_grad()
        return float(loss.detach())

    def _batch(self) -> Batch:
        """Return this process's next batch: every epoch has an order of its own, the same however often it
        is resumed."""
        world, rank = self._accelerator.num_processes, self._accelerator.process_index
        epoch, place = divmod(self.state.step * world + rank, len(self._batches))
        order = torch.randperm(
            len(self._batches), generator=torch.Generator().manual_seed(self._training.seed + epoch)
        )
        group = self._batches[int(order[place])]
        return Batch.of([self._examples[i] for i in group], self._accelerator.device)

    def _evaluate(self, loss: float) -> None:
        begun = time.monotonic()
        self._drafter.eval()
        with self._accelerator.autocast():
            acceptance = alone(self._held_out, guess(self._drafter, self._held_out))
        self._drafter.train()
        self.state.seconds += time.monotonic() - begun
        point = Point(
            self.state.step, self.state.seconds / 60, loss, acceptance.tokens, list(acceptance.survival),
            self._drafter.predicted_speedup(acceptance),
        )  # fmt: skip
        self.state.history.append(point)
        if self.state.best == len(self.state.history) - 1 and self._accelerator.is_main_process:
            write_whole(self._best_file, self._drafter.state_dict())
        self._told(self.state, self.progress)

    def _save(self) -> float:
        if self._accelerator.is_main_process:
            content = {
                "step": self.state.step,
                "seconds": self.state.seconds,
                "history": [vars(point) for point in self.state.history],
                "model": self._drafter.state_dict(),
                "optimizer": self._optimizer.state_dict(),
            }
            write_whole(self._file, content)
        return time.monotonic()

    def _resume(self) -> None:
        if not self._file.exists():
            return
        content = torch.load(self._file, weights_only=True)
        history = [Point(**point) for point in content["history"]]
        self.state = State(content["step"], content["seconds"], history)
        self._drafter.load_state_dict(content["model"])
        self._optimizer.load_state_dict(content["optimizer"])


def learning_rate_share(progress: float, warmup: float) -> float:
    """Return the share of the learning rate at a progress of 0 to 1: it rises until `warmup`, then falls."""
    warm = min(progress / warmup, 1.0) if warmup else 1.0
    return max(warm, 0.01) * (0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * min(progress, 1.0))))


def tokens_to_learn(drafter: TrainableDrafter, progress: float) -> int:
    if drafter.repeats:
        return 1
    if not drafter.recurrent or progress >= ALL_TOKENS:
        return drafter.num_tokens
    return 1 + int(progress / ALL_TOKENS * (drafter.num_tokens - 1))


def loss_of(drafter: TrainableDrafter, model: Any, batch: Batch, progress: float, seed: int) -> torch.Tensor:
    """Return cross-entropy of what is drafted and what the target would say, over the tokens that are looked
    at."""
    among = looked_at(drafter, batch.tokens, seed)
    head, own_head = drafter.head[among], drafter.output_matrix[among]
    losses, weights = [], []
    for number, states in enumerate(model(batch, tokens_to_learn(drafter, progress)), start=1):
        places = batch.places(number, prompts_too=progress < WHOLE_TEXTS).nonzero()
        if not len(places):
            continue
        # Some count twice, for a round number of them.
        again = torch.arange(padded(len(places), PLACES), device=places.device) % len(places)
        text, at = places[again].unbind(1)
        said = batch.hidden[text, at + number]  # the target's state from which it says the token guessed at
        with torch.no_grad():
            wanted = (said @ head.T).float().softmax(-1)
        loss = functional.cross_entropy((states[text, at] @ own_head.T).float(), wanted)
        if drafter.imitation:
            loss = loss + drafter.imitation * functional.smooth_l1_loss(states[text, at].float(), said)
        losses.append(LATER ** (number - 1) * loss)
        weights.append(LATER ** (number - 1))
    return sum(losses, torch.zeros((), device=head.device)) / max(sum(weights), 1e-9)


def looked_at(drafter: TrainableDrafter, tokens: torch.Tensor, seed: int) -> torch.Tensor:
    """Return the tokens that the loss of a batch of these tokens is over."""
    chance = torch.Generator().manual_seed(seed)
    rank = torch.rand(len(drafter.head), generator=chance).to(drafter.head.device)
    rank[drafter.common] += 1
    rank[tokens.flatten()] += 2
    return rank.topk(min(LOOKED_AT, len(rank))).indices


def has_fast_bfloat16() -> bool:
    if torch.cuda.is_available():
        return bool(torch.cuda.is_bf16_supported())
    cpu = Path("/proc/cpuinfo")
    return cpu.exists() and "amx_bf16" in cpu.read_text()


def write_whole(file: Path, content: Any) -> None:
    """Write the file whole or not at all."""
    draft = file.with_suffix(".part")
    torch.save(content, draft)
    draft.rename(file)
