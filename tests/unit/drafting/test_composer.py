"""Choosing among proposers, scoring them, and going on without those that fail."""

import math
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from slipstream.drafting import Draft, Proposer, RequestInfo
from slipstream.drafting import calibration as calibrating
from slipstream.drafting import composer as composing
from slipstream.drafting.calibration import LEAST_FACTOR, MOST_FACTOR, Survival
from slipstream.drafting.composer import BEST, Composer, Offer
from slipstream.drafting.faults import FAULTS_UNTIL_OFF
from slipstream.drafting.registry import make_proposer
from slipstream.planning.planner import NOT_RUN, DrafterPlan, DrafterRun, StepState
from slipstream.planning.policy import Lengths, VerifyAll
from unit.drafting.fakes import Answer, Fake, always, draft

GOOD = always([1, 2], [0.4, 0.2])
BETTER = always([3, 4, 5], [0.8, 0.7, 0.6])


def running(proposers: Sequence[Proposer], *requests: str) -> Composer:
    composer = Composer(proposers, vocab_size=100)
    for request in requests:
        composer.start(RequestInfo(request, 3))
        composer.observe(request, [7, 8, 9])
    return composer


def proposers_of(chosen: Mapping[str, Offer]) -> dict[str, str]:
    return {request: choice.proposer for request, choice in chosen.items()}


def test_the_best_draft_wins_in_any_order() -> None:
    for order in (1, -1):
        composer = running([Fake("good", GOOD), Fake("better", BETTER), Fake("none")][::order], "a", "b")
        chosen = draft(composer, {"a": 3, "b": 1})
        assert chosen["a"].proposer == chosen["b"].proposer == "better"
        assert list(chosen["a"].tokens) == [3, 4, 5]
        assert list(chosen["a"].survival) == pytest.approx([0.8, 0.7, 0.6])
        assert list(chosen["b"].tokens) == [3]


def test_no_draft_is_no_choice() -> None:
    empty = Fake("empty", always([], []))
    composer = running([empty], "a")
    assert draft(composer, {"a": 3}) == {}
    composer.observe("a", [1])
    assert draft(composer, {}) == {}
    assert not composer.tally.drafts
    assert not composer.faults.counts


def test_a_costly_proposer_is_asked_only_where_it_is_expected_to_bring_more() -> None:
    free = Fake(
        "free", lambda request, max_tokens: Draft([1], [0.9]) if request == "a" else Draft([1], [0.2])
    )
    costly = Fake("costly", always([5], [0.6]), free=False, expected=[0.6])
    composer = running([costly, free], "a", "b")
    assert proposers_of(draft(composer, {"a": 1, "b": 1})) == {"a": "free", "b": "costly"}
    assert free.asked == [{"a": 1, "b": 1}]
    assert costly.asked == [{"b": 1}]


def test_a_costly_proposer_is_asked_where_nothing_is() -> None:
    free = Fake("free", lambda request, max_tokens: Draft([], []))
    costly = Fake("costly", GOOD, free=False, expected=[0.11, 0.01])
    composer = running([free, costly], "a", "b")
    draft(composer, {"a": 2, "b": 1})
    assert costly.asked == [{"a": 2, "b": 1}]


class Sparing(VerifyAll):
    """A policy that verifies at most `most` tokens of a draft, none that is less likely than `least`, and
    asks the drafter for `asked`; it notes what it was told."""

    def __init__(
        self, max_tokens: int = 99, least: float = 0.0, asked: Mapping[str, int] | None = None
    ) -> None:
        self.max_tokens, self.least, self.asked = max_tokens, least, dict(asked or {})
        self.told: list[tuple[dict[str, list[float]], dict[str, list[float]]]] = []
        self.ran: list[tuple[DrafterPlan, float | None]] = []

    def plan_drafter(
        self, state: StepState, offers: Mapping[str, Survival], expected: Mapping[str, Survival]
    ) -> DrafterPlan:
        self.told.append(({r: list(s) for r, s in offers.items()}, {r: list(s) for r, s in expected.items()}))
        return DrafterPlan(self.asked, max(self.asked.values(), default=0))

    def record_drafter(self, plan: DrafterPlan, seconds: float | None = None) -> None:
        self.ran.append((plan, seconds))

    def plan(
        self, state: StepState, offers: Mapping[str, Survival], drafter: DrafterRun = NOT_RUN
    ) -> Lengths:
        return Lengths({r: sum(s >= self.least for s in row[: self.max_tokens]) for r, row in offers.items()})


