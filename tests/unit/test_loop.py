"""The speculation loop without an engine: who is drafted for, what proposers are told, what is recorded."""

import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from types import NoneType
from typing import Any

import pytest

from slipstream import loop as looping
from slipstream.drafting.calibration import Survival
from slipstream.drafting.composer import Composer
from slipstream.drafting.registry import make_proposer
from slipstream.drafting.requests import AUTO, OFF, RunningRequest
from slipstream.loop import SpeculationLoop
from slipstream.planning.planner import NOT_RUN, DrafterRun, Outlook, Plan, Planner, StepOutcome, StepState
from slipstream.planning.policy import Lengths, VerifyAll
from slipstream.planning.step_cost import PassProfile, Step, StepCost
from slipstream.planning.thresholds import THRESHOLDS
from unit.drafting.fakes import Fake, always

TWO = always([1, 2], [0.8, 0.6])


class Text(RunningRequest):
    """A request whose text grows by hand."""

    def __init__(self, name: str, text: Sequence[int] = (7, 8, 9), requested: int = AUTO) -> None:
        super().__init__(name, requested)
        self.text, self.prompt, self.room = list(text), len(text), 4

    @property
    def tokens(self) -> list[int]:
        return self.text

    @property
    def num_prompt_tokens(self) -> int:
        return self.prompt

    @property
    def tokens_left(self) -> int:
        return self.room + 1

    @property
    def max_draft_tokens(self) -> int:
        return self.room


class Policy(VerifyAll):
    """Verifies everything, for a budget of lookups, and notes what it is told."""

    def __init__(self, budget: int = 99, paused: bool = False) -> None:
        self.budget, self.pauses = budget, paused
        self.states: list[StepState] = []
        self.lookups: list[tuple[int, int, float]] = []

    def paused(self, step: Step) -> bool:
        return self.pauses

    def lookup_budget(self, state: StepState, candidates: int) -> int:
        return min(self.budget, candidates)

    def record_lookups(self, requests: int, seconds: float, retried: int, tokens: float) -> None:
        assert seconds > 0
        self.lookups.append((requests, retried, round(tokens, 3)))

    def plan(
        self, state: StepState, offers: Mapping[str, Survival], drafter: DrafterRun = NOT_RUN
    ) -> Lengths:
        self.states.append(state)
        return super().plan(state, offers, drafter)


def tokens_of(drafts: Mapping[str, Any]) -> dict[str, list[int]]:
    return {request: list(draft.tokens) for request, draft in drafts.items()}


def values_in(content: Any) -> Iterator[Any]:
    if isinstance(content, dict | list | tuple):
        for part in content.values() if isinstance(content, dict) else content:
            yield from values_in(part)
    else:
        yield content


def test_a_whole_life() -> None:
    """With the real proposers and the real planner: a text that repeats itself is drafted, verified, recorded
    and forgotten."""
    proposers = [make_proposer("ngram", {})]
    planner = Planner(StepCost(PassProfile((1, 100), (0.02, 0.02))))
    loop = SpeculationLoop(Composer(proposers, 100), planner)
    request = Text("r", [5, 6, 7, 8] * 4)
    written = steps = 0
    while written < 100:
        steps += 1
        drafts = loop.draft([request], Step(1)).get("r")
        right = [[5, 6, 7, 8][(len(request.text) + at) % 4] for at in range(5)]
        accepted = list(drafts.tokens) if drafts else []
        assert accepted == right[: len(accepted)]
        request.text += right[: len(accepted) + 1]
        written += len(accepted) + 1
        loop.record(StepOutcome(Step(1, len(accepted)), 0.02, 0.0, len(accepted) + 1))
    planner.record_lookups(1, 1e-5, 1, 0.5)
    report = loop.report()
    assert {type(value) for value in values_in(report)} <= {int, float, str, bool, NoneType}, "for msgpack"
    assert steps < 40
    assert report["accepted_tokens"]["ngram"] > 60
    assert report["planner"]["steps"] == steps
    assert isinstance(planner.plans[-1], Plan)
    loop.finish(request)
    assert "r" not in loop.composer
    assert loop.report()["accepted_tokens"] == loop.report()["draft_tokens"], "the last drafts are scored too"


