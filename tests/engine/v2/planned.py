"""Our schedulers that plan ahead, writing down what was verified; and the same with a scripted plan, to show
that K can be set by step and by request. By dotted path.

`additional_config["planned"]` has `record`, the file to which goes what was verified, and perhaps `plan`: for
each step in turn a list of K for requests 0, 1, 2...
"""

import itertools
import json
from pathlib import Path
from typing import Any

import torch
from vllm.v1.worker import cpu_worker

from slipstream.engine.core import lookahead_scheduler
from slipstream.engine.worker.worker import CPUWorker


class _Recorded:
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        script = self.vllm_config.additional_config["planned"]
        self._script = itertools.cycle(script["plan"]) if "plan" in script else None
        self._record = Path(script["record"])

    def plan(self: Any, request_ids: list[str]) -> dict[str, int]:
        if self._script is None:
            return super().plan(request_ids)  # type: ignore[misc]
        by_number = next(self._script)
        return {request_id: by_number[_number(request_id) % len(by_number)] for request_id in request_ids}

    def update_from_output(self: Any, scheduler_output: Any, model_runner_output: Any) -> Any:
        """Note what was verified and what was written, for requests that had not ended before."""
        verified = scheduler_output.scheduled_spec_decode_tokens
        step = {
            _number(request_id): {
                "verified": len(verified.get(request_id, ())),
                "written": len(model_runner_output.sampled_token_ids[row]),
            }
            for request_id, row in model_runner_output.req_id_to_index.items()
            if request_id in self.requests and not self.requests[request_id].is_finished()
        }
        with self._record.open("a") as record:
            record.write(json.dumps(step) + "\n")
        assert not self._failures
        return super().update_from_output(scheduler_output, model_runner_output)  # type: ignore[misc]


class Scheduler(_Recorded, lookahead_scheduler.LookaheadScheduler):
    pass


class AsyncScheduler(_Recorded, lookahead_scheduler.AsyncLookaheadScheduler):
    pass


class _Counts:
    """Notes how many passes the drafter made in each step."""

    def init_device(self: Any) -> None:
        super().init_device()  # type: ignore[misc]
        speculator: Any = self.model_runner.speculator
        record = Path(self.vllm_config.additional_config["planned"]["record"] + ".passes")
        propose, run_model = speculator.propose, speculator._run_model
        passes = 0

        def counted_propose(*args: Any, **kwargs: Any) -> torch.Tensor:
            nonlocal passes
            passes = 0
            drafts: torch.Tensor = propose(*args, **kwargs)
            with record.open("a") as file:
                file.write(f"{passes}\n")
            return drafts

        def counted_run_model(*args: Any, **kwargs: Any) -> Any:
            nonlocal passes
            passes += 1
            return run_model(*args, **kwargs)

        speculator.propose, speculator._run_model = counted_propose, counted_run_model


class CountingWorker(_Counts, CPUWorker):
    pass


class CountingVllmWorker(_Counts, cpu_worker.CPUWorker):
    """vLLM's own, without what ours patches."""


def _number(request_id: str) -> int:
    """vLLM numbers the requests of `LLM.generate` and adds something random."""
    return int(request_id.split("-")[0])
