"""For soak.py: it runs in the server."""

import os
import zlib
from pathlib import Path
from typing import Any

from slipstream.engine.worker.worker import CPUWorker


class RecordingWorker(CPUWorker):
    """Writes a line per step: how many draft tokens were verified, and a checksum of them and of what was
    sampled."""

    def init_device(self) -> None:
        super().init_device()
        self._record = (Path(os.environ["SOAK_FOLDER"]) / f"rank-{self.rank}.txt").open("w")

    def execute_model(self, scheduler_output: Any) -> Any:
        self._drafts = dict(scheduler_output.scheduled_spec_decode_tokens)
        return super().execute_model(scheduler_output)

    def sample_tokens(self, grammar_output: Any) -> Any:
        result = super().sample_tokens(grammar_output)
        if result is None:
            return None
        said = repr((sorted(self._drafts.items()), result.req_ids, result.sampled_token_ids))
        self._record.write(f"{sum(map(len, self._drafts.values()))}:{zlib.crc32(said.encode()):08x}\n")
        self._record.flush()
        return result
