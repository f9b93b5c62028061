"""What the engines count, as metrics."""

from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from slipstream.drafting.tally import Tally
from slipstream.engine.server.metrics import METRICS, Exporter, reference
from slipstream.planning.speedup import SpeedupEstimate

ROOT = Path(__file__).parents[3]
LABELS = {"model_name": "m", "engine": "0"}


def counts(**changed: Any) -> dict[str, Any]:
    tally = Tally()
    for verified, accepted in ((3, 2), (1, 0)):
        tally.verify("ngram", verified)
        tally.accept("ngram", accepted)
    return {
        "drafter": ["draft_model", "small", "0123456789abcdef"],
        "drafts": tally.drafts,
        "positions": tally.positions(),
        "faults": [["ngram", "stall", 2]],
        "shared_text": {"tokens": 70, "searched": 5, "found": 1},
        "plans": {"most tokens/s": 4},
        "budgets": {0: 3, 5: 1},
        "promised": 2.5,
        "seconds": {"lookup": 0.5},
        "paused": False,
        "pauses": 1,
        "failures": 0,
        "step_seconds": 2.0,
        "bare_seconds": 3.0,
        "speedup": (1.5, 1.4, 1.6),
        **changed,
    }


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


def test_counts_become_metrics(registry: CollectorRegistry) -> None:
    exporter = Exporter("m", registry)
    exporter.export("0", counts())
    exporter.export("0", counts(promised=4.0, speedup=(1.2, 1.1, 1.3)))
    exporter.export("1", counts())

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(name, {**LABELS, **labels})

    drafter = {"method": "draft_model", "drafter": "small", "fingerprint": "0123456789abcdef"}
    assert value("slipstream_drafter_info", **drafter) == 1
    assert value("slipstream_drafts_total", proposer="ngram") == 2
    assert value("slipstream_draft_tokens_total", proposer="ngram", position="1") == 2
    assert value("slipstream_draft_tokens_total", proposer="ngram", position="3") == 1
    assert value("slipstream_accepted_tokens_total", proposer="ngram", position="2") == 1
    assert value("slipstream_accepted_tokens_total", proposer="ngram", position="3") == 0
    assert value("slipstream_promised_tokens_total") == 4
    assert value("slipstream_step_draft_tokens_count") == 4
    assert value("slipstream_step_draft_tokens_sum") == 5
    assert value("slipstream_estimated_speedup") == 1.2
    assert value("slipstream_faults_total", proposer="ngram", kind="stall") == 2
    assert registry.get_sample_value("slipstream_promised_tokens_total", LABELS | {"engine": "1"}) == 2.5


def test_an_engine_that_does_not_plan_has_fewer(registry: CollectorRegistry) -> None:
    exporter = Exporter("m", registry)
    exporter.export("0", {"drafts": {"ngram": 1}, "positions": [], "failures": 0, "shared_text": None})
    assert registry.get_sample_value("slipstream_drafts_total", LABELS | {"proposer": "ngram"}) == 1
    assert registry.get_sample_value("slipstream_estimated_speedup", LABELS) is None


def test_a_draft_that_is_uncounted_is_not_counted_again(registry: CollectorRegistry) -> None:
    exporter = Exporter("m", registry)
    for drafts in (5, 4, 6):
        exporter.export("0", counts(drafts={"ngram": drafts}))
    assert registry.get_sample_value("slipstream_drafts_total", LABELS | {"proposer": "ngram"}) == 6


def test_a_pause_is_told_once(registry: CollectorRegistry, caplog: pytest.LogCaptureFixture) -> None:
    exporter = Exporter("m", registry)
    for paused in (False, True, True):
        exporter.export("0", counts(paused=paused))
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_acceptance_that_falls_away_is_told_once(
    registry: CollectorRegistry, caplog: pytest.LogCaptureFixture
) -> None:
    exporter = Exporter("m", registry)
    drafted = accepted = 0
    for rate in (0.5, 0.6, 0.2, 0.1, 0.5, 0.5, 0.2):
        for _ in range(5):
            drafted, accepted = drafted + 1_000, accepted + int(1_000 * rate)
            exporter.export("0", counts(positions=[("ngram", 1, drafted, accepted), ("suffix", 1, 10, 0)]))
    told = [record.getMessage() for record in caplog.records]
    assert told == [
        "engine 0: of the last draft tokens of ngram 20% were accepted, and 52% before",
        "engine 0: of the last draft tokens of ngram 20% were accepted, and 51% before",
    ]


def test_the_reference_is_of_these_metrics() -> None:
    page = (ROOT / "docs" / "metrics.md").read_text()
    assert reference() in page, "write the table anew: python -m slipstream.engine.server.metrics"
    assert len({metric.name for metric in METRICS}) == len(METRICS)


def test_the_tally_uncounts() -> None:
    tally = Tally()
    tally.verify("p", 2)
    tally.verify("q", 1)
    tally.uncount("p", 2)
    assert tally.report() == {"drafts": {"q": 1}, "draft_tokens": {"q": 1}, "accepted_tokens": {}}


def test_speedup_is_the_bare_time_over_the_time() -> None:
    estimate = SpeedupEstimate()
    assert estimate.interval() is None
    for _ in range(50):
        estimate.record(1.0, 1.5)
        estimate.record_baseline(1.0, 1.02)
        estimate.record_baseline(1.04, 1.02)
    found = estimate.interval()
    assert found is not None
    speedup, low, high = found
    assert speedup == pytest.approx(1.5)
    assert 1.45 < low < 1.5 < high < 1.55
    assert estimate.bare_seconds == pytest.approx(75)
