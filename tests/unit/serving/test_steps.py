import json
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from slipstream.bench.analysis import acceptance, step_split
from slipstream.serving.steps import StepFile, StepRecord, StepTotals, step_times
from slipstream.serving.time_slicing import ActiveClock


def step(**changes: Any) -> StepRecord:
    plain = {
        "decoding": 1, "prefilling": 0, "tokens": 1, "generated": 1, "offered": [], "accepted": [],
        "begun": 0.0, "ended": 0.02, "drafted": [],
    }  # fmt: skip
    return StepRecord(**{**plain, **changes})


def test_every_position_has_its_own_denominator() -> None:
    """Ten drafts of one token, all kept, and ten of three, of which only the first is: position 2 was reached
    by ten drafts, not by twenty."""
    steps = [step(offered=[1], accepted=[1], generated=2)] * 10
    steps += [step(offered=[1, 1, 1], accepted=[1, 0, 0], generated=2)] * 10
    shares = acceptance(StepTotals.of(steps, ActiveClock()))
    assert shares["by_position"] == [1.0, 0.0, 0.0]
    assert shares["rate"] == pytest.approx(20 / 40)
    assert shares["length"] == pytest.approx(2.0)
    assert shares["offered"] == [1.0, 0.5, 0.5]


def test_passes_without_drafts_count_for_the_length_of_all() -> None:
    steps = [step(offered=[1, 1], accepted=[1, 1], generated=3), step(), step(), step()]
    shares = acceptance(StepTotals.of(steps, ActiveClock()))
    assert shares["length"] == 3.0
    assert shares["length_all"] == 1.5
    assert shares["drafted_share"] == 0.25


def test_waiting_for_a_request_belongs_to_its_prefill() -> None:
    steps = [
        step(begun=10.00, ended=10.02),
        step(begun=10.03, ended=10.05, drafted=[(10.04, 10.045)]),
        step(begun=15.00, ended=15.10, decoding=0, prefilling=1, tokens=90),
        step(begun=15.11, ended=15.13),
    ]
    assert [times.wall for times in step_times(steps, ActiveClock())] == pytest.approx(
        [0.02, 0.03, 5.05, 0.03]
    )
    split = step_split(StepTotals.of(steps, ActiveClock()))
    assert split["count"] == 4
    assert split["decode_count"] == 3
    assert split["seconds"] == pytest.approx(0.08 / 3)
    assert split["drafting"] == pytest.approx(0.005 / 3)
    assert split["rest"] == pytest.approx(0.02 / 3)
    assert split["target"] + split["drafting"] + split["rest"] == pytest.approx(split["seconds"])


def test_a_step_that_was_stopped_in_the_middle_is_no_longer_for_it() -> None:
    steps = [step(begun=1.00, ended=1.02), step(begun=1.03, ended=2.05)]
    (_, times) = step_times(steps, ActiveClock([(1.04, 2.04)]))
    assert times.wall == pytest.approx(0.03)
    assert times.target == pytest.approx(0.02)


def test_sums_of_sums() -> None:
    one = StepTotals.of([step(offered=[1], accepted=[1])], ActiveClock())
    other = StepTotals.of([step(offered=[1, 1], accepted=[1, 1]), step()], ActiveClock())
    both = StepTotals.sum([one.as_dict(), other.as_dict()])
    assert both.steps == 3
    assert both.offered == [2, 1]


def test_a_line_that_is_still_being_written_waits(tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    reader = StepFile(path)
    assert reader.new() == []
    line = json.dumps(asdict(step()))
    path.write_text(line + "\n" + line[:20])
    assert len(reader.new()) == 1
    with path.open("a") as file:
        file.write(line[20:] + "\n")
    assert len(reader.new()) == 1
    assert reader.new() == []


def test_what_the_worker_writes_down() -> None:
    """Three requests: one decodes with two drafts, one of which is kept; one decodes alone; one prefills."""
    pytest.importorskip("vllm")
    from slipstream.engine.core.step_times import describe

    scheduled = SimpleNamespace(
        scheduled_spec_decode_tokens={"a": [7, 8]},
        num_scheduled_tokens={"a": 3, "b": 1, "c": 40},
        total_num_scheduled_tokens=44,
    )
    result = SimpleNamespace(req_ids=["a", "b", "c"], sampled_token_ids=[[7, 9], [5], [6]])
    assert describe(scheduled, result) == {
        "decoding": 2, "prefilling": 1, "tokens": 44, "generated": 4, "offered": [1, 1], "accepted": [1, 0],
    }  # fmt: skip
