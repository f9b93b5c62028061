"""Compiled functions where nothing can be kept on disk."""

import subprocess
import sys

READ_ONLY = """
from numba.core.caching import CacheImpl
CacheImpl._locator_classes = []  # what numba finds where it may write nowhere
from slipstream.drafting.calibration import Calibration
from slipstream.drafting.registry import make_proposer
from slipstream.planning.planner import Planner
from slipstream.planning.step_cost import StepCost
Calibration(), make_proposer("ngram", {}), Planner(StepCost())
print("all are there")
"""


def test_a_read_only_file_system_stops_nothing() -> None:
    done = subprocess.run([sys.executable, "-c", READ_ONLY], capture_output=True, text=True, timeout=300)
    assert "all are there" in done.stdout, done.stderr
