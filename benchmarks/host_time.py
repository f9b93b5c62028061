"""What Slipstream adds to a step in Python, with asynchronous scheduling on the V2 model runner.

    python benchmarks/host_time.py > benchmarks/results/host-time.json

Requests repeat what they have read, so that every one has a draft: the most there can be to do. Three times
are taken. `draft` is the whole loop with n-gram lookup, suffix decoding and the planner, and `pack` what
makes its drafts ready to be sent: both in the scheduler's process while a step is under way. `align` is what
a worker does before it can start the next pass, without the copy to the device and the launch of a kernel:
that is on the critical path.
"""

import json
import random
import statistics
import sys
import time
from collections.abc import Sequence
from types import SimpleNamespace

from slipstream.config import Deployment, SpeculationConfig, choose
from slipstream.drafting.composer import Composer
from slipstream.drafting.registry import make_proposer
from slipstream.drafting.requests import RunningRequest
from slipstream.engine.worker.v2_alignment import HEADER, pack
from slipstream.loop import SpeculationLoop
from slipstream.planning.planner import Planner, StepOutcome
from slipstream.planning.step_cost import PassProfile, Step, StepCost
from slipstream.reporting.run_metadata import about_this_run

VOCAB = 32_000
PROMPT, PERIOD = 600, 150
K = 8
WARM_UP, STEPS = 30, 100
# A pass that hardly gets longer with more tokens: all drafts are worth verifying.
PASSES = PassProfile((1, 10_000), (0.005, 0.0055))


class Repeating(RunningRequest):
    """A request that goes on writing what it has read, one step of which is always under way."""

    def __init__(self, number: int) -> None:
        super().__init__(str(number))
        source = random.Random(number)
        self._period = [source.randrange(VOCAB) for _ in range(PERIOD)]
        self._text = (self._period * (PROMPT // PERIOD))[:PROMPT]
        self.under_way = 1

    @property
    def tokens(self) -> Sequence[int]:
        return self._text

    @property
    def num_prompt_tokens(self) -> int:
        return PROMPT

    @property
    def tokens_left(self) -> int:
        return 1000

    @property
    def tokens_under_way(self) -> int:
        return self.under_way

    @property
    def max_draft_tokens(self) -> int:
        return K

    def end_step(self, verified: int) -> None:
        """Write what was under way; all that is verified now will be accepted."""
        for _ in range(self.under_way):
            self._text.append(self._period[len(self._text) % PERIOD])
        self.under_way = verified + 1


def measure(count: int) -> dict[str, object]:
    planner = Planner(StepCost(PASSES))
    lookup = choose(SpeculationConfig(), Deployment("model", v2=True), None).free
    proposers = [make_proposer(name, dict(options)) for name, options in lookup.items()]
    composer = Composer(proposers, VOCAB, steps_under_way=1)
    loop = SpeculationLoop(composer, planner)
    requests = [Repeating(number) for number in range(count)]
    rows = {request.id: row for row, request in enumerate(requests)}
    states = SimpleNamespace(req_id_to_index=rows)
    seconds: dict[str, list[float]] = {"draft": [], "pack": [], "align": []}
    drafted = 0
    for step in range(WARM_UP + STEPS):
        begun = time.perf_counter()
        drafts = loop.draft(requests, Step(count))
        loop_done = time.perf_counter()
        sent = {name: (len(requests[rows[name]].tokens), draft.tokens) for name, draft in drafts.items()}
        packed = pack(sent, 2 * K + 1)
        packing_done = time.perf_counter()
        packed.table[:, 0] = [states.req_id_to_index[name] for name in packed.request_ids]
        aligned = time.perf_counter()
        verified = {
            name: max(len(d.tokens) - requests[rows[name]].under_way, 0) for name, d in drafts.items()
        }
        for request in requests:
            request.end_step(verified.get(request.id, 0))
        tokens = sum(verified.values())
        loop.record(StepOutcome(Step(count, tokens), PASSES.seconds[0], 0.0, tokens + count))
        if step >= WARM_UP:
            drafted += tokens
            seconds["draft"].append(loop_done - begun)
            seconds["pack"].append(packing_done - loop_done)
            seconds["align"].append(aligned - packing_done)
            assert packed.table.shape[1] >= HEADER
    return {
        "requests": count,
        "draft_tokens_per_step": drafted / STEPS,
        "microseconds": {
            name: {"median": 1e6 * statistics.median(found), "p95": 1e6 * sorted(found)[int(0.95 * STEPS)]}
            for name, found in seconds.items()
        },
    }


def main() -> None:
    rows = [measure(count) for count in (32, 256, 1024)]
    for row in rows:
        sys.stderr.write(f"{row}\n")
    sys.stdout.write(json.dumps({"about": about_this_run(), "steps": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
