"""When a drafter is left out that must read every step."""

import pytest

from slipstream.planning.planner import MeasuredDrafterCost, Planner, StepOutcome, StepState
from slipstream.planning.standing import Standing
from slipstream.planning.step_cost import PassProfile, Step, StepCost
from slipstream.planning.thresholds import THRESHOLDS

FREE = PassProfile((1, 64), (0.01, 0.01))


def judged(*gains: float) -> Standing:
    """Return what comes of such steps of one request."""
    standing = Standing()
    for gain in gains:
        if standing.runs:
            standing.judge(gain, 1)
        else:
            standing.skip()
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
    assert judged(*[gain] * 2000).rests == 0


def test_what_steps_take_without_it_is_measured_now_and_then() -> None:
    standing = judged(*[0.5] * THRESHOLDS.requests_unmeasured)
    assert not standing.runs
    assert not standing.knows_bare
    assert steps_until_it_is_back(standing) == THRESHOLDS.bare_steps
    assert standing.knows_bare
    assert standing.rests == 0, "that is no rest because of a loss"
    for _ in range(16 * THRESHOLDS.requests_unmeasured - 1):
        standing.judge(0.5, 8)
    assert standing.runs, "128 times as long now"
    standing.judge(0.5, 8)
    assert not standing.runs


