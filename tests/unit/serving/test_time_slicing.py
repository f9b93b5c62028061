"""Taking turns, with processes that count how much they could do."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.serving.time_slicing import ActiveClock, RoundRobin, stopped

COUNTER = """
import sys, time
with open(sys.argv[1], "ab", buffering=0) as file:
    while True:
        time.sleep(0.01)
        file.write(b".")
"""


class Counter:
    def __init__(self, file: Path) -> None:
        self.file = file
        self.process = subprocess.Popen([sys.executable, "-c", COUNTER, str(file)], start_new_session=True)

    def beats(self) -> int:
        return self.file.stat().st_size if self.file.exists() else 0

    def is_stopped(self) -> bool:
        return bool(psutil.Process(self.process.pid).status() == psutil.STATUS_STOPPED)

    def check_rests(self, seconds: float) -> None:
        wait_until(self.is_stopped)
        before = self.beats()
        time.sleep(seconds)
        assert self.beats() == before

    def check_goes_on(self) -> None:
        before = self.beats()
        wait_until(lambda: self.beats() > before)


def wait_until(true: Callable[[], bool]) -> None:
    """However slow the machine is."""
    deadline = time.monotonic() + 60
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.fixture
def counters(tmp_path: Path) -> Iterator[dict[str, Counter]]:
    started = {name: Counter(tmp_path / name) for name in ("a", "b")}
    wait_until(lambda: all(counter.beats() for counter in started.values()))
    yield started
    for counter in started.values():
        os.killpg(counter.process.pid, 9)
        counter.process.wait()


def groups(counters: dict[str, Counter]) -> dict[str, int]:
    return {name: counter.process.pid for name, counter in counters.items()}


def test_one_at_a_time_and_all_again_afterwards(counters: dict[str, Counter]) -> None:
    with RoundRobin(groups(counters)) as turns:
        start = time.perf_counter()  # both are stopped before the turns begin and resumed after they end
        time.sleep(2.5)
        finished = time.perf_counter()
        turns.finished("a")
        counters["a"].check_rests(1.0)  # it stays stopped once it is done
        end = time.perf_counter()
    shares = [turns.own_time(name).between(start, end) for name in ("a", "b")]
    assert 0.5 * (end - start) < sum(shares) <= end - start  # never both, seldom none
    assert 0.2 < turns.own_time("a").between(start, finished) / (finished - start) < 0.8
    for counter in counters.values():
        counter.check_goes_on()


def test_turns_are_as_long_as_is_asked_for(counters: dict[str, Counter]) -> None:
    """As servers whose steps take long need it, to have whole steps in a turn."""
    with RoundRobin(groups(counters), 1.0) as turns:
        start = time.perf_counter()
        time.sleep(0.8)
    first = turns.own_time("a").between(start, start + 0.8)
    assert first > 0.6, "of the usual turns it would have had half"


def test_turns_end_also_when_the_round_fails(counters: dict[str, Counter]) -> None:
    with pytest.raises(RuntimeError, match="round"), RoundRobin(groups(counters)):
        raise RuntimeError("round")
    for counter in counters.values():
        counter.check_goes_on()


def test_stopped(counters: dict[str, Counter]) -> None:
    with stopped([counters["b"].process.pid]):
        counters["b"].check_rests(0.4)


@given(
    st.lists(st.tuples(st.floats(0, 100), st.floats(0, 5)), max_size=8),
    st.floats(0, 100),
    st.floats(0, 100),
)
def test_own_time_is_time_minus_overlap(stops: list[tuple[float, float]], a: float, b: float) -> None:
    """Against the plain definition, for stops that do not overlap."""
    intervals = []
    moment = 0.0
    for gap, length in stops:
        intervals.append((moment + gap, moment + gap + length))
        moment += gap + length
    start, end = min(a, b), max(a, b)
    lost = sum(max(min(end, y) - max(start, x), 0.0) for x, y in intervals)
    assert ActiveClock(intervals).between(start, end) == pytest.approx(end - start - lost, abs=1e-6)
