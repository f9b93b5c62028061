"""The worker that `slipstream bench` runs on CPU: what each engine step did and how long it took.

One JSON line per step goes to the file named by SLIPSTREAM_STEPS. The bare arm of a benchmark runs under
the same worker, so the few microseconds this costs are in every arm alike.
"""

import json
import os
import time
from pathlib import Path
from typing import Any

from slipstream.engine.core.step_times import describe
from slipstream.engine.launch.arguments import STEPS_VARIABLE
from slipstream.engine.worker.worker import CPUWorker


class TimedCPUWorker(CPUWorker):
    def init_device(self) -> None:
        super().init_device()
        self._steps = Path(os.environ[STEPS_VARIABLE]).open("a") if self.rank == 0 else None  # noqa: SIM115
        self._drafted: list[tuple[float, float]] = []
        self.model_runner.propose_draft_token_ids = self._timed(self.model_runner.propose_draft_token_ids)

    def _timed(self, propose: Any) -> Any:
        def timed(*args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            try:
                return propose(*args, **kwargs)
            finally:
                self._drafted.append((start, time.perf_counter()))

        return timed

    def execute_model(self, scheduler_output: Any) -> Any:
        self._scheduled = scheduler_output
        self._drafted = [*getattr(scheduler_output, "slipstream_drafted", [])]
        self._begun = time.perf_counter()
        return super().execute_model(scheduler_output)

    def sample_tokens(self, grammar_output: Any) -> Any:
        result = super().sample_tokens(grammar_output)
        if self._steps is not None and self._scheduled.total_num_scheduled_tokens:
            step = describe(self._scheduled, result)
            step |= {"begun": self._begun, "ended": time.perf_counter(), "drafted": self._drafted}
            self._steps.write(json.dumps(step) + "\n")
            self._steps.flush()
        return result
