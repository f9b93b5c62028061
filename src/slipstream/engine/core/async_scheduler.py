"""The speculation loop with asynchronous scheduling, on vLLM's V2 model runner; by dotted path
(`scheduler_cls`).

A step is scheduled while the one before it is under way. What is known then is the text up to the step before
that, so drafts begin with what the step under way is expected to write, and the workers verify what follows
(`engine.worker.v2_alignment`). How many tokens that is, is all that vLLM's scheduler is told: placeholders.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import Any, NamedTuple

from vllm.v1.core.sched.async_scheduler import AsyncScheduler as VllmAsyncScheduler
from vllm.v1.outputs import DraftTokenIds

from slipstream.drafting.composer import Offer
from slipstream.drafting.device import NOT_DRAFTED, UNKNOWN, Drafted
from slipstream.drafting.requests import OFF
from slipstream.engine.core.device_drafter import TRY_EVERY, DeviceDrafter
from slipstream.engine.core.drafter_reads import DrafterReads
from slipstream.engine.core.request_options import requested_draft_tokens
from slipstream.engine.core.scheduler import Scheduler, VllmRequest, make_planner
from slipstream.engine.core.step_stats import Stops, logger
from slipstream.engine.settings import Settings
from slipstream.engine.worker.v2_alignment import longest_draft, pack
from slipstream.loop import Promise
from slipstream.planning.draft_sampling import DraftSampling
from slipstream.planning.planner import DrafterPlan, Planner, StepOutcome
from slipstream.planning.step_cost import Step
from slipstream.planning.thresholds import THRESHOLDS

MOST_UNDER_WAY = 8  # steps
NO_PASSES = DrafterPlan({}, 0)


class RequestUnderWay(VllmRequest):
    """Describes a request whose last tokens are not known yet."""

    __slots__ = ()

    @property
    def tokens_under_way(self) -> int:
        return self._request.num_output_placeholders

    @property
    def max_draft_tokens(self) -> int:
        return min(self._limit, self.tokens_left - self.tokens_under_way - 1)


class ScheduledStep(NamedTuple):
    """What was planned for a step, kept with it until its output is there."""

    step: Step
    promise: Promise
    requested: frozenset[str]
    """Requests that fix their number of draft tokens themselves."""
    requested_drafts: int
    drafted: Drafted
    """By the drafter, at the end of the step before."""
    stops: int
    """How often this process had been stopped before it."""
    drafts: Mapping[str, tuple[int, Offer]]
    """With the length of the request's text when it was made."""
    reading: float
    """Seconds in which the drafter has read the step before, beside those of `drafted`."""


