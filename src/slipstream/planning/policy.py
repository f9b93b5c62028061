"""Who decides in the speculation loop: the planner in `auto`, `VerifyAll` for a fixed number of tokens."""

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

from slipstream.planning.optimizer import Survival
from slipstream.planning.planner import NOT_RUN, DrafterPlan, DrafterRun, Plan, StepOutcome, StepState
from slipstream.planning.step_cost import Step


class Lengths(NamedTuple):
    lengths: Mapping[str, int]
    """Draft tokens to verify, by request."""


class Policy(Protocol):
    """What the loop asks of whoever decides; `planner.Planner` says what each method does."""

    def paused(self, step: Step) -> bool: ...

    def lookup_budget(self, state: StepState, candidates: int) -> int: ...

    def lookups_within(self, step: Step) -> int: ...

    def record_lookups(self, requests: int, seconds: float, retried: int, tokens: float) -> None: ...

    def plan_drafter(
        self, state: StepState, offers: Mapping[str, Survival], expected: Mapping[str, Survival]
    ) -> DrafterPlan: ...

    def record_drafter(self, plan: DrafterPlan, seconds: float | None = None) -> None: ...

    def plan(
        self, state: StepState, offers: Mapping[str, Survival], drafter: DrafterRun = NOT_RUN
    ) -> Plan | Lengths: ...

    def record(self, outcome: StepOutcome) -> None: ...

    def arrive(self, others_run: bool) -> None: ...

    def finish(self, tokens: int, at_limit: bool, prompt: int = 0) -> None: ...

    def counts(self, step: Step) -> dict[str, Any]: ...

    def report(self, step: Step) -> dict[str, Any] | None: ...


class VerifyAll:
    """Asks the drafter wherever it is expected to bring more, and verifies all there is."""

    def paused(self, step: Step) -> bool:
        return False

    def lookup_budget(self, state: StepState, candidates: int) -> int:
        return candidates

    def lookups_within(self, step: Step) -> int:
        return 1 << 20

    def record_lookups(self, requests: int, seconds: float, retried: int, tokens: float) -> None:
        pass

    def plan_drafter(
        self, state: StepState, offers: Mapping[str, Survival], expected: Mapping[str, Survival]
    ) -> DrafterPlan:
        tokens = {
            request: len(survival)
            for request, survival in expected.items()
            if sum(survival) > sum(offers.get(request, ()))
        }
        return DrafterPlan(tokens, max(tokens.values(), default=0))

    def record_drafter(self, plan: DrafterPlan, seconds: float | None = None) -> None:
        pass

    def plan(
        self, state: StepState, offers: Mapping[str, Survival], drafter: DrafterRun = NOT_RUN
    ) -> Lengths:
        return Lengths({request: len(survival) for request, survival in offers.items()})

    def record(self, outcome: StepOutcome) -> None:
        pass

    def arrive(self, others_run: bool) -> None:
        pass

    def finish(self, tokens: int, at_limit: bool, prompt: int = 0) -> None:
        pass

    def counts(self, step: Step) -> dict[str, Any]:
        return {}

    def report(self, step: Step) -> None:
        return None