def test_what_is_not_verified_is_scored_all_the_same() -> None:
    """A free proposer that the policy thinks nothing of finds its way back by being right."""
    free = Fake("free", always([1], [0.05]))
    composer, policy = running([free], "a"), Sparing(least=0.1)
    for _ in range(50):
        assert draft(composer, {"a": 1}, policy) == {}
        composer.observe("a", [3])
    assert not composer.tally.drafts
    for _ in range(50):
        draft(composer, {"a": 1}, policy)
        composer.observe("a", [1])
    assert draft(composer, {"a": 1}, policy)["a"].proposer == "free"


def test_a_policy_that_verifies_fewer_tokens() -> None:
    """What is tallied is what was verified; what is learnt is all that the target's text tells."""
    composer = running([Fake("p", BETTER)], "a", "b", "c")
    chosen = draft(composer, {"a": 3, "b": 3, "c": 3}, Sparing(max_tokens=2))
    assert all(list(choice.tokens) == [3, 4] for choice in chosen.values())
    assert all(list(choice.survival) == pytest.approx([0.8, 0.7]) for choice in chosen.values())
    composer.observe("a", [3, 4, 5])  # the third was drafted, not verified: the target wrote it itself
    composer.observe("b", [3, 9])
    composer.observe("c", [9])
    assert composer.tally.drafts == {"p": 3}
    assert composer.tally.draft_tokens == {"p": 6}
    assert composer.tally.accepted_tokens == {"p": 3}
    draft(composer, {})
    assert composer.calibration.report() == {"p": pytest.approx([2 / 3, 1 / 2, 1.0], abs=0.001)}


def test_a_policy_that_verifies_nothing() -> None:
    composer = running([Fake("p", BETTER)], "a")
    assert draft(composer, {"a": 3}, Sparing(max_tokens=0)) == {}
    composer.observe("a", [3])
    draft(composer, {})
    assert not composer.tally.drafts
    assert not composer.tally.accepted_tokens
    assert composer.calibration.report() == {"p": [1.0]}


def test_nothing_written() -> None:
    composer = running([Fake("p", BETTER)], "a")
    draft(composer, {"a": 3})
    composer.observe("a", [])
    assert not composer.tally.accepted_tokens


def test_drafted_twice_before_the_target_writes() -> None:
    """A step that was scheduled and taken back: the second draft counts, of which nothing is verified."""
    composer = running([Fake("p", BETTER)], "a")
    draft(composer, {"a": 3})
    draft(composer, {"a": 3}, Sparing(max_tokens=0))
    composer.observe("a", [3])
    assert composer.tally.accepted_tokens == {}


def test_a_policy_asks_the_drafter_for_some() -> None:
    free = Fake("free", lambda request, max_tokens: Draft([1], [0.3]) if request == "a" else Draft([], []))
    costly = Fake("costly", BETTER, free=False, expected=[0.6, 0.5, 0.4])
    composer, policy = running([costly, free], "a", "b", "c"), Sparing(asked={"b": 2})
    chosen = draft(composer, {"a": 3, "b": 3, "c": 1}, policy)
    assert costly.asked == [{"b": 2}]
    assert proposers_of(chosen) == {"a": "free", "b": "costly"}
    assert list(chosen["b"].tokens) == [3, 4]
    ((best, expected),) = policy.told
    assert best == {"a": pytest.approx([0.3])}
    assert expected == {
        r: pytest.approx([0.6, 0.5, 0.4][:max_tokens]) for r, max_tokens in (("a", 3), ("b", 3), ("c", 1))
    }
    ((plan, seconds),) = policy.ran
    assert plan[:3] == ({"b": 2}, 2, False)
    assert seconds is not None
    assert 0 < seconds < 1
    policy.asked = {}
    draft(composer, {"a": 3}, policy)
    assert costly.asked[-1] == {}, "told of the step, for it may have to keep up, but asked for nothing"
    assert len(policy.ran) == 1, "that is no run"


