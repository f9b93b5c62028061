"""What each engine step did and how long it took, as the scheduler sees it: one JSON line per step.

For `slipstream bench` where the worker cannot tell: on a GPU, and with asynchronous scheduling, a step is
over when its output is there. All schedulers are timed alike, vLLM's own of the bare arm too.
"""

import json
import os
import time
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

from slipstream.engine.plugin import SCHEDULER_STEPS_VARIABLE

MOST_UNDER_WAY = 8  # steps


@cache
def write_step_times() -> None:
    """Let vLLM's scheduler, and those derived from it, write down every step of this process."""
    from vllm.v1.core.sched.scheduler import Scheduler

    steps = _Steps(Path(os.environ[SCHEDULER_STEPS_VARIABLE]))
    schedule, update = Scheduler.schedule, Scheduler.update_from_output

    def timed_schedule(self: Any, *args: Any, **kwargs: Any) -> Any:
        output = schedule(self, *args, **kwargs)
        steps.begin(output)
        return output

    def timed_update(self: Any, scheduler_output: Any, model_runner_output: Any) -> Any:
        steps.end(scheduler_output, model_runner_output)
        return update(self, scheduler_output, model_runner_output)

    Scheduler.schedule, Scheduler.update_from_output = timed_schedule, timed_update


class _Steps:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: Any = None
        self._begun: dict[int, float] = {}
        """When each step under way was scheduled, by the identity of its `SchedulerOutput`."""
        self._ended = 0.0

    def begin(self, scheduled: Any) -> None:
        while len(self._begun) > MOST_UNDER_WAY:  # some that vLLM dropped
            self._begun.pop(next(iter(self._begun)))
        self._begun[id(scheduled)] = time.perf_counter()

    def end(self, scheduled: Any, result: Any) -> None:
        now = time.perf_counter()
        begun = max(self._begun.pop(id(scheduled), now), self._ended)
        self._ended = now
        if not scheduled.total_num_scheduled_tokens:
            return
        drafted = list(getattr(scheduled, "slipstream_drafted", []))
        step = describe(scheduled, result) | {"begun": begun, "ended": now, "drafted": drafted}
        if self._file is None:
            self._file = self._path.open("a")
        self._file.write(json.dumps(step) + "\n")
        self._file.flush()


def describe(scheduled: Any, result: Any) -> dict[str, Any]:
    """Return what a step did, in counts. `offered[j]` and `accepted[j]`: requests whose draft token j was
    verified, and was kept."""
    drafts = {request: len(tokens) for request, tokens in scheduled.scheduled_spec_decode_tokens.items()}
    sampled = dict(zip(result.req_ids, result.sampled_token_ids, strict=False))
    decoding = [
        request for request, tokens in scheduled.num_scheduled_tokens.items()
        if tokens == 1 + drafts.get(request, 0)
    ]  # fmt: skip
    lengths = Counter(drafts.values())
    kept = Counter(max(len(sampled.get(request, ())) - 1, 0) for request in drafts)
    longest = max(lengths, default=0)
    return {
        "decoding": len(decoding),
        "prefilling": len(scheduled.num_scheduled_tokens) - len(decoding),
        "tokens": scheduled.total_num_scheduled_tokens,
        "generated": sum(len(tokens) for tokens in sampled.values()),
        "offered": [sum(n for length, n in lengths.items() if length > j) for j in range(longest)],
        "accepted": [sum(n for length, n in kept.items() if length > j) for j in range(longest)],
    }
