"""vLLM's scheduler, by dotted path (`scheduler_cls`): adapts the speculation loop (`slipstream.loop`) to it.

Free proposers run in this process: it knows every request's text, it is one however many ranks there are,
and what they propose can be weighed before a drafter is asked. The drafter's weights are in the workers;
they are asked for its tokens once the target has written, and only when some request needs it, but for
drafters that must see every step (`Method.sees_every_step`).
"""

import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from vllm.v1.core.sched.scheduler import Scheduler as VllmScheduler
from vllm.v1.outputs import DraftTokenIds

from slipstream.drafting.base import Draft, Proposer
from slipstream.drafting.composer import Composer
from slipstream.drafting.grammar import GrammarProposer
from slipstream.drafting.registry import make_proposer
from slipstream.drafting.requests import AUTO, RunningRequest
from slipstream.engine.core.grammar_state import EngineTokenizer, RequestGrammar
from slipstream.engine.core.request_options import requested_draft_tokens
from slipstream.engine.core.step_stats import StepStats, StepTimer, describe_drafter, logger, prior_survival
from slipstream.engine.patches import draft_after_every_step, expose_scheduler_report
from slipstream.engine.settings import TRACE_VARIABLE, Settings
from slipstream.loop import SpeculationLoop
from slipstream.methods import method_of
from slipstream.planning.objective import Bounds, Objective
from slipstream.planning.planner import MeasuredDrafterCost, Planner, Queue, StepOutcome
from slipstream.planning.policy import VerifyAll
from slipstream.planning.step_cost import GUESS, PassProfile, Step, StepCost
from slipstream.replay.recorder import TraceRecorder
from slipstream.replay.trace import Limits


class WorkerDrafter(Proposer):
    """Asks the workers for the drafts of the drafter, whose weights they have."""

    free = False

    def __init__(self, method: str) -> None:
        self.name = method
        self.executor: Any = None

    def observe(self, request_id: str, tokens: Sequence[int]) -> None:
        pass

    def propose(self, wanted: Mapping[str, int]) -> dict[str, Draft]:
        if not wanted and not method_of(self.name).sees_every_step:
            return {}
        answers = self.executor.collective_rpc("draft", args=(dict(wanted),))
        # Of the rank that has the drafter.
        drafts: dict[str, tuple[list[int], list[float]]] | str
        drafts = next((answer for answer in answers if answer), {})
        if isinstance(drafts, str):
            raise RuntimeError(drafts)
        return {
            request_id: Draft(tokens, survival or self.expected_survival(len(tokens)))
            for request_id, (tokens, survival) in drafts.items()
        }

    def forget(self, request_id: str) -> None:
        pass

    def expected_survival(self, max_tokens: int) -> list[float]:
        return prior_survival(max_tokens)


class VllmRequest(RunningRequest):
    """Describes a request of vLLM's to the loop."""

    __slots__ = ("_limit", "_max_model_len", "_request", "_sampling")

    def __init__(self, request: Any, scheduler: "Scheduler") -> None:
        super().__init__(request.request_id, tenant=_tenant(request, scheduler.share))
        self._request = request
        if scheduler.drafts_by_grammar and request.use_structured_output:
            self.grammar = RequestGrammar(request, scheduler.structured_output_manager)
        self._sampling: Any = None
        self._max_model_len = scheduler.max_model_len
        self.update(scheduler)

    def update(self, scheduler: "Scheduler") -> None:
        """Read the request's options again if they are another turn's."""
        if self._sampling is not self._request.sampling_params:
            self._sampling = self._request.sampling_params
            self.requested = requested_draft_tokens(self._request, scheduler.max_requested_tokens)
            self.priority = self._request.priority
            self._limit = scheduler.num_spec_tokens
            if self.requested != AUTO:
                self._limit = min(self._limit, self.requested)

    @property
    def tokens(self) -> Sequence[int]:
        return self._request.all_token_ids

    @property
    def num_prompt_tokens(self) -> int:
        return self._request.num_prompt_tokens

    @property
    def tokens_left(self) -> int:
        request = self._request
        return min(request.max_tokens - request.num_output_tokens, self._max_model_len - request.num_tokens)

    @property
    def max_draft_tokens(self) -> int:
        """Return at most K, and never past the request's end, where the last token needs no draft."""
        return min(self._limit, self.tokens_left - 1)


