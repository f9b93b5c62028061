"""An engine with a known truth: what its steps take, and which drafts are right."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from slipstream.drafting import Draft, Proposer, RequestInfo
from slipstream.drafting.composer import Composer, Offer
from slipstream.loop import SpeculationLoop
from slipstream.planning.planner import Plan, Planner, StepOutcome, StepState
from slipstream.planning.step_cost import PassProfile, Step, StepCost

MOST = 8  # draft tokens per request
PROFILE = PassProfile((1, 64, 512), (0.018, 0.020, 0.130))


def true_seconds(step: Step) -> float:
    """Free up to 48 tokens, or nearly so, then dear; and 4 ms that the profile knows nothing of."""
    return 0.022 + 0.00003 * step.tokens + 0.0003 * max(step.tokens - 48, 0)


def expected_tokens(alpha: float, drafts: int, whole: bool = False) -> float:
    return 1 + sum(alpha if whole else alpha**j for j in range(1, drafts + 1))


@dataclass(frozen=True)
class Phase:
    requests: int
    alpha: float
    """How likely each draft token is right if those before it were."""
    steps: int = 300
    drafter_alpha: float = 0.0
    whole: bool = False
    """Drafts are right or wrong as a whole."""


class Ones(Proposer):
    """Drafts 1 1 1 ...; the target writes 1 where the draft shall be right."""

    def __init__(
        self,
        name: str = "ones",
        free: bool = True,
        stated: float = 0.6,
        when_asked: Callable[[Mapping[str, int]], None] = lambda wanted: None,
    ) -> None:
        self.name, self.free, self.stated, self.when_asked = name, free, stated, when_asked
        self.token = 1 if free else 3

    def observe(self, request_id: str, tokens: Sequence[int]) -> None:
        pass

    def propose(self, wanted: Mapping[str, int]) -> dict[str, Draft]:
        self.when_asked(wanted)
        return {
            r: Draft([self.token] * max_tokens, self.expected_survival(max_tokens))
            for r, max_tokens in wanted.items()
        }

    def forget(self, request_id: str) -> None:
        pass

    def expected_survival(self, max_tokens: int) -> list[float]:
        return [self.stated ** (j + 1) for j in range(max_tokens)]


@dataclass
class Engine:
    """Times have noise and outliers, or come from a `trace`; `told` is what they were."""

    planner: Planner = field(default_factory=lambda: Planner(StepCost(PROFILE)))
    seconds: Callable[[Step], float] = true_seconds
    drafter_pass: float = 0.0
    """Seconds; 0: there is no drafter."""
    noise: float = 0.03
    outliers: float = 0.01
    seed: int = 0
    trace: Iterable[float] | None = None
    free: bool = True
    """There is a free proposer."""

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)
        proposers = [Ones()] if self.free else []
        if self.drafter_pass:
            proposers.append(Ones("drafter", free=False, when_asked=self._run_drafter))
        self.composer = Composer(proposers, 10)
        self.loop = SpeculationLoop(self.composer, self.planner, lambda: self._clock)
        self.running: list[str] = []
        self.told: list[float] = []
        self.plans: list[Plan] = []
        self.verified: list[dict[str, int]] = []
        self.drafter_seconds = 0.0
        self.true_seconds = 0.0
        self._times = iter(self.trace) if self.trace is not None else None
        self._started = 0

    def _settle(self, requests: int) -> None:
        """So many requests run: new ones come, the oldest go."""
        while len(self.running) < requests:
            request = f"r{self._started}"
            self._started += 1
            self.composer.start(RequestInfo(request, 1))
            self.composer.observe(request, [0])
            self.running.append(request)
        while len(self.running) > requests:
            self.composer.forget(self.running.pop(0))

    def run(self, phase: Phase) -> list[tuple[float, float]]:
        """For each step: the tokens it is to be expected to bring, and the seconds it truly takes."""
        self._settle(phase.requests)
        return [self._step(phase) for _ in range(phase.steps)]

    def _step(self, phase: Phase) -> tuple[float, float]:
        planner = self.planner
        chosen, drafting = self._draft(StepState(Step(phase.requests)))
        step = Step(phase.requests, sum(len(choice.tokens) for choice in chosen.values()))
        seconds = next(self._times) if self._times is not None else self._noisy(self.seconds(step))
        self.told.append(seconds)
        self.verified.append({r: len(choice.tokens) for r, choice in chosen.items()})
        self.plans.append(planner.plans[-1])
        expected, written = 0.0, 0
        for request in self.running:
            choice = chosen.get(request)
            theirs = bool(choice and choice.proposer == "drafter")
            alpha, token = (phase.drafter_alpha, 3) if theirs else (phase.alpha, 1)
            verified = len(choice.tokens) if choice else 0
            right = 0
            while right < verified and (self.rng.random() < alpha or (phase.whole and right)):
                right += 1
            last = 2
            if right == verified:
                if (phase.whole and right) or self.rng.random() < phase.alpha:
                    last = 1
                elif self.rng.random() < phase.drafter_alpha:
                    last = 3
            expected += expected_tokens(alpha, verified, phase.whole)
            written += right + 1
            self.composer.observe(request, [token] * right + [last])
        planner.record(StepOutcome(step, seconds, drafting, written))
        self.drafter_seconds += drafting
        self.true_seconds += self.seconds(step) + drafting
        return expected, self.seconds(step) + drafting

    def _draft(self, state: StepState) -> tuple[dict[str, Offer], float]:
        """Draft as the engine does, but with the time that the drafter is to take."""
        self.loop.state, self._clock = state, 0.0
        return self.loop.propose(dict.fromkeys(self.running, MOST))

    def _run_drafter(self, wanted: Mapping[str, int]) -> None:
        self._clock += self.drafter_pass * max(wanted.values(), default=0)

    def _noisy(self, seconds: float) -> float:
        slow = 3 if self.rng.random() < self.outliers else 1
        return float(seconds * math.exp(self.rng.normal(0, self.noise)) * slow)


def rate(steps: Iterable[tuple[float, float]]) -> float:
    tokens, seconds = zip(*steps, strict=True)
    return float(sum(tokens) / sum(seconds))


def fixed_rate(phase: Phase, drafts: int, seconds: Callable[[Step], float] = true_seconds) -> float:
    """Tokens per second with always so many draft tokens per request."""
    step = Step(phase.requests, phase.requests * drafts)
    return phase.requests * expected_tokens(phase.alpha, drafts, phase.whole) / seconds(step)
