"""What a pass of the target takes by the number of tokens in it, measured once when the engine starts."""

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from vllm.distributed.parallel_state import get_world_group
from vllm.logger import init_logger

logger = init_logger("vllm.slipstream")  # so that it is shown


@dataclass(frozen=True)
class Passes:
    """Which passes are timed: of so many tokens each, so many times."""

    counts: tuple[int, ...]
    rounds: int
    """The first is for warming up."""

    def most_seconds(self, probe: float) -> float:
        """Return the seconds that they take at most, if a pass of `PROBE` tokens takes `probe`."""
        return self.rounds * sum(probe * max(count / PROBE, 1.0) for count in self.counts)


PROBE = 16  # tokens
MOST_SECONDS = 15.0
# Matrices are multiplied in tiles of 16 rows or more, and CUDA graphs are made for some sizes: one token more
# than such a size takes a good deal longer (17 against 16 tokens of a 0.7B model on CPU: 24%), the next ones
# hardly. The largest first: vLLM compiles for the first shape it meets, and a pass of one token would leave
# it with code for one token only.
FINE = Passes((128, 65, 64, 49, 48, 33, 32, 17, 16, 8, 1), 4)
COARSE = Passes((64, 32, 16, 8, 1), 3)
FEWEST = Passes((16, 8, 1), 3)


def passes_to_time(probe: float) -> Passes:
    """Choose the finest measurement that takes no more than `MOST_SECONDS`, if a pass of `PROBE` tokens takes
    `probe` seconds. Where a pass is slow, the time grows with every token, and few counts tell it."""
    return next((passes for passes in (FINE, COARSE) if passes.most_seconds(probe) <= MOST_SECONDS), FEWEST)


@torch.inference_mode()
def profile_passes(runner: Any) -> dict[str, Any]:
    """Return {tokens, seconds, drafter, drafter_by_requests}: seconds of the target's pass, logits included,
    and of the drafter: of one pass on the V1 model runner, by requests and passes on V2 (0 and none if it has
    none that vLLM can run by itself). Rank 0 says how many passes, for all."""
    logger.info("measuring what a pass of the target takes; a few seconds")
    drafter = _DrafterTimer(runner)
    probe = min(_pass(runner, min(PROBE, runner.max_num_tokens), drafter) + drafter.seconds for _ in range(2))
    passes = passes_to_time(get_world_group().broadcast_object(probe))
    counts = [count for count in passes.counts if count <= runner.max_num_tokens]
    rounds = np.array([[_pass(runner, count, drafter) for count in counts] for _ in range(passes.rounds)][1:])
    drafter.restore()
    seconds = rounds.min(0)  # what else runs while an engine starts makes passes longer, never shorter
    rising = dict(sorted(zip(counts, seconds.tolist(), strict=True)))
    said = ", ".join(f"{s * 1000:.1f} ms for {count}" for count, s in rising.items())
    logger.info("a pass takes %s tokens", said)
    return {
        "tokens": list(rising), "seconds": list(rising.values()),
        "drafter": drafter.seconds_per_pass, "drafter_by_requests": drafter.by_requests,
    }  # fmt: skip


def _pass(runner: Any, count: int, drafter: "_DrafterTimer") -> float:
    _synchronize(runner)
    drafter.seconds = 0.0
    begun = time.perf_counter()
    hidden, _ = runner._dummy_run(count)
    if isinstance(hidden, torch.Tensor) and hidden.shape[0] >= count:
        runner.model.compute_logits(hidden[:count])
    _synchronize(runner)
    return time.perf_counter() - begun - drafter.seconds


def _synchronize(runner: Any) -> None:
    """Wait for the device, on either model runner."""
    if runner.device.type != "cpu":
        torch.accelerator.synchronize()


class _DrafterTimer:
    """vLLM runs the drafter within its dummy run: its time is taken apart."""

    def __init__(self, runner: Any) -> None:
        self.seconds = 0.0
        self.seconds_per_pass = 0.0
        self._least: dict[tuple[int, int], float] = {}
        self._runner = runner
        # On the V2 model runner it is called speculator.
        self._drafter = getattr(runner, "drafter", None) or getattr(runner, "speculator", None)
        self._name = next((name for name in ("dummy_run", "propose") if hasattr(self._drafter, name)), "")
        if self._name:
            self._run = getattr(self._drafter, self._name)
            setattr(self._drafter, self._name, self._timed)

    def _timed(self, *args: Any, **kwargs: Any) -> Any:
        passes = self._runner.speculative_config.num_speculative_tokens
        if self._name == "dummy_run":
            result, self.seconds = self._time(*args, **kwargs)
            self.seconds_per_pass = max(self.seconds_per_pass, self.seconds / passes)
            return result
        requests = kwargs["input_batch"].num_reqs
        result, self.seconds = self._time(*args, **kwargs)
        self._keep(requests, passes, self.seconds)
        if passes > 1 and hasattr(self._drafter, "draft_tokens"):  # vLLM's lookup has none
            _, seconds = self._time(*args, **{**kwargs, "num_speculative_tokens": 1})
            self._keep(requests, 1, seconds)
            self.seconds += seconds
        return result

    def _keep(self, requests: int, passes: int, seconds: float) -> None:
        """Keep the least: nothing corrects it later, and a compilation must not count."""
        least = self._least.get((requests, passes), seconds)
        self._least[requests, passes] = min(least, seconds)

    @property
    def by_requests(self) -> list[tuple[int, int, float]]:
        """Return (requests, passes, seconds) of the V2 model runner's speculator."""
        return [(*numbers, seconds) for numbers, seconds in self._least.items()]

    def _time(self, *args: Any, **kwargs: Any) -> tuple[Any, float]:
        _synchronize(self._runner)
        begun = time.perf_counter()
        result = self._run(*args, **kwargs)
        _synchronize(self._runner)
        return result, time.perf_counter() - begun

    def restore(self) -> None:
        if self._name:
            setattr(self._drafter, self._name, self._run)
