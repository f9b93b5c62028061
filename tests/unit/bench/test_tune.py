"""Tuning without a server: from what was measured to what is chosen."""

from typing import Any

import pytest

from slipstream.bench.cost_profile import cost_row
from slipstream.bench.statistics import Interval
from slipstream.bench.tune import MOST_DRAFTS, Measured, Option, TuneCandidate, batch_size_table, prefers_auto
from slipstream.errors import SetupError
from slipstream.planning.cost import CostCurve
from slipstream.planning.prediction import Acceptance
from slipstream.serving.steps import StepRecord

NGRAM = TuneCandidate("ngram", {"ngram": {"min": 2, "max": 5}})


def measured_row(load: int, most: int, cycles: int, seconds: Any, asked: int | None = None) -> Any:
    """Steps with K = 0..most in turn, `seconds(index, k)` long."""
    steps, walls = [], []
    for i in range(cycles * (most + 1)):
        k = i % (most + 1)
        steps.append(StepRecord(load, 0, load * (1 + k), load, [load] * k, [0] * k, 0.0, 0.0, []))
        walls.append(seconds(i, k))
    return cost_row(steps, walls, asked or load, most)


def test_the_cost_of_k_in_spite_of_a_drifting_machine() -> None:
    """The machine slows down to half its speed while it is measured; the ratios are still found."""
    row = measured_row(4, 3, 40, lambda i, k: 0.02 * (1 + 0.1 * k) * (1 + i / 160))
    assert [t / row[0] for t in row] == pytest.approx([1.0, 1.1, 1.2, 1.3], rel=0.03)


def test_the_cost_never_falls_with_k() -> None:
    row = measured_row(1, 3, 10, lambda i, k: [0.020, 0.019, 0.021, 0.018][k])
    assert list(row) == sorted(row)


def test_requests_that_never_ran_together() -> None:
    with pytest.raises(SetupError, match="never ran together"):
        measured_row(4, 3, 10, lambda i, k: 0.02, asked=8)


@pytest.mark.parametrize(
    ("loads", "tokens", "table"),
    [
        ((1, 4, 16), (5, 3, 0), [[1, 2, 5], [3, 8, 3], [9, 16, 0]]),
        ((1, 4, 16), (5, 5, 0), [[1, 8, 5], [9, 16, 0]]),
        ((1, 2), (4, 1), [[1, 1, 4], [2, 2, 1]]),
        ((8,), (3,), [[1, 8, 3]]),
    ],
)
def test_the_table_for_plain_vllm(loads: Any, tokens: Any, table: Any) -> None:
    assert batch_size_table(loads, tokens) == table


def test_vllm_takes_the_table() -> None:
    pytest.importorskip("vllm")
    from vllm.v1.spec_decode.dynamic.utils import build_dynamic_sd_schedule_lookup

    lookup = build_dynamic_sd_schedule_lookup(batch_size_table((1, 4, 16), (5, 3, 0)), 64, 5)
    assert [lookup[b] for b in (1, 2, 3, 8, 9, 16, 64)] == [5, 5, 3, 3, 0, 0, 0]


def test_an_option_names_itself_and_knows_its_arm() -> None:
    mixed = Option(NGRAM, (5, 3, 0), 1.2)
    assert mixed.name == "ngram-5.3.0"
    arm = mixed.arm((1, 4, 16))
    assert '"num_speculative_tokens_per_batch_size":[[1,2,5],[3,8,3],[9,16,0]]' in arm.speculate
    assert Option(NGRAM, (3, 3, 3), 1.2).name == "ngram-3"
    assert Option(NGRAM, (3, 3, 3), 1.2).table((1, 4, 16)) is None


def measured(alpha: float) -> Measured:
    """Verifying is free for 1 request and dear for 16."""
    curve = CostCurve((1, 16), (0, MOST_DRAFTS), ((0.02, 0.02), (0.03, 0.30)))
    kept = {"ngram": {"edit": Acceptance.constant(alpha, MOST_DRAFTS)}}
    return Measured(curve, kept, {"ngram": 0.0}, {"edit": (0.0, 0.0)})


def test_prediction_by_load() -> None:
    good = measured(0.8)
    alone = [good.predict_all("ngram", 1, k) for k in range(MOST_DRAFTS + 1)]
    assert alone == sorted(alone)
    busy = [good.predict_all("ngram", 16, k) for k in range(MOST_DRAFTS + 1)]
    assert max(busy) == busy[0] == 1.0


def test_what_was_measured_survives_the_file() -> None:
    assert Measured.from_dict(measured(0.5).as_dict()) == measured(0.5)


@pytest.mark.parametrize(
    ("auto", "fixed", "chosen"),
    [
        (Interval(1.20, 1.11, 1.30), Interval(1.10, 1.00, 1.20), True),
        (Interval(1.20, 1.09, 1.30), Interval(1.10, 1.00, 1.20), False),
        (Interval(1.01, 0.95, 1.07), None, True),
        (Interval(0.99, 0.95, 1.07), None, False),
    ],
)
def test_auto_is_chosen_where_it_is_clearly_faster(auto: Any, fixed: Any, chosen: bool) -> None:
    assert prefers_auto(auto, fixed) == chosen
