import logging
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from slipstream.drafting import NO_DRAFT, Draft
from slipstream.drafting.faults import (
    FAULTS_UNTIL_OFF,
    FIRST_REST,
    SOUND_CALLS_TO_FORGET,
    Faults,
    problem_of,
)


@pytest.mark.parametrize(
    "draft", [NO_DRAFT, Draft([0, 99], [1.0, 1.0]), Draft((5,), (0.0,)), Draft([1], [np.float64(0.5)])]
)
def test_sound_drafts(draft: Draft) -> None:
    assert problem_of(draft, 2, 100) is None


@pytest.mark.parametrize(
    ("tokens", "survival", "kind"),
    [
        ([1, 2, 3], [0.9, 0.8, 0.7], "wrong length"),
        ([1, 2], [0.9], "wrong length"),
        ([], [0.9], "wrong length"),
        ([100], [0.9], "no such token"),
        ([-1], [0.9], "no such token"),
        ([1.0], [0.9], "no such token"),
        (["1"], [0.9], "no such token"),
        (np.array([1, 2]), [0.9, 0.8], "no such token"),
        ([1], [math.nan], "no probability"),
        ([1], [math.inf], "no probability"),
        ([1], [1.1], "no probability"),
        ([1], [-0.1], "no probability"),
        ([1, 2], [0.5, 0.6], "no probability"),
    ],
)
def test_unsound_drafts(tokens: Sequence[Any], survival: list[float], kind: str) -> None:
    problem = problem_of(Draft(tokens, survival), 2, 100)
    assert problem
    assert problem[0] == kind


def test_left_out_for_the_request_until_it_ends() -> None:
    faults = Faults()
    faults.record("p", "a", "exception", "why")
    assert not faults.allows("p", "a")
    assert faults.allows("p", "b")
    assert faults.allows("q", "a")
    faults.forget("a")
    assert faults.allows("p", "a")
    assert faults.counts == {("p", "exception"): 1}


def test_each_kind_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    faults = Faults()
    with caplog.at_level(logging.WARNING, "slipstream"):
        for request in ("a", "b"):
            for kind in ("exception", "stall"):
                faults.record("p", request, kind, "why")
        faults.record("q", "a", "stall", "why")
    said = [(record.name, record.getMessage().split(" (")[0]) for record in caplog.records]
    assert said == [("slipstream", what) for what in ("p: exception", "p: stall", "q: stall")]
    assert faults.counts == {("p", "exception"): 2, ("p", "stall"): 2, ("q", "stall"): 1}


def test_off_after_many_faults(caplog: pytest.LogCaptureFixture) -> None:
    faults = Faults()
    for fault in range(2 * FAULTS_UNTIL_OFF):
        assert ("p" in faults.off) == (fault >= FAULTS_UNTIL_OFF)
        faults.record("p", f"request {fault}", ["exception", "stall"][fault % 2], "why")
        faults.forget(f"request {fault}")
    assert not faults.allows("p", "a new one")
    assert faults.allows("q", "a new one")
    errors = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert len(errors) == 1


def test_it_comes_back_after_a_rest_that_doubles() -> None:
    faults = Faults()
    for rest in (FIRST_REST, 2 * FIRST_REST):
        for _ in range(FAULTS_UNTIL_OFF):
            faults.record("p", (), "exception", "why")
        for _ in range(rest):
            assert faults.off == {"p"}
            faults.begin_step(["running"])
        assert faults.off == set()
        assert faults.allows("p", "a new one")
        assert not faults.allows("p", "running"), "it has missed a part of its text"
        faults.forget("running")


def test_faults_are_forgotten_as_sound_calls_follow() -> None:
    faults = Faults()
    for _ in range(10 * FAULTS_UNTIL_OFF):
        faults.record("p", (), "exception", "why")
        for _ in range(SOUND_CALLS_TO_FORGET):
            faults.record_call("p", (), 0.0, 1.0)
    assert faults.off == set()
    assert faults.counts == {("p", "exception"): 10 * FAULTS_UNTIL_OFF}


def test_one_pause_of_the_machine_takes_a_proposer_from_nobody() -> None:
    faults = Faults()
    faults.record_call("p", ["a", "b"], 3.0, 1.0)
    assert faults.counts == {("p", "stall"): 1}
    assert faults.allows("p", "a")
    faults.record_call("p", ["a", "b"], 0.1, 1.0)
    faults.record_call("p", ["a", "b"], 3.0, 1.0)
    assert faults.allows("p", "a")
    faults.record_call("p", ["b"], 3.0, 1.0)
    assert faults.allows("p", "a")
    assert not faults.allows("p", "b"), "twice in a row"


def test_no_token_of_a_draft_is_logged() -> None:
    problem = problem_of(Draft([123456, 7], [0.9, 0.8]), 2, 100)
    assert problem
    assert "123456" not in problem[1]