def test_what_a_drafter_is_expected_to_bring_goes_by_the_request() -> None:
    """It is right for all but `bad`: only there does the policy hear of little."""
    costly = Fake("costly", always([5], [0.8]), free=False, expected=[0.8])
    requests = ["bad", *"abcdefgh"]
    composer, policy = running([costly], *requests), Sparing(asked=dict.fromkeys(requests, 1))
    for _ in range(30):
        draft(composer, dict.fromkeys(requests, 1), policy)
        for request in requests:
            composer.observe(request, [6 if request == "bad" else 5])
    draft(composer, dict.fromkeys(requests, 1), policy)
    expected = policy.told[-1][1]
    assert expected["bad"][0] < 0.35
    assert min(survival[0] for request, survival in expected.items() if request != "bad") > 0.8


def test_a_request_for_which_a_proposer_is_wrong_has_its_own_record() -> None:
    requests = ["bad", *(f"good {number}" for number in range(19))]
    composer = running([Fake("p", always([1], [0.8]))], *requests)

    def drafted(steps: int, bad_token: int) -> dict[str, float]:
        for _ in range(steps):
            draft(composer, dict.fromkeys(requests, 1))
            for request in requests:
                composer.observe(request, [bad_token if request == "bad" else 1])
        return {r: chosen.survival[0] for r, chosen in draft(composer, dict.fromkeys(requests, 1)).items()}

    before = drafted(0, 1)
    assert before["bad"] == before["good 0"] == pytest.approx(0.8)
    soon = drafted(10, 2)
    assert soon["bad"] < 0.45
    assert min(survival for request, survival in soon.items() if request != "bad") > 0.8
    later = drafted(20, 2)
    assert later["bad"] < 0.3
    assert min(survival for request, survival in later.items() if request != "bad") > 0.8
    assert drafted(20, 1)["bad"] > 0.75, "it recovers"
    drafted(20, 2)
    composer.forget("bad")
    composer.start(RequestInfo("bad", 3))
    as_any = composer.calibration_of_best.survival(BEST, composer.calibration.survival("p", [0.8]))
    assert drafted(0, 1)["bad"] == pytest.approx(as_any[0]), "a new one"