class UnderWay(Text):
    """A request of which a step is always under way: the loop sees its text without that step's tokens."""

    def __init__(self, name: str, text: Sequence[int]) -> None:
        super().__init__(name, text)
        self.under_way = 1

    @property
    def tokens_under_way(self) -> int:
        return self.under_way


def test_a_step_is_under_way() -> None:
    """With asynchronous scheduling: drafts begin with what the step under way is expected to write."""
    planner = Planner(StepCost(PassProfile((1, 100), (0.02, 0.02))))
    loop = SpeculationLoop(Composer([make_proposer("ngram", {})], 100, steps_under_way=1), planner)
    request = UnderWay("r", [5, 6, 7, 8] * 4)
    cycle = [5, 6, 7, 8] * 20
    unknown = [cycle[len(request.text)]]  # what the step under way writes
    drafted = steps = written = 0
    while written < 100:
        steps += 1
        request.under_way = len(unknown)
        draft = loop.draft([request], Step(1)).get("r")
        place = len(request.text)
        tokens = list(draft.tokens) if draft else []
        assert tokens == [cycle[(place + at) % 4] for at in range(len(tokens))]
        verified = max(len(tokens) - len(unknown), 0)
        assert verified <= request.max_draft_tokens
        drafted += verified
        request.text += unknown
        unknown = [cycle[(len(request.text) + at) % 4] for at in range(verified + 1)]
        written += verified + 1
        loop.record(StepOutcome(Step(1, verified), 0.02, 0.0, verified + 1))
        assert request.pace <= 1 + request.max_draft_tokens, "what is under way comes without a draft"
    request.text += unknown
    loop.finish(request)
    report = loop.report()
    assert steps < 45
    assert report["draft_tokens"]["ngram"] == drafted
    assert report["accepted_tokens"]["ngram"] == drafted


def test_it_needs_no_engine() -> None:
    code = "import sys; sys.modules['vllm'] = sys.modules['torch'] = None; import slipstream.loop"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_requests_decide_for_themselves() -> None:
    policy = Policy()
    loop = SpeculationLoop(Composer([Fake("p", TWO)], 100), policy)
    requests = [Text("auto"), Text("off", requested=OFF), Text("one", requested=1), Text("full")]
    requests[2].room, requests[3].room = 1, 0
    assert tokens_of(loop.draft(requests, Step(4))) == {"auto": [1, 2], "one": [1]}
    left = {"auto": 5, "off": 5, "one": 2, "full": 1}
    outlook = {request: Outlook(tokens, pace=1.0) for request, tokens in left.items()}
    assert policy.states == [StepState(Step(4), {"one": 1}, outlook)]
    policy.pauses = True
    for request in requests:
        request.text.append(3)
    assert tokens_of(loop.draft(requests, Step(4))) == {"one": [1]}, "what was asked for is not paused"


def test_a_request_that_wrote_nothing_has_no_new_draft() -> None:
    loop = SpeculationLoop(Composer([Fake("p", TWO)], 100), Policy())
    request = Text("r")
    assert loop.draft([request], Step(1))
    assert not loop.draft([request], Step(1))


def test_without_requests_nothing_is_asked_but_a_drafter_that_keeps_up() -> None:
    policy, drafter = Policy(), Fake("drafter", TWO, free=False, expected=[0.9, 0.9])
    assert SpeculationLoop(Composer([Fake("p", TWO)], 100), policy).draft([], Step(0)) == {}
    assert not policy.states
    SpeculationLoop(Composer([drafter], 100), policy).draft([], Step(0))
    assert drafter.asked == [{}]


