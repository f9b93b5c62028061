"""The scheduler that vLLM runs for us, by dotted path (`scheduler_cls`): here it is decided what is drafted.

Free proposers run in this process: it knows every request's text, it is one however many ranks there are,
and what they propose can be weighed before a drafter is asked. The drafter's weights are in the workers;
they are asked for its tokens once the target has written, and only when some request needs it. In `auto`
the planner decides how much of all that is done; it learns from the times of the steps, which are taken here.
"""

import itertools
import time
from collections.abc import Mapping, Sequence
from typing import Any

from vllm.v1.core.sched.scheduler import Scheduler as VllmScheduler
from vllm.v1.outputs import DraftTokenIds

from slipstream.drafting.base import Draft, Proposer, RequestInfo
from slipstream.drafting.composer import EVERYTHING, Chosen, Composer
from slipstream.drafting.registry import make_proposer
from slipstream.engine.patches import draft_after_every_step, expose_scheduler_report
from slipstream.engine.planning import Plans, logger, stated_survival
from slipstream.engine.settings import Settings
from slipstream.engine.wishes import AUTO, OFF, wish_of
from slipstream.planning.planner import Planner
from slipstream.planning.step_cost import GUESS, PassProfile, Step, StepCost

PATIENCE = 4  # looks at a request without a draft worth verifying, after which it is looked at less often
MOST_LOOKED_AT = 256  # requests in a step; where more could be, they take turns
READ_PER_STEP = 16_384  # tokens of all requests that the proposers are told in a step
WAITING_LOOKED_AT = 16  # requests, for how many prompt tokens the next step may hold


class WorkerDrafter(Proposer):
    """Stands in for the drafter, whose weights are in the workers."""

    free = False
    KEEP_UP = ("eagle", "eagle3")  # they must see every step, wanted or not

    def __init__(self, method: str) -> None:
        self.name = method
        self.executor: Any = None

    def observe(self, request_id: str, tokens: Sequence[int]) -> None:
        pass

    def propose(self, wanted: Mapping[str, int]) -> dict[str, Draft]:
        if not wanted and self.name not in self.KEEP_UP:
            return {}
        answers = self.executor.collective_rpc("draft", args=(dict(wanted),))
        # Of the rank that has the drafter.
        drafts: dict[str, list[int]] | str = next((answer for answer in answers if answer), {})
        if isinstance(drafts, str):
            raise RuntimeError(drafts)
        return {
            request_id: Draft(tokens, self.expected_survival(len(tokens)))
            for request_id, tokens in drafts.items()
        }

    def forget(self, request_id: str) -> None:
        pass

    def expected_survival(self, most: int) -> list[float]:
        return stated_survival(most)


class _Watched:
    """What is kept of a running request."""

    __slots__ = ("disappointments", "prompt_tokens", "sampling", "seen", "wish")

    def __init__(self, request: Any, wish: int) -> None:
        self.sampling = request.sampling_params
        self.wish = wish
        self.prompt_tokens = request.num_prompt_tokens
        self.seen = 0  # tokens of its text that the proposers know
        self.disappointments = 0  # looks in a row that brought nothing worth verifying


