"""Argmax or sampled drafts, chosen by what is accepted, on requests whose acceptance is known."""

import random

import pytest

from slipstream.planning.draft_sampling import DraftSampling

ARGMAX_IS_BETTER = {True: 0.7, False: 0.5}
SAMPLED_IS_BETTER = {True: 0.4, False: 0.6}


def serve(
    sampling: DraftSampling, rates: dict[bool, float], temperature: float, requests: int = 400, first: int = 0
) -> list[bool]:
    """Serve requests of ten drafts of three tokens each, accepted at these rates: of argmax and of sampled
    tokens. Return which were argmax."""
    chance = random.Random(first)
    chosen = []
    for number in range(first, first + requests):
        argmax = bool(sampling.choose_argmax({str(number): temperature}))
        chosen.append(argmax)
        for _ in range(10):
            accepted = 0
            while accepted < 3 and chance.random() < rates[argmax]:
                accepted += 1
            sampling.learn(str(number), 3, accepted)
        sampling.forget(str(number))
    return chosen


@pytest.mark.parametrize("better", [True, False])
def test_what_is_accepted_more_is_chosen_and_the_other_tried_out(better: bool) -> None:
    rates = ARGMAX_IS_BETTER if better else SAMPLED_IS_BETTER
    chosen = serve(DraftSampling(), rates, 0.7)[100:]
    assert 0.8 < chosen.count(better) / len(chosen) < 0.95


def test_as_long_as_little_is_known_both_are_tried() -> None:
    sampling = DraftSampling()
    chosen = sampling.choose_argmax({str(number): 1.0 for number in range(100)})
    assert 45 <= len(chosen) <= 55
    assert 20 <= sum(int(request) % 2 for request in chosen) <= 30  # if every other is of another kind, too


def test_bands_of_temperature_are_apart() -> None:
    sampling = DraftSampling()
    cold = serve(sampling, ARGMAX_IS_BETTER, 0.3)
    hot = serve(sampling, SAMPLED_IS_BETTER, 1.0, first=1000)
    assert cold[100:].count(True) > 200
    assert hot[100:].count(False) > 200
    assert sampling.report() == {
        "from 0": {"argmax": pytest.approx(0.7, abs=0.1), "sampled": pytest.approx(0.5, abs=0.1)},
        "from 0.9": {"argmax": pytest.approx(0.4, abs=0.1), "sampled": pytest.approx(0.6, abs=0.1)},
    }


def test_a_change_of_traffic_is_followed() -> None:
    sampling = DraftSampling()
    serve(sampling, ARGMAX_IS_BETTER, 0.7)
    chosen = serve(sampling, SAMPLED_IS_BETTER, 0.7, requests=1500, first=1000)
    assert chosen[-200:].count(False) > 160


def test_a_request_stays_with_what_was_chosen_and_is_forgotten() -> None:
    sampling = DraftSampling()
    chosen = [sampling.choose_argmax({"a": 0.7}) for _ in range(20)]
    assert chosen in ([["a"]] * 20, [[]] * 20)
    sampling.forget("a")
    sampling.learn("a", 3, 3)
    assert sampling.report() == {}


def test_for_greedy_requests_there_is_nothing_to_choose() -> None:
    sampling = DraftSampling()
    assert not any(sampling.choose_argmax({str(number): 0.0}) for number in range(10))
    sampling.learn("1", 3, 3)
    assert sampling.report() == {}
