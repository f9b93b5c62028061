"""When a drafter is left out that must read every step."""

import math

import pytest

from slipstream.planning.planner import Planner, StepState
from slipstream.planning.standing import Standing
from slipstream.planning.step_cost import PassProfile, Step, StepCost
from slipstream.planning.thresholds import THRESHOLDS


def judged(*gains: float, prompts: float = 0.0) -> Standing:
    """Return what comes of such steps of one request, the first of which has a prompt."""
    standing = Standing()
    for number, gain in enumerate(gains):
        standing.judge(gain, 1, 0.0 if number else prompts)
    return standing


def steps_until_it_is_back(standing: Standing) -> int:
    steps = 0
    while not standing.runs:
        standing.skip()
        steps += 1
    return steps


def test_a_drafter_that_loses_is_left_out_for_longer_and_longer() -> None:
    standing = Standing()
    rests = []
    for _ in range(5):
        tried = 0
        while standing.runs:
            standing.judge(-0.3, 1)
            tried += 1
        assert tried == THRESHOLDS.min_read_requests
        rests.append(steps_until_it_is_back(standing))
    lost = tried * 0.3
    assert 0.9 * lost / THRESHOLDS.tolerated_loss < rests[0] <= lost / THRESHOLDS.tolerated_loss
    assert rests[1:3] == pytest.approx([2 * rests[0], 4 * rests[0]], abs=4)
    assert rests[4] == THRESHOLDS.max_pause
    assert standing.rests == 5


@pytest.mark.parametrize("gain", [0.2, 0.0, -0.01])
def test_one_that_does_not_lose_stays(gain: float) -> None:
    assert judged(*[gain] * 2000).runs


def test_many_requests_say_as_much_in_fewer_steps() -> None:
    standing, tried = Standing(), 0
    while standing.runs:
        standing.judge(-1.0, 8)
        tried += 1
    assert tried == 5, "4 steps have 32 requests, and after 5 more is lost than is tolerated"


def test_a_small_loss_is_noticed_too() -> None:
    assert judged(*[-0.03] * 400).rests == 1


def test_prompts_that_it_reads_may_pay_later() -> None:
    """A prompt for ten steps that gain, as in traffic with answers of ten tokens."""
    for prompt, rests in ((1.0, False), (3.0, True)):
        standing = Standing()
        for number in range(1_000):
            standing.judge(0.2, 1, 0.0 if number % 10 else prompt)
        assert (standing.rests > 0) == rests