class Scheduler(StepStats, VllmScheduler):
    request_class = VllmRequest
    steps_under_way = 0
    """When drafts are made."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        settings = Settings.of(self.vllm_config)
        self.share = settings.share
        self.max_requested_tokens = settings.max_requested_tokens
        self._loop: SpeculationLoop | None = None
        self._needs_planner = settings.plans
        self._objective = Objective(settings.objective)
        self._bounds = Bounds(_seconds(settings.max_tpot_ms), _seconds(settings.max_ttft_ms))
        self._drafter: WorkerDrafter | None = None
        self._loaded_drafter = describe_drafter(self.vllm_config)
        self._described: dict[str, VllmRequest] = {}
        self._cached_tokens: dict[str, int] = {}
        """Of the prompts of running requests, by request."""
        self._timer = StepTimer()
        self.drafts_by_grammar = False
        self._steps = 0
        self._recorder: TraceRecorder | None = None
        self._seconds = 0.0  # spent on drafting in this process, waiting for the drafter included
        if not settings.composes:
            return
        free = {name: options for name, options in settings.free.items() if name != GrammarProposer.name}
        proposers = [make_proposer(name, dict(options)) for name, options in free.items()]
        if GrammarProposer.name in settings.free and not self.vllm_config.model_config.skip_tokenizer_init:
            self.drafts_by_grammar = True
            proposers.append(GrammarProposer(EngineTokenizer(self.structured_output_manager)))
        if settings.drafter and not self.steps_under_way:
            self._drafter = WorkerDrafter(settings.drafter)
            proposers.append(self._drafter)
        vocab_size = self.vllm_config.model_config.get_vocab_size()
        self._loop = SpeculationLoop(Composer(proposers, vocab_size, self.steps_under_way), VerifyAll())
        # One K for every number of requests, so that vLLM does not pad a request whose prompt is cached but
        # for one token with K drafts that cannot be right (it does so for CUDA graphs of one shape).
        self.dynamic_sd_lookup = [self.num_spec_tokens] * (self.max_num_running_reqs + 1)
        if path := os.environ.get(TRACE_VARIABLE):
            limits = Limits(self.max_num_running_reqs, self.max_num_scheduled_tokens, self.num_spec_tokens)
            self._recorder = TraceRecorder(Path(path), limits, free, self._objective)
        draft_after_every_step()
        expose_scheduler_report()

    @property
    def composes(self) -> bool:
        """Return whether drafts come from our proposers, not from vLLM's."""
        return self._loop is not None

    # ---- drafting, between two steps ----

    def draft(self, executor: Any) -> None:
        """Draft for every request that the step has moved on. Called after each step (see patches)."""
        begun = time.perf_counter()
        try:
            self._draft(executor)
        except Exception:
            self._failed("drafting", "this step has no drafts")
        ended = time.perf_counter()
        self._timer.record_drafting(begun, ended)
        self._steps += 1
        self._seconds += ended - begun
        if not self.running and not self.waiting:
            self._timer.wait()
            self._trace("write_requests")

    def _draft(self, executor: Any) -> None:
        assert self._loop is not None
        if self._drafter is not None:
            self._drafter.executor = executor
        if self._needs_planner:
            self._loop.policy = make_planner(executor, self._objective, self._bounds)
            self._needs_planner = False
        drafts = self._loop.draft(self._decoding(), self._next_step(), self._queue())
        if drafts:
            tokens = [list(draft.tokens) for draft in drafts.values()]
            super().update_draft_token_ids(DraftTokenIds(list(drafts), tokens))

    def _decoding(self) -> Iterator[VllmRequest]:
        """Describe the requests whose next step could verify drafts."""
        for request in self.running:
            if request.is_prefill_chunk or request.num_computed_tokens >= request.num_tokens:
                continue  # or its next token is in flight: several batches are, with pipeline parallelism
            yield self._describe_request(request)

    def _describe_request(self, request: Any) -> VllmRequest:
        described = self._described.get(request.request_id)
        if described is None:
            described = self._described[request.request_id] = self.request_class(request, self)
        else:
            described.update(self)
        return described

    def _queue(self) -> Queue:
        places = max(self.max_num_running_reqs - len(self.running), 0)
        starting = min(len(self.waiting), places)
        return Queue(starting, len(self.waiting) - starting)

    def _next_step(self) -> Step:
        return Step.forecast(
            running=len(self.running),
            prompt_tokens=sum(
                r.num_tokens - r.num_computed_tokens for r in self.running if r.is_prefill_chunk
            ),
            waiting=(r.num_tokens for r in self.waiting),
            max_running=self.max_num_running_reqs,
            max_tokens=self.max_num_scheduled_tokens,
            context=self._context(),
        )

    def update_draft_token_ids(self, draft_token_ids: DraftTokenIds) -> None:
        """Take what vLLM's own proposer drafted, except for requests that cannot or shall not have drafts."""
        drafts = []
        for request_id, tokens in zip(draft_token_ids.req_ids, draft_token_ids.draft_token_ids, strict=False):
            requested = requested_draft_tokens(self.requests.get(request_id), self.max_requested_tokens)
            drafts.append(tokens if requested == AUTO else tokens[:requested])
        super().update_draft_token_ids(DraftTokenIds(draft_token_ids.req_ids, drafts))

    # ---- vLLM's steps, their times, and the requests that leave ----

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        now = time.perf_counter()
        output = super().schedule(*args, **kwargs)
        output.slipstream_drafted = self._timer.drafting
        for new in output.scheduled_new_reqs:
            self._trace("begin", new.req_id, new.num_computed_tokens)
            if self._loop is not None:
                self._cached_tokens[new.req_id] = new.num_computed_tokens
        if self._loop is not None:
            try:
                self._record(now, output)
            except Exception:
                self._failed("measuring a step", "nothing is learnt from it")
        return output

    def _record(self, now: float, output: Any) -> None:
        """Record the step before, which is over."""
        assert self._loop is not None
        drafts = output.scheduled_spec_decode_tokens
        requested = sum(len(drafts.get(request_id, ())) for request_id in self._loop.state.requested)
        if outcome := self._timer.begin_step(now, self._describe(output), self._loop.promise, requested):
            self._learn_outcome(outcome)

    def _learn_outcome(self, outcome: StepOutcome) -> None:
        assert self._loop is not None
        self._loop.record(outcome)
        policy = self._loop.policy
        self._trace("record", outcome, policy.cost.profile if isinstance(policy, Planner) else None)

    def add_request(self, request: Any) -> None:
        self._trace("start", request.request_id)
        if self._loop is not None:
            self._loop.arrive(bool(self.running))
        super().add_request(request)

    def _trace(self, call: str, *arguments: Any) -> None:
        """Tell the recorder, if there is one; one that fails is not told again."""
        if self._recorder is not None:
            try:
                getattr(self._recorder, call)(*arguments)
            except Exception:
                self._failed("recording a trace", "it ends here")
                self._recorder = None

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        if self._loop is not None:
            try:
                self._note_output(scheduler_output, model_runner_output)
            except Exception:
                self._failed("counting a step's tokens", "nothing is learnt from it")
        return super().update_from_output(scheduler_output, model_runner_output)

    def _note_output(self, scheduler_output: Any, model_runner_output: Any) -> None:
        assert self._loop is not None
        self._timer.record_output(*self._count_tokens(self._loop.state.requested, model_runner_output))

    def _count_tokens(self, requested: Iterable[str], output: Any) -> tuple[int, int]:
        """Return how many tokens a step wrote, and how many drafts of the `requested` were accepted."""
        sampled, rows = output.sampled_token_ids, output.req_id_to_index
        theirs = [sampled[rows[request_id]] for request_id in requested if request_id in rows]
        return sum(map(len, sampled)), sum(max(len(tokens) - 1, 0) for tokens in theirs)

    def _free_request(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        described = self._described.pop(request.request_id, None)
        cached_tokens = self._cached_tokens.pop(request.request_id, 0)
        self._trace(
            "finish",
            request.request_id,
            request.all_token_ids,
            request.num_prompt_tokens,
            request.max_tokens,
        )
        if described is not None:
            try:
                assert self._loop is not None
                self._loop.finish(described, cached_tokens)
            except Exception:
                self._failed("forgetting a request", "its text may stay in memory")
        return super()._free_request(request, *args, **kwargs)

    def counts(self) -> dict[str, Any]:
        """Return counts since the engine's start, for metrics: small, as they are asked for all the time."""
        assert self._loop is not None
        return {**self._loop.counts(), "drafter": self._loaded_drafter, "failures": self._failures}

    def report(self) -> dict[str, Any]:
        """Return counts by proposer since the engine's start, and what the planner believes."""
        assert self._loop is not None
        ours = {"failures": self._failures, "steps": self._steps, "seconds": self._seconds}
        return {**self._loop.report(), **ours}


def make_planner(executor: Any, objective: Objective, bounds: Bounds) -> Planner:
    """Make a planner from what the workers measured at their start, if they are ours."""
    try:
        measured: Any = next(found for found in executor.collective_rpc("pass_profile") if found)
        profile = PassProfile.from_dict(measured)
        drafter_pass, by_requests = measured["drafter"], measured["drafter_by_requests"]
    except Exception:
        logger.warning("the workers tell no profile of their passes; it will be learnt from the steps")
        profile, drafter_pass, by_requests = GUESS, 0.0, ()
    drafter = MeasuredDrafterCost(by_requests) if by_requests else None
    return Planner(StepCost(profile), drafter_pass or profile.seconds[0] / 10, objective, bounds, drafter)


def _seconds(milliseconds: float | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000


def _tenant(request: Any, share: str) -> str | None:
    """Return whose text the request's is, by the policy; LoRA adapters are kept apart."""
    if share == "off" or (share == "salt" and not request.cache_salt):
        return None
    adapter = request.lora_request.lora_name if request.lora_request else None
    return repr((adapter, request.cache_salt if share == "salt" else None))