class AsyncScheduler(Scheduler, VllmAsyncScheduler):
    request_class = RequestUnderWay
    steps_under_way = 1

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        settings = Settings.of(self.vllm_config)
        self._device_drafter: DeviceDrafter | None = None
        if drafter := settings.drafter or settings.device_lookup:
            is_lookup = not settings.drafter
            runs_all = self.vllm_config.speculative_config.use_multi_module_mtp()
            self._device_drafter = DeviceDrafter(drafter, self.num_spec_tokens, is_lookup, runs_all)
        self._draft_sampling: DraftSampling | None = None
        if settings.chooses_sampling(self.vllm_config):
            self._draft_sampling = DraftSampling()
        self._reads: DrafterReads | None = None
        """Of a drafter that reads what is written."""
        if settings.drafter:
            blocks = self.kv_cache_manager
            sizes = [group.block_size for group in blocks.coordinator.single_type_managers]
            self._reads = DrafterReads(sizes, blocks.block_pool.null_block.block_id)
        # Engines that draft in step with each other must draft alike; other stores have blocks of their own.
        self._may_leave_drafter_out = (
            self._reads is not None
            and self.parallel_config.data_parallel_size == 1
            and self.connector is None
        )
        self._asking: set[str] = set()
        """Requests that fix their number of draft tokens themselves."""
        self._drafter_rests = 0
        """How often it was told that the drafter is left out."""
        self._steps_without_drafter = 0
        """In a row."""
        self._drafter_plan = NO_PASSES
        """What the drafter drafts at the end of the step under way."""
        self._reading_seconds = 0.0
        """What it takes there to read the step, beside its passes that draft."""
        self._drafted_for: frozenset[str] = frozenset()
        """For the requests of that step; of others it may have drafted fewer tokens, in a step before."""
        self._under_way: dict[int, ScheduledStep] = {}
        """By the identity of vLLM's `SchedulerOutput`."""
        self._stops = Stops()
        self._ended = 0.0
        """When the output of the step before was there, or the first after a wait was scheduled."""

    def add_request(self, request: Any) -> None:
        if requested_draft_tokens(request, self.max_requested_tokens) > OFF:
            self._asking.add(request.request_id)
        super().add_request(request)

    def draft(self, executor: Any) -> None:
        """Make the planner. Called after each step, when it is too late for drafts: the next is scheduled."""
        if self._needs_planner and self._loop is not None:
            self._loop.policy = make_planner(executor, self._objective, self._bounds)
            self._needs_planner = False

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        drafted = self._drafted()
        drafts = self._draft_ahead(drafted)
        sent: dict[str, tuple[int, Offer]] = {}
        for request in self.running:
            if not request.is_prefill_chunk:
                verified = 0
                if draft := drafts.get(request.request_id):
                    verified = max(len(draft.tokens) - request.num_output_placeholders, 0)
                    sent[request.request_id] = request.num_tokens, draft
                request.spec_token_ids = [UNKNOWN] * verified
        output = super().schedule(*args, **kwargs)
        sent = {r: sent[r] for r in output.scheduled_spec_decode_tokens if r in sent}
        known = {
            r: (length, draft.tokens) for r, (length, draft) in sent.items() if UNKNOWN not in draft.tokens
        }
        alone = known.keys() - drafted.survival.keys() if self._reads is not None else ()
        output.slipstream_drafts = pack(known, longest_draft(self.num_spec_tokens), alone)
        if self._draft_sampling is not None:
            temperatures = {
                r: self.requests[r].sampling_params.temperature for r in output.num_scheduled_tokens
            }
            output.slipstream_argmax = self._draft_sampling.choose_argmax(temperatures)
        self._keep(output, sent, drafted)
        return output

    def _draft_ahead(self, drafted: Drafted) -> dict[str, Offer]:
        if self._loop is None or not self.running:
            return {}
        begun = time.perf_counter()
        try:
            return self._loop.draft(self._decoding(), self._next_step(), self._queue(), drafted)
        except Exception:
            self._failed("drafting", "this step has no drafts")
            return {}
        finally:
            self._seconds += time.perf_counter() - begun
            self._steps += 1

    def _drafted(self) -> Drafted:
        """Return what the drafter will have drafted when the step under way is over."""
        plan = self._drafter_plan
        if self._device_drafter is None or self._loop is None or not plan.passes:
            return NOT_DRAFTED
        decoding = [
            request.request_id for request in self.running
            if request.request_id in self._drafted_for and not request.is_prefill_chunk
        ]  # fmt: skip
        survival = self._device_drafter.expected_survival(decoding, plan.passes)
        drafter, policy = self._device_drafter, self._loop.policy
        seconds = 0.0
        if isinstance(policy, Planner) and not drafter.drafts_all:
            seconds = policy.drafter_seconds(plan.requests, plan.passes)
        return Drafted(drafter.name, plan.passes, seconds, survival, plan.is_probe, drafter.is_lookup)

    def _update_after_schedule(self, scheduler_output: Any) -> None:
        if self._device_drafter is not None and scheduler_output.num_scheduled_tokens:
            readable = self._readable(scheduler_output)
            self._drafter_plan = NO_PASSES
            if not self._leave_drafter_out(scheduler_output, readable):
                self._drafter_plan = self._plan_drafter(readable)
            self._drafted_for = frozenset(readable)
            scheduler_output.num_spec_tokens_to_schedule = self._drafter_plan.passes
        super()._update_after_schedule(scheduler_output)

    def _readable(self, scheduler_output: Any) -> list[str]:
        """Return the requests of a step that the drafter has read so far."""
        requests = list(scheduler_output.num_scheduled_tokens)
        if self._reads is None:
            return requests
        try:
            self._reads.follow(scheduler_output)
            if self._reads.shared:
                self._evict_unread_prefixes(requests)
            return [request_id for request_id in requests if self._reads.has_all(request_id)]
        except Exception:
            self._failed("following the KV cache's blocks", "the drafter is not left out any more")
            self._may_leave_drafter_out, self._reads = False, None
            return requests

    def _evict_unread_prefixes(self, everyone: Sequence[str]) -> None:
        """Evict from the prefix cache what many requests begin with and the drafter has not read, if it runs
        and would gain: target and drafter read the next such request from there on."""
        assert self._loop is not None
        assert self._device_drafter is not None
        assert self._reads is not None
        policy, load = self._loop.policy, Step(len(everyone), context=self._context())
        if isinstance(policy, Planner) and not (
            policy.standing(load).runs
            and policy.drafter_would_pay(load, self._device_drafter.expected_survival(everyone))
        ):
            return
        self.kv_cache_manager.evict_blocks(self._reads.take_shared())

    def _leave_drafter_out(self, scheduler_output: Any, readable: Sequence[str]) -> bool:
        """Leave the drafter out of the step that is being scheduled, if it is not to run; say whether."""
        try:
            if self._reads is None or not self._is_without_drafter(scheduler_output, readable):
                return False
            for request_id in readable:
                request = self.requests[request_id]
                # Of the tokens that count as computed, drafts of the step under way may be rejected.
                drafts = max(request.num_output_placeholders - 1, 0)
                blocks = self.kv_cache_manager.get_blocks(request_id).blocks
                self._reads.miss(request_id, blocks, request.num_computed_tokens - drafts)
            scheduler_output.slipstream_leaves_drafter_out = True
            return True
        except Exception:
            self._failed("leaving the drafter out", "it runs")
            return False

    def _is_without_drafter(self, scheduler_output: Any, readable: Sequence[str]) -> bool:
        if not self._may_leave_drafter_out:
            return False
        if not readable:
            return True
        assert self._loop is not None
        assert self._device_drafter is not None
        policy = self._loop.policy
        if (
            not isinstance(policy, Planner)
            or self._device_drafter.drafts_all
            or not self._asking.isdisjoint(readable)
        ):
            return False
        everyone = list(scheduler_output.num_scheduled_tokens)
        load = Step(len(everyone), context=self._context())
        if self._drafted_for.isdisjoint(readable):
            expected = self._device_drafter.expected_survival(everyone)
            policy.try_drafter(load, expected)
        return not policy.standing(load).runs

    def _judge_drafter(self, output: Any, step: Step) -> None:
        """Learn whether it is good that the drafter reads the step that was scheduled."""
        self._reading_seconds = 0.0
        try:
            self._judge(output, step)
        except Exception:
            self._failed("judging the drafter", "nothing is learnt of it")

    def _judge(self, output: Any, step: Step) -> None:
        assert self._loop is not None
        policy, plan = self._loop.policy, self._drafter_plan
        if self._device_drafter is None or not isinstance(policy, Planner) or not step.requests:
            return
        standing = policy.standing(step)
        if getattr(output, "slipstream_leaves_drafter_out", False):
            policy.skip_drafter(step)
            self._steps_without_drafter += 1
        elif self._may_leave_drafter_out and not self._device_drafter.drafts_all:
            if self._steps_without_drafter >= THRESHOLDS.first_pause:
                self._device_drafter.return_from_rest()
            self._steps_without_drafter = 0
            self._reading_seconds = policy.reading_seconds(step)
            if plan.passes:  # then one pass is counted with those that draft
                one_pass = policy.drafter_seconds(step.requests, 1)
                self._reading_seconds = max(self._reading_seconds - one_pass, 0.0)
            if standing.runs and self._asking.isdisjoint(self._drafted_for):
                policy.judge_drafter(step, self._gain_of_drafter(output))
        if (rests := policy.drafter_rests) > self._drafter_rests:
            name = self._device_drafter.name
            logger.info("%s does not pay with %d at once: it is left out for a while", name, step.requests)
            self._drafter_rests = rests

    def _gain_of_drafter(self, output: Any) -> float:
        """Return what the drafter is expected to gain in such a step, if it has read all requests: some it
        has not, but later ones it will."""
        assert self._loop is not None
        assert self._device_drafter is not None
        if len(self._drafted_for) == len(output.num_scheduled_tokens):
            return self._drafter_plan.gain
        everyone = list(output.num_scheduled_tokens)
        return self._loop.drafter_gain(self._device_drafter.expected_survival(everyone))

    def _plan_drafter(self, request_ids: list[str]) -> DrafterPlan:
        """Plan what the drafter drafts at the end of the step that is being scheduled."""
        assert self._loop is not None
        assert self._device_drafter is not None
        if self._device_drafter.drafts_all:
            paused = self._loop.policy.paused(self._loop.state.step)
            if paused and not self._loop.state.requested:
                return NO_PASSES
            is_probe = not (paused or self._device_drafter.is_lookup) and self._steps % TRY_EVERY == 0
            return DrafterPlan({}, int(self.num_spec_tokens), is_probe)
        if self.parallel_config.data_parallel_size > 1 or not isinstance(self._loop.policy, Planner):
            # Engines that draft in step with each other must draft alike.
            return DrafterPlan({}, int(self.num_spec_tokens))
        try:
            return self._loop.plan_drafter(self._device_drafter.expected_survival(request_ids))
        except Exception:
            self._failed("planning", "the step after this one has no drafts of the drafter")
            return NO_PASSES

    def _decoding(self) -> Iterator[VllmRequest]:
        """Describe the requests whose next step could verify drafts."""
        for request in self.running:
            if not request.is_prefill_chunk:
                yield self._describe_request(request)

    # ---- the times of steps, from output to output ----

    def _record(self, now: float, output: Any) -> None:
        """Record nothing: the step before is still under way."""

    def _keep(self, output: Any, drafts: Mapping[str, tuple[int, Offer]], drafted: Drafted) -> None:
        """Keep what was planned for the step until its output is there."""
        if self._loop is None:
            return
        step = self._describe(output)
        reading = self._reading_seconds
        if not self._under_way:  # what was done at the end of the step before is long over
            reading, drafted = 0.0, replace(drafted, seconds=0.0)
        self._judge_drafter(output, step)
        requested = frozenset(self._loop.state.requested)
        requested_drafts = sum(len(output.scheduled_spec_decode_tokens.get(r, ())) for r in requested)
        if not self._under_way:
            self._ended = time.perf_counter()
        while len(self._under_way) > MOST_UNDER_WAY:  # some that vLLM dropped
            self._under_way.pop(next(iter(self._under_way)))
        self._under_way[id(output)] = ScheduledStep(
            step, self._loop.promise, requested, requested_drafts, drafted,
            self._stops.count, drafts, reading,
        )  # fmt: skip

    def _note_output(self, scheduler_output: Any, model_runner_output: Any) -> None:
        """Record the step, which is over. Drafting for the one after it went on meanwhile."""
        now = time.perf_counter()
        scheduled = self._under_way.pop(id(scheduler_output), None)
        if scheduled is None:
            return
        self._learn_of_drafter(scheduled, scheduler_output, model_runner_output)
        tokens, accepted = self._count_tokens(scheduled.requested, model_runner_output)
        if scheduled.step.tokens and scheduled.stops == self._stops.count:
            seconds, drafting, reading = self._split(now - self._ended, scheduled)
            outcome = StepOutcome(
                scheduled.step, seconds, drafting, tokens, scheduled.requested_drafts, accepted,
                *scheduled.promise, reading=reading, drafter_within=drafting + reading > 0,
            )  # fmt: skip
            self._learn_outcome(outcome)
        self._ended = now

    def _split(self, seconds: float, scheduled: ScheduledStep) -> tuple[float, float, float]:
        """Return what of a step's time its own pass took, what drafting for it took at the end of the step
        before, and what reading that step took. Nobody times the drafter: the shares are as is believed."""
        assert self._loop is not None
        drafter = scheduled.drafted.seconds + scheduled.reading
        policy = self._loop.policy
        if not drafter or not isinstance(policy, Planner):
            return seconds, 0.0, 0.0
        scale = seconds / (policy.cost.seconds(scheduled.step) + drafter)
        drafting, reading = scale * scheduled.drafted.seconds, scale * scheduled.reading
        return seconds - drafting - reading, drafting, reading

    def _learn_of_drafter(
        self, scheduled: ScheduledStep, scheduler_output: Any, model_runner_output: Any
    ) -> None:
        """Learn from the requests whose draft was the drafter's: no other was sent, or it was wrong about
        what the step before has written."""
        if self._device_drafter is None or self._loop is None or not scheduled.drafted.passes:
            return
        rows = model_runner_output.req_id_to_index
        for request_id, (length, draft) in scheduled.drafts.items():
            request = self.requests.get(request_id)
            written = model_runner_output.sampled_token_ids[rows[request_id]] if request_id in rows else ()
            if request is None or request.is_finished() or not written:
                continue
            known = list(request.all_token_ids[length:])
            if request_id in scheduled.drafted.survival and list(draft.tokens[: len(known)]) != known:
                verified = len(scheduler_output.scheduled_spec_decode_tokens[request_id])
                theirs = min(verified, scheduled.drafted.passes)
                accepted = min(len(written) - 1, theirs)
                self._device_drafter.learn(request_id, theirs, accepted)
                if self._draft_sampling is not None:
                    self._draft_sampling.learn(request_id, theirs, accepted)
                if draft.proposer != self._device_drafter.name:
                    self._loop.composer.tally.uncount(draft.proposer, verified)

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        result = super().update_from_output(scheduler_output, model_runner_output)
        if not self.requests:
            self._trace("write_requests")
        return result

    # ---- requests with structured output ----

    def update_draft_token_ids_in_output(self, draft_token_ids: Any, scheduler_output: Any) -> None:
        """Cut drafts where the grammars of their requests forbid a token. vLLM calls this when the step is
        under way, the one before it is over, and nothing has been sampled: which tokens the workers verify
        can be told now. `draft_token_ids` are the drafter's."""
        drafters = dict(zip(draft_token_ids.req_ids, draft_token_ids.draft_token_ids, strict=False))
        scheduled = self._under_way.get(id(scheduler_output))
        drafted_for = scheduled.drafted.survival if scheduled else ()
        verified: dict[str, list[int]] = {}
        for request_id, (length, draft) in (scheduled.drafts if scheduled else {}).items():
            request = self.requests.get(request_id)
            if request is not None and request.use_structured_output:
                written = request.all_token_ids[length:]
                has_theirs = self._reads is None or request_id in drafted_for
                theirs = drafters.get(request_id, ()) if has_theirs else ()
                verified[request_id] = tokens_verified(draft.tokens, written, theirs)
        ours = DraftTokenIds(list(verified), list(verified.values()))
        super().update_draft_token_ids_in_output(ours, scheduler_output)

    def _free_request(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        if self._device_drafter is not None:
            self._device_drafter.forget(request.request_id)
        if self._reads is not None:
            self._reads.forget(request.request_id)
        self._asking.discard(request.request_id)
        if self._draft_sampling is not None:
            self._draft_sampling.forget(request.request_id)
        return super()._free_request(request, *args, **kwargs)

    def counts(self) -> dict[str, Any]:
        counts = super().counts()
        if self._device_drafter is not None:
            counts["drafts"] |= self._device_drafter.tally.drafts
            counts["positions"] += self._device_drafter.tally.positions()
        return counts

    def report(self) -> dict[str, Any]:
        report = super().report()
        if self._device_drafter is not None:
            for what, of_drafter in self._device_drafter.report().items():
                report[what] = {**report[what], **of_drafter}
        if self._draft_sampling is not None:
            report["draft_sampling"] = self._draft_sampling.report()
        return report


def tokens_verified(draft: Sequence[int], written: Sequence[int], drafters: Sequence[int]) -> list[int]:
    """Return what the workers verify after the tokens that the step before has written (see
    `engine.worker.v2_alignment`): the rest of our draft; or, if ours was wrong about them, the drafter's,
    where it has any."""
    rest = [] if UNKNOWN in draft else list(draft[len(written) :])
    if UNKNOWN not in draft and list(draft[: len(written)]) == list(written):
        return rest
    pairs = zip_longest(rest, drafters, fillvalue=UNKNOWN)
    return [max(mine, 0) if theirs < 0 else theirs for mine, theirs in pairs]
