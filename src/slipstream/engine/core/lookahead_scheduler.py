"""Planning for vLLM's own drafters, a step ahead: on its V2 model runner, and with asynchronous scheduling.

There the drafts never reach the scheduler, and the next step may be scheduled before this one has ended. What
can be said, once a step has been scheduled and before it runs, is how many tokens the drafter drafts at its
end and how many of them each of its requests has verified in the next step. That is planned from how often
the drafter's tokens were accepted, for each request and for all. Drafting is part of the step here, so what
it costs is learnt with what verifying costs.
"""

import time
from typing import Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler as VllmAsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler as VllmScheduler
from vllm.v1.outputs import DraftTokenIds

from slipstream.drafting.requests import AUTO, OFF
from slipstream.engine.core.device_drafter import TRY_EVERY, DeviceDrafter
from slipstream.engine.core.request_options import requested_draft_tokens
from slipstream.engine.core.step_stats import StepStats, describe_drafter
from slipstream.engine.patches import expose_scheduler_report
from slipstream.engine.settings import Settings
from slipstream.planning.planner import Planner, StepOutcome, StepState
from slipstream.planning.step_cost import Step, StepCost


class LookaheadPlanning(StepStats):
    """Plans the drafts of the step after the one being scheduled; a mixin, before a scheduler of vLLM's."""

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._max_requested = Settings.of(self.vllm_config).max_requested_tokens
        self._planner = Planner(StepCost())
        self._state = StepState(Step(1))
        self._drafter = DeviceDrafter("drafter", self.num_spec_tokens)
        self._loaded_drafter = describe_drafter(self.vllm_config)
        self._planned: dict[str, int] = {}  # for each request, in the last step that had it
        self._since_drafts = 0  # steps
        self._steps = 0
        self._begun: float | None = None
        # Else vLLM pads a request that joins with one token to the full K, and counts the padding as drafts.
        self.dynamic_sd_lookup = [self.num_spec_tokens] * (self.scheduler_config.max_num_seqs + 1)
        expose_scheduler_report()

    def _update_after_schedule(self: Any, scheduler_output: Any) -> None:
        if scheduler_output.num_scheduled_tokens:
            try:
                lengths = self.plan(list(scheduler_output.num_scheduled_tokens))
            except Exception:
                self._failed("planning", "the step after this one has no drafts")
                lengths = dict.fromkeys(scheduler_output.num_scheduled_tokens, 0)
            self._planned |= lengths
            most = max(lengths.values())
            if self.parallel_config.data_parallel_size > 1:
                most = self.num_spec_tokens  # engines that draft in step with each other must draft alike
            scheduler_output.num_spec_tokens_to_schedule = most
        super()._update_after_schedule(scheduler_output)  # type: ignore[misc]

    def plan(self: Any, request_ids: list[str]) -> dict[str, int]:
        """Return how many draft tokens each of these requests has verified in its next step."""
        asked = {r: requested_draft_tokens(self.requests.get(r), self._max_requested) for r in request_ids}
        may = [request_id for request_id, tokens in asked.items() if tokens != OFF]
        requested = {r: min(asked[r], self.num_spec_tokens) for r in may if asked[r] != AUTO}
        self._state = StepState(Step(len(request_ids), 0, 0, self._context()), requested)
        offers = self._drafter.expected_survival(may)
        lengths = dict.fromkeys(request_ids, 0) | self._planner.plan(self._state, offers).lengths
        self._since_drafts = 0 if any(lengths.values()) else self._since_drafts + 1
        if self._since_drafts >= TRY_EVERY:
            self._since_drafts = 0
            lengths |= dict.fromkeys(may, 1)
        return lengths

    def update_from_output(self: Any, scheduler_output: Any, model_runner_output: Any) -> Any:
        try:
            self._learn(scheduler_output, model_runner_output)
        except Exception:
            self._failed("learning from a step", "nothing is learnt from it")
        result = super().update_from_output(scheduler_output, model_runner_output)  # type: ignore[misc]
        if not self.requests:
            self._begun = None  # the engine waits: that is no step
        return result

    def _learn(self: Any, scheduler_output: Any, model_runner_output: Any) -> None:
        written = {
            request_id: len(model_runner_output.sampled_token_ids[row])
            for request_id, row in model_runner_output.req_id_to_index.items()
        }
        verified = {r: len(drafts) for r, drafts in scheduler_output.scheduled_spec_decode_tokens.items()}
        requested_drafts = requested_accepted = 0
        for request_id, count in verified.items():
            if count and written.get(request_id) and request_id in self._planned:
                accepted = written[request_id] - 1
                self._drafter.learn(request_id, count, accepted)
                request = self.requests.get(request_id)
                if requested_draft_tokens(request, self._max_requested) != AUTO:
                    requested_drafts += count
                    requested_accepted += accepted
        now = time.perf_counter()
        if self._begun is not None and written:
            step = self._describe(scheduler_output)
            tokens = sum(written.values())
            self._planner.record(
                StepOutcome(step, now - self._begun, 0.0, tokens, requested_drafts, requested_accepted)
            )
        self._begun = now
        self._steps += 1

    def counts(self: Any) -> dict[str, Any]:
        """Return counts since the engine's start, for metrics, as `scheduler`."""
        drafts, positions = self._drafter.tally.drafts, self._drafter.tally.positions()
        ours = {
            "drafts": drafts,
            "positions": positions,
            "drafter": self._loaded_drafter,
            "failures": self._failures,
        }
        return {**ours, **self._planner.counts(self._state.step)}

    def report(self: Any) -> dict[str, Any]:
        """Return counts since the engine's start, and what the planner believes, as `scheduler`."""
        return {
            **self._drafter.report(),
            "faults": [],
            "off": [],
            "failures": self._failures,
            "steps": self._steps,
            "planner": self._planner.report(self._state.step),
        }

    def _free_request(self: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        self._drafter.forget(request.request_id)
        self._planned.pop(request.request_id, None)
        return super()._free_request(request, *args, **kwargs)  # type: ignore[misc]


class LookaheadScheduler(LookaheadPlanning, VllmScheduler):
    """Cuts the drafts (on V2 as many placeholders), which come back after the step, to the plan."""

    def update_draft_token_ids(self, draft_token_ids: DraftTokenIds) -> None:
        drafts = [
            tokens[: self._planned.get(request_id, 0)]
            for request_id, tokens in zip(
                draft_token_ids.req_ids, draft_token_ids.draft_token_ids, strict=False
            )
        ]
        super().update_draft_token_ids(DraftTokenIds(draft_token_ids.req_ids, drafts))


class AsyncLookaheadScheduler(LookaheadPlanning, VllmAsyncScheduler):
    """Plans by the number of placeholders, as the next step is scheduled before this one's drafts exist."""

    def _update_after_schedule(self, scheduler_output: Any) -> None:
        super()._update_after_schedule(scheduler_output)
        for request_id in scheduler_output.num_scheduled_tokens:
            request = self.requests[request_id]
            if not request.is_prefill_chunk:
                request.spec_token_ids = [-1] * self._planned[request_id]  # vLLM's list is shared by all
