"""Servers that take turns: one runs for a fraction of a second while the others are stopped.

On a shared machine the speed of memory changes by a factor of two within seconds: rounds of seconds, one arm
after the other, were seen to scatter by a quarter, and by a thirtieth when arms alternate every few steps. A
stopped process does nothing at all (vLLM's spin for a second when their work is over), and its clock is put
right afterwards (`ActiveClock`).
"""

import contextlib
import os
import signal
import threading
import time
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from types import TracebackType
from typing import Self

SLICE_SECONDS = 0.4
LONGEST_STOP = 0.8  # vLLM's processes stop spinning a second after the last message, and then wake up badly


class RoundRobin:
    """While it is entered, the servers run in turn, in the order given."""

    def __init__(self, groups: Mapping[str, int], least: float = 0.0) -> None:
        """Take `groups`: the process group of each server. A turn has at `least` so many seconds."""
        self._groups = groups
        self._left = list(groups)
        self._slice = max(min(SLICE_SECONDS, LONGEST_STOP / max(len(groups) - 1, 1)), least)
        self._changed = threading.Condition()
        self._over = False
        self._stopped_at: dict[str, float] = {}
        self._stops: dict[str, list[tuple[float, float]]] = {name: [] for name in groups}
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        for name in self._groups:
            self._stop(name)
        self._thread.start()
        return self

    def __exit__(self, *exception: type[BaseException] | BaseException | TracebackType | None) -> None:
        with self._changed:
            self._over = True
            self._changed.notify()
        self._thread.join()
        for name in self._groups:
            self._resume(name)

    def finished(self, name: str) -> None:
        """Note that it has nothing more to do; it stays stopped, so that it does not disturb the others."""
        with self._changed:
            self._left.remove(name)
            self._changed.notify()

    def own_time(self, name: str) -> "ActiveClock":
        """Return the active clock of a server, after the turns are over."""
        return ActiveClock(self._stops[name])

    def _run(self) -> None:
        turn = 0
        with self._changed:
            while not self._over:
                if not self._left:
                    self._changed.wait()
                    continue
                name = self._left[turn % len(self._left)]
                self._resume(name)
                self._changed.wait(self._slice)
                if name in self._left:
                    turn = self._left.index(name) + 1
                self._stop(name)

    def _stop(self, name: str) -> None:
        if name not in self._stopped_at:
            _signal(self._groups[name], signal.SIGSTOP)
            self._stopped_at[name] = time.perf_counter()

    def _resume(self, name: str) -> None:
        if name in self._stopped_at:
            self._stops[name].append((self._stopped_at.pop(name), time.perf_counter()))
            _signal(self._groups[name], signal.SIGCONT)


@contextlib.contextmanager
def stopped(groups: Iterable[int]) -> Iterator[None]:
    """Keep the processes of these groups stopped meanwhile."""
    groups = list(groups)
    for group in groups:
        _signal(group, signal.SIGSTOP)
    try:
        yield
    finally:
        for group in groups:
            _signal(group, signal.SIGCONT)


def _signal(group: int, number: signal.Signals) -> None:
    """A server that died is found out by its requests, with its log."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, number)


class ActiveClock:
    """A clock that stood still while its server was stopped."""

    def __init__(self, stops: Iterable[tuple[float, float]] = ()) -> None:
        stops = sorted(stops)
        self._starts: Sequence[float] = [start for start, _ in stops]
        self._ends: Sequence[float] = [end for _, end in stops]
        self._lost: Sequence[float] = [0.0, *accumulate(end - start for start, end in stops)]

    def at(self, moment: float) -> float:
        """Return the active time at a moment of `time.perf_counter`, which all processes of a machine
        share."""
        before = bisect_right(self._starts, moment)
        lost = self._lost[before]
        if before:
            lost -= max(self._ends[before - 1] - moment, 0.0)  # in the middle of a stop
        return moment - lost

    def between(self, start: float, end: float) -> float:
        return self.at(end) - self.at(start)