def test_a_drafter_that_sees_every_step_is_no_lookup() -> None:
    """Its time is not held against the free proposers, whether anything was asked of it or not."""
    policy = Policy()
    slow = Fake("drafter", TWO, free=False, expected=[0.1, 0.1])
    propose = slow.propose

    def slowly(wanted: Mapping[str, int]) -> Any:
        time.sleep(0.05)
        return propose(wanted)

    slow.propose = slowly  # type: ignore[method-assign]
    seconds = []
    policy.record_lookups = lambda requests, took, retried, tokens: seconds.append(took)  # type: ignore
    loop = SpeculationLoop(Composer([Fake("p", TWO), slow], 100), policy)
    loop.draft([Text("r")], Step(1))
    assert slow.asked == [{}]
    assert seconds[0] < 0.04


def test_many_requests_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(looping, "MAX_LOOKUPS", 4)
    loop = SpeculationLoop(Composer([Fake("p", TWO)], 100), Policy())
    requests = [Text(f"{number}") for number in range(10)]
    drafted: list[str] = []
    for _ in range(5):
        found = loop.draft(requests, Step(10))
        assert len(found) == 4
        drafted += found
        for request in requests:
            request.text.append(3)
    assert {drafted.count(request.id) for request in requests} == {2}


def test_requests_without_drafts_are_looked_up_within_the_budget() -> None:
    proposer = Fake(
        "p",
        lambda request, max_tokens: TWO(request, max_tokens) if request == "good" else always([], [])("", 0),
    )
    policy = Policy(budget=1)
    loop = SpeculationLoop(Composer([proposer], 100), policy)
    requests = [Text("good"), Text("a"), Text("b")]

    def step() -> list[str]:
        loop.draft(requests, Step(3))
        for request in requests:
            request.text.append(3)
        return sorted(proposer.asked[-1])

    for _ in range(THRESHOLDS.max_empty_lookups):
        assert step() == ["a", "b", "good"]
    assert [step() for _ in range(4)] == [["a", "good"], ["b", "good"]] * 2
    assert policy.lookups[-1] == (2, 1, 0.0)
    proposer.answer = TWO
    assert step() == ["a", "good"]
    requests_looked_up, retried, tokens = policy.lookups[-1]
    assert (requests_looked_up, retried) == (2, 1)
    assert tokens > 0
    assert step() == ["a", "b", "good"], "a is back, and b has its turn"


def test_a_long_prompt_is_read_in_several_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """And others, who have little to be read, do not wait for it."""
    monkeypatch.setattr(looping, "MAX_OBSERVED_TOKENS", 30)
    loop = SpeculationLoop(Composer([Fake("p", TWO)], 100), Policy())
    long, short = Text("long", [1] * 70), Text("short")
    read, drafted = [], []
    for _ in range(4):
        drafted.append(set(loop.draft([long, short], Step(2))))
        read.append(long.num_observed)
        short.text.append(3)
    assert read == [27, 56, 70, 70]
    assert drafted == [{"short"}, {"short"}, {"long", "short"}, {"short"}]


@pytest.mark.parametrize("turn", ["shorter", "another prompt"])
def test_a_session_that_goes_on_elsewhere_is_told_anew(turn: str) -> None:
    proposer = Fake("p", TWO)
    loop = SpeculationLoop(Composer([proposer], 100), Policy())
    request = Text("r", [1, 2, 3])
    request.text += [4, 5]
    loop.draft([request], Step(1))
    if turn == "shorter":
        del request.text[3:]
    else:
        request.text += [6, 7]
        request.prompt = 7
    loop.draft([request], Step(1))
    assert [call for call, _ in proposer.told] == ["start", "observe", "forget", "start", "observe"]
    assert request.num_observed == len(request.text)


def test_finishing_twice_or_unseen() -> None:
    proposer = Fake("p", TWO)
    loop = SpeculationLoop(Composer([proposer], 100), Policy())
    request = Text("r")
    loop.finish(request)
    assert not proposer.told
    loop.draft([request], Step(1))
    request.text.append(1)
    loop.finish(request)
    loop.finish(request)
    assert [call for call, _ in proposer.told] == ["start", "observe", "observe", "forget"]
    assert loop.report()["accepted_tokens"] == {"p": 1}
