"""The speculation loop with asynchronous scheduling, on vLLM's V2 model runner; by dotted path
(`scheduler_cls`).

A step is scheduled while the one before it is under way. What is known then is the text up to the step before
that, so drafts begin with what the step under way is expected to write, and the workers verify what follows
(`engine.worker.v2_alignment`). How many tokens that is, is all that vLLM's scheduler is told: placeholders.
"""

import time
from collections.abc import Iterator
from typing import Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler as VllmAsyncScheduler

from slipstream.drafting.composer import Offer
from slipstream.engine.core.scheduler import Scheduler, VllmRequest, make_planner

PLACEHOLDER = -1


class RequestUnderWay(VllmRequest):
    """Describes a request whose last tokens are not known yet."""

    __slots__ = ()

    @property
    def tokens_under_way(self) -> int:
        return self._request.num_output_placeholders  # type: ignore[no-any-return]

    @property
    def tokens_left(self) -> int:
        return super().tokens_left - self.tokens_under_way


class AsyncScheduler(Scheduler, VllmAsyncScheduler):
    request_class = RequestUnderWay
    steps_under_way = 1

    def draft(self, executor: Any) -> None:
        """Make the planner; after a step it is too late for drafts, as the next is scheduled."""
        if self._needs_planner and self._loop is not None:
            self._loop.policy = make_planner(executor, self._objective, self._bounds)
            self._needs_planner = False
        if not self.running and not self.waiting:
            self._timer.wait()
            self._trace("write_requests")

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        drafts = self._draft_ahead()
        known = {}
        for request in self.running:
            if not request.is_prefill_chunk:
                skipped = request.num_output_placeholders
                tokens = drafts[request.request_id].tokens if request.request_id in drafts else ()
                request.spec_token_ids = [PLACEHOLDER] * max(len(tokens) - skipped, 0)
                known[request.request_id] = (request.num_tokens, list(tokens))
        output = super().schedule(*args, **kwargs)
        output.slipstream_drafts = {r: known[r] for r in output.scheduled_spec_decode_tokens if r in known}
        return output

    def _draft_ahead(self) -> dict[str, Offer]:
        if self._loop is None or not self.running:
            return {}
        begun = time.perf_counter()
        try:
            return self._loop.draft(self._decoding(), self._next_step(), self._queue())
        except Exception:
            self._failed("drafting", "this step has no drafts")
            return {}
        finally:
            ended = time.perf_counter()
            self._timer.record_drafting(begun, ended)
            self._seconds += ended - begun
            self._steps += 1

    def _decoding(self) -> Iterator[VllmRequest]:
        for request in self.running:
            if not request.is_prefill_chunk and not request.use_structured_output:
                yield self._describe_request(request)
