"""What every threshold of the planner contributes: each doubled and halved, on recorded traces.

    python benchmarks/thresholds.py TRACE ... > benchmarks/results/thresholds.json

For every trace of batches and value: tokens/s of `auto` over those with the thresholds as they are, replayed.
"""

import json
import statistics
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path

from slipstream.planning.thresholds import THRESHOLDS
from slipstream.replay.simulator import replay
from slipstream.replay.trace import Trace, read_trace
from slipstream.reporting.run_metadata import about_this_run


def main() -> None:
    traces = {Path(path).name: read_trace(Path(path)) for path in sys.argv[1:]}
    before = rates(traces)
    bare = rates(traces, "off")
    rows = {}
    for field in fields(THRESHOLDS):
        value = getattr(THRESHOLDS, field.name)
        for word, factor in (("halved", 0.5), ("doubled", 2.0)):
            new = max(round(value * factor), 1) if isinstance(value, int) else value * factor
            with changed(field.name, new):
                after = rates(traces)
            ratios = {name: after[name] / before[name] for name in traces}
            rows[f"{field.name} {word}"] = {"value": new, **ratios}
            sys.stderr.write(
                f"{field.name:24}{word:8} {new:<10.4g} mean {statistics.fmean(ratios.values()):.4f}  "
                f"{min(ratios.values()):.3f} to {max(ratios.values()):.3f}\n"
            )
    over_bare = {name: before[name] / bare[name] for name in traces}
    found = {"about": about_this_run(), "auto_over_off": over_bare, "changed": rows}
    sys.stdout.write(json.dumps(found, indent=1) + "\n")


def rates(traces: dict[str, Trace], policy: str = "auto") -> dict[str, float]:
    return {name: replay(trace, policy, closed_loop=True).tokens_per_second for name, trace in traces.items()}


@contextmanager
def changed(name: str, value: float) -> Iterator[None]:
    before = getattr(THRESHOLDS, name)
    object.__setattr__(THRESHOLDS, name, value)
    try:
        yield
    finally:
        object.__setattr__(THRESHOLDS, name, before)


if __name__ == "__main__":
    main()
