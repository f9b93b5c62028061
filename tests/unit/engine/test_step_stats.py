"""Timing steps."""

import os
import signal

from slipstream.engine.core.step_stats import StepTimer
from slipstream.loop import NO_PROMISE
from slipstream.planning.step_cost import Step


def test_a_step_in_which_the_process_was_stopped_is_left_out() -> None:
    timer = StepTimer()
    assert timer.begin_step(1.0, Step(2), NO_PROMISE, 0) is None
    timer.record_output(2, 0)
    first = timer.begin_step(1.1, Step(2), NO_PROMISE, 0)
    assert first is not None
    assert round(first.seconds, 6) == 0.1
    os.kill(os.getpid(), signal.SIGCONT)
    assert timer.begin_step(5.0, Step(2), NO_PROMISE, 0) is None
    assert timer.begin_step(5.1, Step(2), NO_PROMISE, 0) is not None


def test_others_are_told_of_the_signal_too() -> None:
    told: list[int] = []
    before = signal.signal(signal.SIGCONT, lambda number, frame: told.append(number))
    try:
        StepTimer()
        os.kill(os.getpid(), signal.SIGCONT)
    finally:
        signal.signal(signal.SIGCONT, before)
    assert told == [signal.SIGCONT]