@pytest.mark.parametrize("corrected", [True, False])
def test_the_best_of_many_estimates_is_no_overestimate(
    corrected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every draft of two proposers is right with probability one half, whatever the request; luck makes some
    requests seem better than others, and those are verified. Uncorrected they promise a quarter too much."""
    if not corrected:
        monkeypatch.setattr(Composer, "correct", lambda self, offers: None)
    rng = np.random.default_rng(0)
    requests = [f"r{number}" for number in range(32)]
    composer = running([Fake("p", always([1], [0.5])), Fake("q", always([2], [0.5]))], *requests)
    promised = came = 0.0
    for step in range(600):
        offers = draft(composer, dict.fromkeys(requests, 1))
        best = sorted(offers, key=lambda request: -offers[request].survival[0])[:4]
        written = {request: int(rng.integers(1, 3)) for request in requests}
        for request, token in written.items():
            composer.observe(request, [token])
        if step >= 200:
            promised += sum(offers[request].survival[0] for request in best)
            came += sum(offers[request].tokens[0] == written[request] for request in best)
    if corrected:
        assert promised / came == pytest.approx(1.0, abs=0.08)  # 1,600 draws: 5% is two standard errors
    else:
        assert promised / came > 1.2


def test_a_record_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibrating, "REQUEST_PRIOR", 0.01)
    record = calibrating.Record()
    assert record.factor == 1.0
    for _ in range(100):
        record.learn([0.9], 0, 1)
    assert record.factor == LEAST_FACTOR
    for _ in range(100):
        record.learn([0.1, 0.01, 0.0], 3, 3)
    assert record.factor == MOST_FACTOR


def test_a_record_counts_up_to_the_first_wrong_token() -> None:
    record = calibrating.Record()
    record.learn([0.8, 0.4, 0.3], 1, 3)
    assert record.accepted == 1
    assert record.expected == pytest.approx(0.8 + 0.5), "nothing is known of the third"
    record.learn([0.8, 0.4, 0.3], 2, 2)
    assert record.accepted == pytest.approx(calibrating.REQUEST_FADE + 2)
    assert record.expected == pytest.approx(calibrating.REQUEST_FADE * 1.3 + 1.3)


def test_what_a_costly_proposer_is_expected_to_bring_is_learnt() -> None:
    """It states 0.9 and is never right: after a while it is no longer asked."""
    free = Fake("free", always([1], [0.5]))
    costly = Fake("costly", always([5], [0.9]), free=False, expected=[0.9])
    composer = running([free, costly], "a")
    for _ in range(30):
        draft(composer, {"a": 1})
        composer.observe("a", [1])
    assert costly.asked[0] == {"a": 1}
    assert proposers_of(draft(composer, {"a": 1})) == {"a": "free"}
    assert costly.asked[-1] == {}


def test_everyone_is_scored_on_what_the_target_wrote() -> None:
    """The timid one is right, the boaster wrong: the choice turns, though only the boaster was verified."""
    boaster, timid = Fake("boaster", always([1, 1], [0.9, 0.8])), Fake("timid", always([3, 4], [0.3, 0.2]))
    composer = running([boaster, timid], "a")
    winners = []
    for _ in range(20):
        winners.append(draft(composer, {"a": 2})["a"].proposer)
        composer.observe("a", [3, 4, 6])
    assert winners[0] == "boaster"
    assert winners[-1] == "timid"
    assert winners == sorted(winners)
    assert composer.calibration.survival("boaster", [0.9])[0] < 0.3
    assert composer.calibration.survival("timid", [0.3, 0.2])[1] > 0.5


def test_an_offer_is_scored_once_and_only_as_far_as_was_written() -> None:
    composer = running([Fake("p", BETTER)], "a")
    draft(composer, {"a": 3})
    composer.observe("a", [3])
    draft(composer, {})  # learns from all that was scored
    stated = composer.calibration.survival("p", [0.8, 0.7, 0.6])
    believed = 0.8 * (1 + 4) / (0.8 + 4)
    assert stated[0] == pytest.approx((1 + 4 * believed) / 5)
    assert stated[1] / stated[0] == pytest.approx(0.7 / 0.8)
    composer.observe("a", [9])
    draft(composer, {})
    assert composer.calibration.survival("p", [0.8, 0.7, 0.6]) == stated


def test_the_tally() -> None:
    composer = running([Fake("good", GOOD), Fake("better", BETTER)], "a", "b")
    draft(composer, {"a": 3, "b": 2})
    composer.observe("a", [3, 4, 9])
    composer.observe("b", [1, 2])
    composer.observe("a", [5])
    assert composer.tally.drafts == {"better": 2}
    assert composer.tally.draft_tokens == {"better": 5}
    assert composer.tally.accepted_tokens == {"better": 2}
    assert set(composer.tally.microseconds) == {"good", "better"}


SUFFIX = {"share": False, "max_tokens": 9, "max_age": 9.0, "share_prompts": False, "per_matched_token": 1.0}


def test_our_own_proposers_together() -> None:
    composer = running([make_proposer("ngram", {}), make_proposer("suffix", SUFFIX)], "a")
    composer.observe("a", [7, 8])
    assert list(draft(composer, {"a": 2})["a"].tokens) == [9, 7]
    composer.forget("a")
    assert "a" not in composer
    assert not composer.faults.counts


COLD = f"""
from slipstream.drafting import RequestInfo
from slipstream.drafting.composer import Composer
from slipstream.drafting.registry import make_proposer
from slipstream.loop import SpeculationLoop
from slipstream.planning.policy import VerifyAll

composer = Composer([make_proposer("ngram", {{}}), make_proposer("suffix", {SUFFIX})], 100)
requests = [str(request) for request in range(20)]
for request in requests:
    composer.start(RequestInfo(request, 3))
    composer.observe(request, [1, 2, 3, 1, 2])
SpeculationLoop(composer, VerifyAll()).propose(dict.fromkeys(requests, 3))
assert not composer.faults.counts, (composer.faults.counts, composer.faults.off)
"""


def test_compiling_is_no_stall(tmp_path: Path) -> None:
    """The first start after an installation, when numba has nothing cached."""
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    ended = subprocess.run([sys.executable, "-c", COLD], env=environment, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr


def raising(request: str, max_tokens: int) -> Draft:
    raise RuntimeError("broken")


@pytest.mark.parametrize(
    ("bad", "kind"),
    [
        (raising, "exception"),
        (always([3], [math.nan]), "no probability"),
        (always([3, 4], [0.5, 0.6]), "no probability"),
        (always([3], [0.9, 0.8]), "wrong length"),
        (lambda request, max_tokens: Draft([3] * (max_tokens + 1), [0.9] * (max_tokens + 1)), "wrong length"),
        (always([100], [0.9]), "no such token"),
        (always([np.int64(3)], [0.9]), "no such token"),
        (always([3], ["0.9"]), "not a draft"),
        (lambda request, max_tokens: None, "not a draft"),
        (lambda request, max_tokens: [1, 2], "not a draft"),
        (lambda request, max_tokens: Draft(iter([1]), [0.9]), "not a draft"),  # type: ignore[arg-type]
    ],
)
def test_a_fault_costs_one_request_one_proposer(
    bad: Answer, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    faulty = Fake(
        "faulty", lambda request, max_tokens: (bad if request == "a" else BETTER)(request, max_tokens)
    )
    composer = running([faulty, Fake("good", GOOD)], "a", "b")
    assert proposers_of(draft(composer, {"a": 3, "b": 3})) == {"a": "good", "b": "faulty"}
    assert composer.faults.counts == {("faulty", kind): 1}
    assert proposers_of(draft(composer, {"a": 3, "b": 3})) == {"a": "good", "b": "faulty"}
    assert faulty.asked[-1] == {"b": 3}, "not asked for this request again"
    assert composer.faults.counts == {("faulty", kind): 1}
    composer.observe("a", [1])
    assert faulty.told[-1] == ("observe", "b"), "nor told of it"
    composer.forget("a")
    composer.start(RequestInfo("a", 3))
    assert proposers_of(draft(composer, {"a": 3})) == {"a": "good"}, "a new request: asked again"
    assert composer.faults.counts == {("faulty", kind): 2}
    assert [record.name for record in caplog.records] == ["slipstream"]
    assert f"faulty: {kind}" in caplog.text


@pytest.mark.parametrize("answer", [None, 7, [1], {"a": None, "b": None}, {"nobody": Draft([1], [0.9])}])
def test_garbage_instead_of_drafts(answer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    faulty = Fake("faulty")
    monkeypatch.setattr(faulty, "propose", lambda wanted: answer)
    composer = running([faulty, Fake("good", GOOD)], "a", "b")
    assert proposers_of(draft(composer, {"a": 3, "b": 3})) == {"a": "good", "b": "good"}
    assert {name for name, _ in composer.faults.counts} <= {"faulty"}


def test_an_empty_draft_of_another_type() -> None:
    empty: Any = np.array([])
    nothing = Fake("nothing", lambda request, max_tokens: Draft(empty, empty))
    composer = running([nothing, Fake("good", GOOD)], "a")
    assert proposers_of(draft(composer, {"a": 3})) == {"a": "good"}


@pytest.mark.parametrize("method", ["start", "observe", "forget"])
def test_exceptions_elsewhere(method: str, caplog: pytest.LogCaptureFixture) -> None:
    faulty, good = Fake("faulty", BETTER, broken=[method]), Fake("good", GOOD)
    composer = running([faulty, good], "a", "b")
    hurt = method != "forget"
    expected = {"a": "good" if hurt else "faulty", "b": "faulty"}
    assert proposers_of(draft(composer, {"a": 3, "b": 3})) == expected
    for request in ("a", "b"):
        composer.observe(request, [1])
        composer.forget(request)
        assert good.told[-2:] == [("observe", request), ("forget", request)]
        assert ("forget", request) in faulty.told, "it may hold something of the request"
    assert composer.faults.counts == {("faulty", "exception"): 1}
    assert len(caplog.records) == 1
    assert composer.faults.allows("faulty", "a")


def test_a_stall(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(composing, "STALL_SECONDS", 0.1)
    monkeypatch.setattr(composing, "time", SimpleNamespace(perf_counter=lambda: now))

    def slow(request: str, max_tokens: int) -> Draft:
        nonlocal now
        now += 0.15
        return Draft([3], [0.9])

    faulty = Fake("faulty", slow)
    composer = running([faulty, Fake("good", GOOD)], "a", "b")
    draft(composer, {"a": 3})
    assert composer.faults.counts == {("faulty", "stall"): 1}
    assert composer.tally.microseconds == {"faulty": 150_000, "good": 0}
    draft(composer, {"a": 3})  # one may be the machine's doing, the second in a row is not
    assert proposers_of(draft(composer, {"a": 3})) == {"a": "good"}
    assert faulty.asked == [{"a": 3}, {"a": 3}]
    assert proposers_of(draft(composer, {"b": 3})) == {"b": "faulty"}


def test_a_free_proposer_is_asked_again_alone_a_costly_one_is_not() -> None:
    free, costly = Fake("free", raising), Fake("costly", raising, free=False, expected=[0.9, 0.8, 0.7])
    composer = running([free, costly, Fake("good", GOOD)], "a", "b", "c")
    assert set(proposers_of(draft(composer, {"a": 3, "b": 3, "c": 3})).values()) == {"good"}
    assert len(free.asked) == 4
    assert costly.asked == [{"a": 3, "b": 3, "c": 3}]
    assert composer.faults.counts == {("free", "exception"): 3, ("costly", "exception"): 1}


@pytest.mark.parametrize("free", [True, False])
def test_off_for_all_after_many_faults(free: bool) -> None:
    faulty = Fake("faulty", always([1000], [0.9]), free=free, expected=[0.9])
    composer = running([faulty, Fake("good", GOOD)], "old")
    for fault in range(FAULTS_UNTIL_OFF):
        assert "faulty" not in composer.faults.off
        composer.start(RequestInfo(f"{fault}", 3))
        draft(composer, {f"{fault}": 3})
        composer.forget(f"{fault}")
    assert composer.faults.off == {"faulty"}
    asked = len([wanted for wanted in faulty.asked if wanted])
    composer.start(RequestInfo("new", 3))
    assert proposers_of(draft(composer, {"old": 3, "new": 3})) == {"old": "good", "new": "good"}
    assert len([wanted for wanted in faulty.asked if wanted]) == asked == FAULTS_UNTIL_OFF


def test_a_costly_proposer_that_is_off_is_not_called() -> None:
    costly = Fake("costly", raising, free=False, expected=[0.9])
    requests = [str(request) for request in range(FAULTS_UNTIL_OFF + 1)]
    composer = running([costly], *requests)
    for request in requests:
        draft(composer, {request: 3})
    assert composer.faults.off == {"costly"}
    assert len(costly.asked) == FAULTS_UNTIL_OFF


def unimplemented(max_tokens: int) -> list[float]:
    raise NotImplementedError


@pytest.mark.parametrize(
    "expected",
    [unimplemented, lambda max_tokens: None, lambda max_tokens: [math.nan], lambda max_tokens: ["0.5"]],
)
def test_a_fault_in_what_a_costly_proposer_expects(expected: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    costly = Fake("costly", BETTER, free=False)
    monkeypatch.setattr(costly, "expected_survival", expected)
    composer = running([costly, Fake("good", GOOD)], "a")
    assert proposers_of(draft(composer, {"a": 3})) == {"a": "good"}
    assert {name for name, _ in composer.faults.counts} == {"costly"}


def test_less_is_expected_for_a_request_that_a_drafter_is_never_sure_of() -> None:
    """Though it is as often right as it states."""
    sure = {"sure": [0.9, 0.8], "unsure": [0.1, 0.05]}
    drafter = Fake("d", lambda request, most: Draft([1] * most, sure[request][:most]), False, [0.5, 0.25])
    composer = running([drafter], *sure)
    for _ in range(20):
        draft(composer, dict.fromkeys(sure, 2))
        composer.observe("sure", [1, 1, 2])
        composer.observe("unsure", [3])
    expected = composer.expected_survival(drafter, dict.fromkeys(sure, 2))
    assert expected["sure"][0] > 2 * expected["unsure"][0]