class Scheduler(Plans, VllmScheduler):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        settings = Settings.of(self.vllm_config)
        self._share = settings.share
        self._most_requested = settings.max_requested_tokens
        self._composer: Composer | None = None
        self._planner: Planner | None = None
        self._plans = settings.plans
        self._drafter: WorkerDrafter | None = None
        self._watched: dict[str, _Watched] = {}
        self._turn = 0  # of the requests that are looked at less often
        self._room = READ_PER_STEP  # what the proposers may still be told in this step
        self._steps = 0
        self._seconds = 0.0  # spent on drafting in this process, waiting for the drafter included
        self._begun: float | None = None  # when the step was scheduled, if one is under way
        self._step = Step(0)
        self._tokens = 0  # that it wrote
        self._pinned: dict[str, int] = {}  # draft tokens that requests of the next step settle themselves
        self._pinned_drafts = 0  # of the step
        self._pinned_tokens = 0  # of these, how many were accepted
        self._drafting = 0.0  # seconds of drafting for it
        self._drafting_next = 0.0
        self._drafted: list[tuple[float, float]] = []
        """From when to when we drafted since the last step was scheduled, by `time.perf_counter`."""
        if not settings.composes:
            return
        vocab_size = self.vllm_config.model_config.get_vocab_size()
        proposers = [make_proposer(name, dict(options)) for name, options in settings.free.items()]
        if settings.drafter:
            self._drafter = WorkerDrafter(settings.drafter)
            proposers.append(self._drafter)
        self._composer = Composer(proposers, vocab_size)
        # One K for every number of requests, so that vLLM does not pad a request whose prompt is cached but
        # for one token with K drafts that cannot be right (it does so for CUDA graphs of one shape).
        self.dynamic_sd_lookup = [self.num_spec_tokens] * (self.max_num_running_reqs + 1)
        draft_after_every_step()
        expose_scheduler_report()

    # ---- vLLM's steps, and their times ----

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        now = time.perf_counter()
        output = super().schedule(*args, **kwargs)
        output.slipstream_drafted, self._drafted = self._drafted, []
        if self._planner is not None:
            try:
                self._measure(now, output)
            except Exception:
                self._failed("measuring a step", "nothing is learnt from it")
        return output

    def _measure(self, now: float, output: Any) -> None:
        """A step begins `now`, and so the one before is over, if the engine did not wait in between."""
        assert self._planner is not None
        if self._begun is not None:
            seconds = now - self._begun - self._drafting_next
            self._planner.measured(
                self._step, seconds, self._drafting, self._tokens, self._pinned_drafts, self._pinned_tokens
            )
        self._begun = now if output.total_num_scheduled_tokens else None
        self._step = self._described(output)
        drafts = output.scheduled_spec_decode_tokens
        self._pinned_drafts = sum(len(drafts.get(request_id, ())) for request_id in self._pinned)
        self._drafting, self._drafting_next = self._drafting_next, 0.0

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        if self._planner is not None:
            sampled, rows = model_runner_output.sampled_token_ids, model_runner_output.req_id_to_index
            self._tokens = sum(map(len, sampled))
            pinned = [sampled[rows[request_id]] for request_id in self._pinned if request_id in rows]
            self._pinned_tokens = sum(max(len(tokens) - 1, 0) for tokens in pinned)
        return super().update_from_output(scheduler_output, model_runner_output)

    def update_draft_token_ids(self, draft_token_ids: DraftTokenIds) -> None:
        """What vLLM's own proposer drafted, except for requests that cannot or shall not have drafts."""
        drafts = []
        for request_id, tokens in zip(draft_token_ids.req_ids, draft_token_ids.draft_token_ids, strict=False):
            wish = wish_of(self.requests.get(request_id), self._most_requested)
            drafts.append(tokens if wish == AUTO else tokens[:wish])
        super().update_draft_token_ids(DraftTokenIds(draft_token_ids.req_ids, drafts))

    # ---- drafting ----

    @property
    def composes(self) -> bool:
        """Drafts come from our proposers, not from vLLM's."""
        return self._composer is not None

    def draft(self, executor: Any) -> None:
        """Draft for every request that the step has moved on. Called after each step (see patches)."""
        begun = time.perf_counter()
        try:
            self._draft(executor)
        except Exception:
            self._failed("drafting", "this step has no drafts")
        self._steps += 1
        ended = time.perf_counter()
        self._drafted = [(begun, ended)]
        self._drafting_next = ended - begun
        self._seconds += self._drafting_next
        if not self.running and not self.waiting:
            self._begun = None  # the engine waits: that is no step

    def _draft(self, executor: Any) -> None:
        assert self._composer is not None
        if self._drafter is not None:
            self._drafter.executor = executor
        if self._plans and self._planner is None:
            self._planner = _planner(executor)
        if not (looked_at := self._looked_at()) and self._drafter is None:
            return
        begun = time.perf_counter()
        wanted = {}
        self._room = READ_PER_STEP
        looked_at.sort(key=lambda request: request.num_tokens - self._watched[request.request_id].seen)
        for request in looked_at:
            if self._observe(request) and (most := self._most_tokens(request)) > 0:
                wanted[request.request_id] = most
        chosen = self._composer.draft(wanted, self._planner or EVERYTHING)
        if self._planner is not None:
            self._planner.looked(len(looked_at), time.perf_counter() - begun - self._planner.drafting)
        self._remember(wanted, chosen)
        if chosen:
            drafts = [list(draft.tokens) for draft in chosen.values()]
            super().update_draft_token_ids(DraftTokenIds(list(chosen), drafts))

    def _looked_at(self) -> list[Any]:
        """The requests to draft for. Those that lately had nothing worth verifying take turns."""
        planner = self._planner
        paused = planner is not None and not planner.guard.allows
        looked_at: list[Any] = []
        others: list[Any] = []
        pinned: dict[str, int] = {}
        prompt_tokens = 0
        for request in self.running:
            if request.is_prefill_chunk:
                prompt_tokens += request.num_tokens - request.num_computed_tokens
                continue
            if request.num_computed_tokens >= request.num_tokens:
                continue  # its next token is in flight: several batches are, with pipeline parallelism
            state = self._watched.get(request.request_id)
            if state is None:
                wish = wish_of(request, self._most_requested)
                state = self._watched[request.request_id] = _Watched(request, wish)
            elif state.sampling is not request.sampling_params:  # another turn of a session
                state.sampling = request.sampling_params
                state.wish = wish_of(request, self._most_requested)
            if state.wish == AUTO and not paused:
                patient = planner is None or state.disappointments < PATIENCE
                (looked_at if patient else others).append(request)
            elif state.wish > OFF:
                pinned[request.request_id] = state.wish
                looked_at.append(request)
        self._pinned = pinned
        if len(looked_at) > MOST_LOOKED_AT:
            first = self._turn % len(looked_at)
            looked_at = (looked_at[first:] + looked_at[:first])[:MOST_LOOKED_AT]
            self._turn += MOST_LOOKED_AT
            others = []
        if planner is None or not (looked_at or others):
            return looked_at
        prefill = self._prompt_tokens_to_come(prompt_tokens)
        planner.upcoming(Step(len(self.running), 0, prefill, self._context()), pinned)
        if others:
            looks = planner.looks(len(others))
            looked_at += [others[(self._turn + at) % len(others)] for at in range(looks)]
            self._turn += looks
        return looked_at

    def _prompt_tokens_to_come(self, begun: int) -> int:
        """In the next step, as far as can be told; `begun` are those of prompts that are under way."""
        if self.waiting and len(self.running) < self.max_num_running_reqs:
            begun += sum(r.num_tokens for r in itertools.islice(self.waiting, WAITING_LOOKED_AT))
        return max(min(begun, self.max_num_scheduled_tokens - len(self.running)), 0)

    def _remember(self, wanted: Mapping[str, int], chosen: Mapping[str, Chosen]) -> None:
        looks, tokens = 0, 0.0  # at requests that lately had nothing
        for request_id in wanted:
            state = self._watched[request_id]
            draft = chosen.get(request_id)
            if state.disappointments >= PATIENCE:
                looks += 1
                tokens += sum(draft.survival) if draft else 0.0
            state.disappointments = 0 if draft else state.disappointments + 1
        if self._planner is not None:
            self._planner.brought(looks, tokens)

    def report(self) -> dict[str, Any]:
        """Counts by proposer since the engine's start, and what the planner believes."""
        assert self._composer is not None
        tally, faults = self._composer.tally, self._composer.faults
        return {
            "drafts": dict(tally.drafts),
            "draft_tokens": dict(tally.draft_tokens),
            "accepted_tokens": dict(tally.accepted_tokens),
            "microseconds": dict(tally.microseconds),
            "faults": [[*which, count] for which, count in faults.counts.items()],
            "off": sorted(faults.off),
            "failures": self._failures,
            "steps": self._steps,
            "seconds": self._seconds,
            "acceptance": self._composer.calibration.report(),
            "planner": self._planner.report() if self._planner else None,
        }

    def _observe(self, request: Any) -> bool:
        """Tell the proposers what has been added to the request's text. False if nothing has, or if there is
        more than fits into this step: the rest follows in the next ones, and then there are drafts."""
        assert self._composer is not None
        request_id = request.request_id
        state = self._watched[request_id]
        if state.seen > request.num_tokens or state.prompt_tokens != request.num_prompt_tokens:
            # A session that goes on from an earlier point, or with another turn of the user's, which is
            # prompt and no answer.
            self._composer.forget(request_id)
            state.seen, state.prompt_tokens = 0, request.num_prompt_tokens
        if state.seen == request.num_tokens:
            return False
        if request_id not in self._composer:
            self._composer.start(
                RequestInfo(request_id, request.num_prompt_tokens, _tenant(request, self._share))
            )
        told = request.all_token_ids[state.seen : state.seen + self._room]
        if told:
            self._composer.observe(request_id, told)
        self._room -= len(told)
        state.seen += len(told)
        return bool(state.seen == request.num_tokens)

    def _most_tokens(self, request: Any) -> int:
        """At most K, and never past the request's end, where the last token needs no draft."""
        wish = self._watched[request.request_id].wish
        most = self.num_spec_tokens if wish == AUTO else min(wish, self.num_spec_tokens)
        room = min(request.max_tokens - request.num_output_tokens, self.max_model_len - request.num_tokens)
        return min(most, room - 1)

    def _free_request(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        if self._composer is not None and request.request_id in self._composer:
            try:
                self._observe(request)  # its last tokens: to score the last drafts, and for the shared texts
                self._composer.forget(request.request_id)
            except Exception:
                self._failed("forgetting a request", "its text may stay in memory")
        self._watched.pop(request.request_id, None)
        return super()._free_request(request, *args, **kwargs)


def _planner(executor: Any) -> Planner:
    """With what the workers measured at their start, if they are ours."""
    try:
        measured: Any = next((found for found in executor.collective_rpc("pass_profile") if found), None)
    except Exception:
        logger.warning("the workers tell no profile of their passes; it will be learnt from the steps")
        measured = None
    if measured is None:
        return Planner(StepCost(GUESS), drafter_pass=GUESS.seconds[0])
    profile = PassProfile.from_dict(measured)
    return Planner(StepCost(profile), drafter_pass=measured["drafter"] or profile.seconds[0] / 10)


def _tenant(request: Any, share: str) -> str | None:
    """Whose text the request's is, by the policy; texts under different LoRA adapters are kept apart."""
    if share == "off" or (share == "salt" and not request.cache_salt):
        return None
    adapter = request.lora_request.lora_name if request.lora_request else None
    return repr((adapter, request.cache_salt if share == "salt" else None))