def test_it_is_measured_sooner_where_no_request_loses_its_drafts() -> None:
    standing = judged(*[0.5] * (THRESHOLDS.requests_unmeasured // 8))
    assert standing.runs
    standing.measure(loses_it=False)
    assert not standing.runs


def test_many_requests_say_as_much_in_fewer_steps() -> None:
    standing, tried = Standing(), 0
    while standing.runs:
        standing.judge(-1.0, 8)
        tried += 1
    assert tried == 5, "4 steps have 32 requests, and after 5 more is lost than is tolerated"


def test_a_small_loss_is_noticed_too() -> None:
    assert judged(*[-0.03] * 400).rests == 1


def test_after_a_gain_it_rests_briefly_again() -> None:
    standing = judged(*[-0.3] * 32)
    steps_until_it_is_back(standing)
    for gain in [0.3] * 300 + [-0.3] * 800:
        if standing.runs:
            standing.judge(gain, 1)
    most = THRESHOLDS.min_read_requests * 0.3 / THRESHOLDS.tolerated_loss
    assert 0 < steps_until_it_is_back(standing) <= most


def test_a_loss_after_a_long_gain_is_noticed_soon() -> None:
    """As when chats follow records in JSON, of which nearly all drafts were accepted."""
    standing = judged(*[1.0] * 200)
    steps = 0
    while not standing.rests:
        if standing.runs:
            standing.judge(-0.35, 8)
            steps += 1
        else:
            standing.skip()
    most = THRESHOLDS.max_drafter_credit + THRESHOLDS.tolerated_loss * THRESHOLDS.guard_memory
    assert steps <= most / 0.35 + 3


def planner(drafter_pass: float) -> Planner:
    """Of an engine whose pass takes 10 ms, and 1 ms for each token of a prompt."""
    return Planner(StepCost(PassProfile((1, 101), (0.01, 0.11))), drafter_pass)


def test_reading_costs_what_the_target_reads_in_proportion() -> None:
    of_a_third = planner(0.003)
    assert of_a_third.reading_seconds(Step(1)) == pytest.approx(0.003)
    assert of_a_third.reading_seconds(Step(1, prefill=50)) == pytest.approx(0.018)


def test_a_small_gain_is_one() -> None:
    of_a_third = planner(0.003)
    assert steps_until_left_out(of_a_third, Step(8), 0.02) == 1_000


def test_a_plan_without_gain_loses_what_reading_takes() -> None:
    of_a_third = planner(0.003)
    for _ in range(THRESHOLDS.min_read_requests):
        assert of_a_third.standing(Step(1)).runs
        of_a_third.judge_drafter(Step(1), 0.0)
    assert not of_a_third.standing(Step(1)).runs
    assert of_a_third.standing(Step(8)).runs, "at another load it may pay"
    assert steps_until_left_out(of_a_third, Step(8), 0.1) == 1_000


def answers(of: Planner, prompt: int, tokens: int) -> Planner:
    """Let it see answers of so many tokens to such prompts."""
    for _ in range(100):
        of.finish(tokens, at_limit=True, prompt=prompt)
    return of


def steps_until_left_out(of: Planner, step: Step, gain: float) -> int:
    """Return after how many steps it is left out for its losses; 1,000 if it is not."""
    standing = of.standing(step)
    rests = standing.rests
    for number in range(1_000):
        if standing.runs:
            of.judge_drafter(step, gain)
        else:
            standing.skip()
        if standing.rests > rests:
            return number
    return 1_000


def test_reading_a_prompt_is_for_the_answer_that_follows() -> None:
    """Eight prompts that take it five steps, and drafts that gain 5% of a step, as measured with Qwen."""
    eight = Step(8)
    assert steps_until_left_out(planner(0.003), eight, 0.05) == 1_000, "no answer has ended"
    assert steps_until_left_out(answers(planner(0.003), 60, 480), eight, 0.05) == 1_000
    assert steps_until_left_out(answers(planner(0.003), 60, 48), eight, 0.05) < 150
    assert steps_until_left_out(answers(planner(0.003), 60, 48), eight, 0.2) == 1_000


def test_traffic_that_changes_is_followed() -> None:
    changed = answers(answers(planner(0.003), 60, 480), 60, 24)
    assert changed.traffic.answer_tokens == pytest.approx(24, rel=0.05)
    assert changed.traffic.prompt_tokens == pytest.approx(60, rel=0.1)
    assert steps_until_left_out(changed, Step(8), 0.05) < 100


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


LIKELY, UNLIKELY = [0.9, 0.8, 0.7], [0.1, 0.01, 0.001]


def tried(of: Planner, step: Step, survival: list[float]) -> bool:
    of.try_drafter(step, {str(number): survival for number in range(step.requests)})
    return of.standing(step).runs


def test_one_that_could_not_pay_is_not_tried() -> None:
    where_verifying_is_dear = dear(0.003)
    assert not tried(where_verifying_is_dear, Step(8), LIKELY)
    assert where_verifying_is_dear.drafter_rests == 1
    assert steps_until_it_is_back(where_verifying_is_dear.standing(Step(8))) == THRESHOLDS.first_pause
    assert not tried(where_verifying_is_dear, Step(8), LIKELY), "costs are the same"
    assert where_verifying_is_dear.drafter_rests == 1, "it has rested all the time"


def test_one_that_could_pay_is_tried() -> None:
    assert tried(planner(0.003), Step(8), LIKELY)
    assert not tried(planner(0.2), Step(8), LIKELY), "its passes are too dear"


def test_one_whose_tokens_are_known_to_be_rejected_is_tried_rarely() -> None:
    of_a_third = planner(0.003)
    standing = of_a_third.standing(Step(8))
    for _ in range(THRESHOLDS.max_pause // THRESHOLDS.first_pause):
        assert not tried(of_a_third, Step(8), UNLIKELY)
        assert steps_until_it_is_back(standing) == THRESHOLDS.first_pause
    assert tried(of_a_third, Step(8), UNLIKELY)
    assert of_a_third.drafter_rests == 1
    assert steps_until_left_out(of_a_third, Step(8), 0.0) < 50, "it loses again"
    steps_until_it_is_back(standing)
    assert not tried(of_a_third, Step(8), UNLIKELY)


def test_one_whose_answers_are_too_short_for_their_prompts_is_not_tried() -> None:
    assert tried(answers(planner(0.003), 60, 480), Step(8), LIKELY)
    assert not tried(answers(planner(0.003), 60, 1), Step(8), LIKELY)


def test_a_short_time_with_many_requests_takes_it_from_nobody() -> None:
    where_verifying_is_dear = dear(0.003)
    for _ in range(8):
        where_verifying_is_dear.judge_drafter(Step(8), 0.0)
        assert where_verifying_is_dear.standing(Step(8)).runs
    for _ in range(800):
        where_verifying_is_dear.judge_drafter(Step(8), 0.0)
    assert not where_verifying_is_dear.standing(Step(8)).runs, "a long time does"


def run(drafter: float, steps: int = 1_500) -> tuple[Planner, float]:
    """Return the planner of an engine whose steps take 10 ms, and the share of its steps with the drafter.
    That was measured to take 1 ms a pass, and takes `drafter`. Of what it drafts, 60% is accepted."""
    planner = Planner(StepCost(FREE), drafter_cost=MeasuredDrafterCost([(1, 1, 0.001), (1, 4, 0.004)]))
    eight, survival = Step(8), [0.6, 0.36, 0.22, 0.13]
    expected = {str(number): survival for number in range(8)}
    standing, passes, believed, with_drafter = planner.standing(eight), 0, 0.0, 0
    for number in range(steps):
        if number % 50 == 0:  # others come
            planner.try_drafter(eight, expected)
        drafted, drafting = passes, believed
        runs, passes, believed = standing.runs, 0, 0.0
        if runs:
            with_drafter += 1
            plan = planner.plan_drafter(StepState(eight), {}, expected)
            passes, believed = plan.passes, planner.drafter_seconds(8, max(plan.passes, 1))
            planner.judge_drafter(eight, plan.gain)
        else:
            planner.skip_drafter(eight)
        step = Step(8, drafts=8 * drafted)
        wall = 0.01 + (drafter * max(drafted, 1) if drafting else 0.0)
        share = drafting / (planner.cost.seconds(step) + drafting)
        tokens = round(8 + 8 * sum(survival[:drafted]))
        parts = (share * wall, 0.0) if drafted else (0.0, share * wall)
        planner.record(
            StepOutcome(
                step, (1 - share) * wall, parts[0], tokens, reading=parts[1], drafter_within=drafting > 0
            )
        )
    return planner, with_drafter / steps


def test_a_drafter_that_is_dearer_than_was_measured_is_left_out() -> None:
    """Twelve times as dear it loses, and what bare steps take shows it."""
    dearer, share = run(0.012)
    assert dearer.cost.bare(Step(8)) == pytest.approx(0.01, rel=0.1)
    assert share < 0.3


def test_one_that_is_as_dear_as_was_measured_stays() -> None:
    as_measured, share = run(0.001)
    assert as_measured.cost.bare(Step(8)) == pytest.approx(0.01, rel=0.1)
    assert share > 0.9


def test_one_that_is_cheaper_is_believed_to_be() -> None:
    cheaper, share = run(0.0005)
    assert share > 0.9
    assert cheaper.cost.bare(Step(8)) == pytest.approx(0.01, rel=0.1)
