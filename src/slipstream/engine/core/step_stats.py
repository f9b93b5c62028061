"""What vLLM's steps hold and take, for the schedulers that plan."""

import contextlib
import logging
import signal
from pathlib import Path
from typing import Any

from slipstream.checkpoints import open_checkpoint
from slipstream.engine.settings import Settings
from slipstream.loop import NO_PROMISE, Promise
from slipstream.planning.planner import StepOutcome
from slipstream.planning.step_cost import Step

logger = logging.getLogger("vllm.slipstream")  # so that it is shown

SURVIVAL_PER_TOKEN = 0.7  # of a drafter, before anything has been seen


def prior_survival(max_tokens: int, first: float = SURVIVAL_PER_TOKEN) -> list[float]:
    """Return what is believed of a drafter's tokens before anything has been seen."""
    return [first * SURVIVAL_PER_TOKEN**j for j in range(max_tokens)]


def describe_drafter(vllm_config: Any) -> tuple[str, str, str] | None:
    """Return (method, name, fingerprint) of an engine's drafter, for metrics; None without one."""
    settings, speculation = Settings.of(vllm_config), vllm_config.speculative_config
    if speculation is None or (settings.composes and not settings.drafter):
        return None
    try:
        checkpoint = open_checkpoint(settings.drafter_folder or speculation.model, speculation.revision)
        name = Path(checkpoint.name).name if checkpoint.is_local else checkpoint.name
        return settings.drafter or speculation.method, name, checkpoint.fingerprint
    except Exception as error:
        logger.info("metrics do not name the drafter: its checkpoint cannot be read: %s", error)
        return None


class StepStats:
    """Describes the steps of a scheduler of vLLM's; a mixin, before its own class."""

    _failures = 0

    def _describe(self, output: Any) -> Step:
        """Return what the step that was scheduled holds."""
        requests = len(output.num_scheduled_tokens)
        drafts = sum(map(len, output.scheduled_spec_decode_tokens.values()))
        prefill = output.total_num_scheduled_tokens - requests - drafts
        return Step(requests, drafts, prefill, self._context())

    def _context(self: Any) -> int:
        """Return the number of tokens in the KV cache, about."""
        return int(self.kv_cache_manager.usage * (self.cache_config.num_gpu_blocks or 0) * self.block_size)

    def _failed(self, what: str, consequence: str) -> None:
        """Count a fault of our own and log the first; the requests go on."""
        if not self._failures:
            logger.exception("%s failed; %s", what, consequence)
        self._failures += 1


class Stops:
    """Counts how often this process was stopped and went on (SIGCONT), where that can be known."""

    def __init__(self) -> None:
        self.count = 0
        self._others: Any = None
        with contextlib.suppress(ValueError):  # signals come to the main thread only
            self._others = signal.signal(signal.SIGCONT, self._go_on)

    def _go_on(self, number: int, frame: Any) -> None:
        self.count += 1
        if callable(self._others):
            self._others(number, frame)


class StepTimer:
    """Times steps, from when one is scheduled to when the next is, without the drafting in between. A step
    in which the process was stopped is left out."""

    def __init__(self) -> None:
        self._stops = Stops()
        self._stops_before = 0
        self.drafting: list[tuple[float, float]] = []
        """From when to when there was drafting since the last step was scheduled, by `time.perf_counter`."""
        self._begun: float | None = None
        self._step = Step(0)
        self._promise = NO_PROMISE
        self._drafting_before = 0.0  # seconds of drafting for the step under way
        self._requested_drafts = 0
        self._tokens = 0
        self._requested_accepted = 0

    def begin_step(
        self, now: float, step: Step, promise: Promise, requested_drafts: int
    ) -> StepOutcome | None:
        """Return what came of the step before, unless the engine waited in between or was stopped."""
        drafting = sum(ended - begun for begun, ended in self.drafting)
        outcome = None
        if self._begun is not None and self._stops.count == self._stops_before:
            outcome = StepOutcome(
                self._step, now - self._begun - drafting, self._drafting_before, self._tokens,
                self._requested_drafts, self._requested_accepted, *self._promise,
            )  # fmt: skip
        self._begun = now if step.tokens else None
        self._stops_before = self._stops.count
        self._step, self._promise, self._requested_drafts = step, promise, requested_drafts
        self._drafting_before, self.drafting = drafting, []
        return outcome

    def record_output(self, tokens: int, requested_accepted: int) -> None:
        self._tokens, self._requested_accepted = tokens, requested_accepted

    def record_drafting(self, begun: float, ended: float) -> None:
        self.drafting = [(begun, ended)]

    def wait(self) -> None:
        """Note that the engine has nothing to do: what follows is no step."""
        self._begun = None
