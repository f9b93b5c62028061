"""Compiled functions where nothing can be kept on disk."""

import subprocess
import sys

READ_ONLY = """
from numba.core.caching import CacheImpl
CacheImpl._locator_classes = []  # what numba finds where it may write nowhere
from slipstream.compiled import compiled
from slipstream.drafting import calibration, token_index
from slipstream.planning import optimizer
print("all are there:", compiled(lambda number: number + 1)(1))
"""


def test_a_read_only_file_system_stops_nothing() -> None:
    done = subprocess.run([sys.executable, "-c", READ_ONLY], capture_output=True, text=True, timeout=300)
    assert "all are there: 2" in done.stdout, done.stderr