def test_a_prompt_read_for_a_short_answer_is_counted_while_that_is_written() -> None:
    """Eight prompts that take it five steps, for answers of 34 that gain 5% each, as measured with Qwen."""

    def waves_until_left_out(answer: float) -> int:
        standing, steps = Standing(), 0
        while standing.runs:
            standing.judge(0.05, 8, 0.0 if steps % 34 else 5.0, answer)
            steps += 1
        return -(-steps // 34)

    assert waves_until_left_out(34) == 2
    assert waves_until_left_out(math.inf) > 5


def test_how_long_answers_are_is_learnt() -> None:
    def steps_until_left_out(known: bool) -> int:
        of_a_third, steps = planner(0.003), 0
        for _ in range(100 * known):
            of_a_third.finish(34, at_limit=True)
        while of_a_third.standing(Step(8)).runs:
            of_a_third.judge_drafter(Step(8, prefill=0 if steps % 34 else 500), 0.05)
            steps += 1
        return steps

    assert steps_until_left_out(known=True) <= 2 * 34 < 3 * 34 < steps_until_left_out(known=False)


def test_a_long_prompt_is_for_the_answer_that_follows() -> None:
    assert judged(*[0.5] * 200, prompts=23.0).rests == 0


def test_after_a_gain_it_rests_briefly_again() -> None:
    standing = judged(*[-0.3] * 32)
    steps_until_it_is_back(standing)
    for gain in [0.3] * 300 + [-0.3] * 800:
        if standing.runs:
            standing.judge(gain, 1)
    most = THRESHOLDS.min_read_requests * 0.3 / THRESHOLDS.tolerated_loss
    assert 0 < steps_until_it_is_back(standing) <= most


def test_a_long_prompt_that_it_reads_in_vain_is_paid_for_by_a_longer_rest() -> None:
    standing = judged(*[-0.3] * 32, prompts=20.0)
    assert steps_until_it_is_back(standing) > 20 / THRESHOLDS.tolerated_loss


def planner(drafter_pass: float) -> Planner:
    """Of an engine whose pass takes 10 ms, and 1 ms for each token of a prompt."""
    return Planner(StepCost(PassProfile((1, 101), (0.01, 0.11))), drafter_pass)


def test_reading_costs_what_the_target_reads_in_proportion() -> None:
    of_a_third = planner(0.003)
    assert of_a_third.reading_seconds(Step(1)) == pytest.approx(0.003)
    assert of_a_third.reading_seconds(Step(1, prefill=50)) == pytest.approx(0.018)


def test_a_small_gain_is_one() -> None:
    of_a_third = planner(0.003)
    for _ in range(300):
        of_a_third.judge_drafter(Step(8), 0.02)
    assert of_a_third.standing(Step(8)).runs


def test_a_plan_without_gain_loses_what_reading_takes() -> None:
    of_a_third = planner(0.003)
    for _ in range(THRESHOLDS.min_read_requests):
        assert of_a_third.standing(Step(1)).runs
        of_a_third.judge_drafter(Step(1), 0.0)
    assert not of_a_third.standing(Step(1)).runs
    assert of_a_third.standing(Step(8)).runs, "at another load it may pay"
    for _ in range(300):
        of_a_third.judge_drafter(Step(8), 0.1)
    assert of_a_third.standing(Step(8)).runs
    for _ in range(300):  # with prompts of ten tokens, which take it as long as a pass
        of_a_third.judge_drafter(Step(2, prefill=10), 0.1)
    assert not of_a_third.standing(Step(2)).runs


def test_what_it_would_gain_for_all_is_known_without_drafting() -> None:
    """With one of eight requests read it does not pay, and if it had read all it would."""
    small = planner(0.0005)
    state, survival = StepState(Step(8)), [0.7, 0.49, 0.34]
    one, everyone = {"0": survival}, {str(number): survival for number in range(8)}
    assert small.plan_drafter(state, {}, one).gain == small.drafter_gain(state, {}, one) == 0
    gain = small.drafter_gain(state, {}, everyone)
    assert gain == small.plan_drafter(state, {}, everyone).gain > 0.1


def dear(drafter_pass: float) -> Planner:
    """Of an engine whose pass takes 10 ms for every token in it."""
    return Planner(StepCost(PassProfile((1, 101), (0.01, 1.01))), drafter_pass)


def test_one_that_could_not_pay_is_not_tried() -> None:
    where_verifying_is_dear = dear(0.003)
    assert not where_verifying_is_dear.drafter_runs(Step(8), 3, reads_on=False)
    assert where_verifying_is_dear.drafter_rests == 1
    assert steps_until_it_is_back(where_verifying_is_dear.standing(Step(8))) == THRESHOLDS.first_pause
    assert not where_verifying_is_dear.drafter_runs(Step(8), 3, reads_on=False), "costs are the same"
    assert where_verifying_is_dear.drafter_rests == 1, "it has rested all the time"


def test_one_that_could_pay_is_tried() -> None:
    assert planner(0.003).drafter_runs(Step(8), 3, reads_on=False)
    assert not planner(0.2).drafter_runs(Step(8), 3, reads_on=False), "its passes are too dear"


def test_a_short_time_with_many_requests_takes_it_from_nobody() -> None:
    where_verifying_is_dear = dear(0.003)
    for _ in range(8):
        assert where_verifying_is_dear.drafter_runs(Step(8), 3, reads_on=True)
        where_verifying_is_dear.judge_drafter(Step(8), 0.0)
    for _ in range(800):
        where_verifying_is_dear.judge_drafter(Step(8), 0.0)
    assert not where_verifying_is_dear.drafter_runs(Step(8), 3, reads_on=True), "a long time does"
