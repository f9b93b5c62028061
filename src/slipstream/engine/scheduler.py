"""The scheduler that vLLM runs for us, by dotted path (`scheduler_cls`): here it is decided what is drafted.

Free proposers run in this process: it knows every request's text, it is one however many ranks there are,
and what they propose can be weighed before a drafter is asked. The drafter's weights are in the workers;
they are asked for its tokens once the target has written, and only when some request needs it.
"""

import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any

from vllm.v1.core.sched.scheduler import Scheduler as VllmScheduler
from vllm.v1.outputs import DraftTokenIds

from slipstream.drafting.base import Draft, Proposer, RequestInfo
from slipstream.drafting.composer import Composer
from slipstream.drafting.registry import make_proposer
from slipstream.engine.patches import draft_after_every_step
from slipstream.engine.settings import Settings

logger = logging.getLogger("slipstream")

MIN_P_NOTHING = 1e-5  # vLLM's own threshold


class WorkerDrafter(Proposer):
    """Stands in for the drafter, whose weights are in the workers."""

    free = False
    SURVIVAL_PER_TOKEN = 0.7  # before anything has been seen
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
        return [self.SURVIVAL_PER_TOKEN ** (j + 1) for j in range(most)]


class Scheduler(VllmScheduler):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        settings = Settings.of(self.vllm_config)
        self._share = settings.share
        self._composer: Composer | None = None
        self._drafter: WorkerDrafter | None = None
        self._seen: dict[str, int] = {}  # tokens of each request that the proposers know
        self._failures = 0
        self._steps = 0
        self._seconds = 0.0  # spent on drafting in this process, waiting for the drafter included
        if not settings.composes:
            return
        vocab_size = self.vllm_config.model_config.get_vocab_size()
        proposers = [make_proposer(name, dict(options)) for name, options in settings.free.items()]
        if settings.drafter:
            self._drafter = WorkerDrafter(settings.drafter)
            proposers.append(self._drafter)
        self._composer = Composer(proposers, vocab_size)
        draft_after_every_step()

    def update_draft_token_ids(self, draft_token_ids: DraftTokenIds) -> None:
        """What vLLM's own proposer drafted, except for requests whose sampling cannot be verified."""
        drafts = [
            tokens if _can_verify(self.requests.get(request_id)) else []
            for request_id, tokens in zip(
                draft_token_ids.req_ids, draft_token_ids.draft_token_ids, strict=False
            )
        ]
        super().update_draft_token_ids(DraftTokenIds(draft_token_ids.req_ids, drafts))

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
        self._seconds += time.perf_counter() - begun

    def _draft(self, executor: Any) -> None:
        assert self._composer is not None
        if self._drafter is not None:
            self._drafter.executor = executor
        wanted = {}
        for request in self.running:
            if not request.is_prefill_chunk and self._observe(request):
                most = self._most_tokens(request)
                if most > 0:
                    wanted[request.request_id] = most
        chosen = self._composer.draft(wanted)
        drafts = [list(chosen[request_id].tokens) if request_id in chosen else [] for request_id in wanted]
        super().update_draft_token_ids(DraftTokenIds(list(wanted), drafts))

    def _failed(self, what: str, consequence: str) -> None:
        """A fault of our own: counted, logged once, and the requests go on."""
        if not self._failures:
            logger.exception("%s failed; %s", what, consequence)
        self._failures += 1

    def report(self) -> dict[str, Any]:
        """Counts by proposer since the engine's start."""
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
        }

    def _observe(self, request: Any) -> bool:
        """Tell the proposers what has been added to the request's text; False if nothing has."""
        assert self._composer is not None
        request_id = request.request_id
        seen = self._seen.get(request_id, 0)
        if seen > request.num_tokens:  # a session that goes on from an earlier point
            self._composer.forget(request_id)
            seen = 0
        if seen == request.num_tokens:
            return False
        if request_id not in self._composer:
            self._composer.start(
                RequestInfo(request_id, request.num_prompt_tokens, _tenant(request, self._share))
            )
        self._composer.observe(request_id, request.all_token_ids[seen:])
        self._seen[request_id] = request.num_tokens
        return True

    def _most_tokens(self, request: Any) -> int:
        """At most K, and never past the request's end, where the last token needs no draft."""
        if not _can_verify(request):
            return 0
        room = min(request.max_tokens - request.num_output_tokens, self.max_model_len - request.num_tokens)
        return min(self.num_spec_tokens, room - 1)

    def _free_request(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        if self._composer is not None and request.request_id in self._composer:
            try:
                self._observe(request)  # its last tokens, for those that may draft from them later
                self._composer.forget(request.request_id)
            except Exception:
                self._failed("forgetting a request", "its text may stay in memory")
        self._seen.pop(request.request_id, None)
        return super()._free_request(request, *args, **kwargs)


def _can_verify(request: Any) -> bool:
    """vLLM's rejection sampler does not know these; such requests are served without drafts."""
    sampling = request.sampling_params if request else None
    return sampling is not None and not (
        sampling.min_p > MIN_P_NOTHING or sampling.logit_bias or sampling.trace_decode_token_ids
    )


def _tenant(request: Any, share: str) -> str | None:
    """Whose text the request's is, by the policy; texts under different LoRA adapters are kept apart."""
    if share == "off" or (share == "salt" and not request.cache_salt):
        return None
    adapter = request.lora_request.lora_name if request.lora_request else None
    return repr((adapter, request.cache_salt if share == "salt" else None))
