"""When a step is run without drafts to measure the baseline."""

from slipstream.planning.exploration import Exploration
from slipstream.planning.step_cost import Step
from slipstream.planning.thresholds import THRESHOLDS


def steps_until_due(exploration: Exploration, gain: float, requests: int = 8) -> int:
    """Run steps with drafts until one without is due, then that one. Return how many there were."""
    count = 0
    while not exploration.baseline_is_due(Step(requests), gain):
        exploration.record(Step(requests, 8), 0.02)
        count += 1
    exploration.record(Step(requests), 0.02)
    return count


def test_the_less_is_promised_the_more_often_the_baseline_is_measured() -> None:
    exploration = Exploration()
    for _ in range(30):
        steps_until_due(exploration, gain=2.0)
    found = {gain: steps_until_due(exploration, gain) for gain in (0.02, 0.06, 0.3, 1.0)}
    assert found == {0.02: 7, 0.06: 20, 0.3: 100, 1.0: THRESHOLDS.baseline_interval}
    assert all(gain / (count + 1) <= THRESHOLDS.baseline_share for gain, count in found.items() if gain < 0.5)


def test_a_batch_that_drains_has_its_baseline_measured() -> None:
    """The number of requests changes with every step."""
    exploration, bare = Exploration(), 0
    for requests in range(64, 45, -1):
        due = exploration.baseline_is_due(Step(requests), gain=0.03)
        bare += due
        exploration.record(Step(requests, 0 if due else 8), 0.2)
    assert bare >= 1
