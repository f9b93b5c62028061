"""Recording a trace in a running engine, from its steps and its finished requests."""

import json
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, astuple
from pathlib import Path
from typing import Any

from slipstream.drafting.base import RequestInfo, common_prefix
from slipstream.drafting.registry import make_proposer
from slipstream.planning.objective import Objective
from slipstream.planning.planner import StepOutcome
from slipstream.planning.step_cost import PassProfile
from slipstream.replay.trace import VERSION, Limits, Offered, TracedRequest

MAX_FINISHED = 4096  # requests kept in memory; with more, the oldest are left out


class TraceRecorder:
    """Writes a trace. The free proposers are run again over every finished answer, at each of its places, so
    that it can be replayed with other plans; shared text is left out."""

    def __init__(
        self,
        path: Path,
        limits: Limits,
        free: Mapping[str, Mapping[str, Any]],
        objective: Objective = Objective.THROUGHPUT,
    ) -> None:
        self._file = path.open("w", buffering=1)
        self._limits, self._objective = limits, objective
        self._proposers = [
            make_proposer(name, {**options, **_unshared(options)}) for name, options in free.items()
        ]
        self._begun: float | None = None
        self._arrivals: dict[str, tuple[float, int]] = {}  # when, and after how many had finished
        self._cached: dict[str, int] = {}
        self._num_finished = 0
        self._has_head = False
        self._finished: deque[tuple[tuple[float, int], list[int], int, int, int]] = deque(maxlen=MAX_FINISHED)

    def start(self, request_id: str) -> None:
        """Note that a request has arrived."""
        now = time.perf_counter()
        self._begun = self._begun or now
        self._arrivals[request_id] = now - self._begun, self._num_finished

    def begin(self, request_id: str, num_cached_tokens: int) -> None:
        """Note how much of a request's prompt the prefix cache has, when it is scheduled first."""
        self._cached[request_id] = num_cached_tokens

    def record(self, outcome: StepOutcome, profile: PassProfile | None) -> None:
        """Write a step."""
        if not self._has_head:
            self._has_head = True
            told = profile.as_dict() if profile else None
            limits = asdict(self._limits)
            self._write(
                {"slipstream_trace": VERSION, "limits": limits, "profile": told, "objective": self._objective}
            )
        self._write({"step": {**asdict(outcome), "step": astuple(outcome.step)}})

    def finish(
        self,
        request_id: str,
        tokens: Sequence[int],
        num_prompt_tokens: int,
        max_tokens: int,
    ) -> None:
        """Keep a finished request in memory until `write_requests`."""
        self._num_finished += 1
        arrival = self._arrivals.pop(request_id, None)
        num_cached_tokens = self._cached.pop(request_id, 0)
        if arrival is not None and len(tokens) > num_prompt_tokens:
            self._finished.append((arrival, list(tokens), num_prompt_tokens, num_cached_tokens, max_tokens))

    def write_requests(self) -> None:
        """Write the finished requests, as numbers. It takes time: call it while the engine waits."""
        while self._finished and self._has_head:
            arrival, tokens, num_prompt_tokens, num_cached_tokens, max_tokens = self._finished.popleft()
            offers = {
                proposer.name: dict(self._offers(proposer, tokens, num_prompt_tokens))
                for proposer in self._proposers
            }
            num_output_tokens = len(tokens) - num_prompt_tokens
            request = TracedRequest(
                *arrival, num_prompt_tokens, num_cached_tokens, num_output_tokens, max_tokens, offers
            )
            self._write({"request": request.as_dict()})

    def _offers(
        self, proposer: Any, tokens: Sequence[int], num_prompt_tokens: int
    ) -> Iterator[tuple[int, Offered]]:
        proposer.start(RequestInfo("", num_prompt_tokens))
        proposer.observe("", tokens[:num_prompt_tokens])
        for end in range(num_prompt_tokens, len(tokens) - 1):
            proposer.observe("", tokens[end : end + 1])
            draft = proposer.propose({"": self._limits.num_draft_tokens}).get("")
            if draft is not None and len(draft.tokens):
                right = common_prefix(draft.tokens, tokens[end + 1 :])
                survival = [round(float(value), 3) for value in draft.survival]
                yield end + 1 - num_prompt_tokens, Offered(right, survival)
        proposer.forget("")

    def _write(self, content: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(content, separators=(",", ":")) + "\n")


def _unshared(options: Mapping[str, Any]) -> dict[str, Any]:
    return {"share": False} if "share" in options else {}
