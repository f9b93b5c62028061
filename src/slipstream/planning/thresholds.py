"""Every number that the planner's decisions depend on: where it comes from, and what doubling it changes.

"Chosen" means chosen by judgement and kept because the simulated engines of `tests/unit/planning` and the
runs in `benchmarks/results` held with it; no search over its values was made.
"""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Thresholds:
    # ---- what a plan must promise ----

    min_gain: float = 0.02
    """Relative gain in tokens per second over a step without drafts, below which nothing is drafted. From the
    spread of step times on a quiet machine, one to two percent. Doubled: gains below 4% are left behind."""

    # ---- what a token is worth (`objective`) ----

    late_share: float = 0.1
    """Of the requests of a batch, those that may need more steps than what counts as the slowest: who that
    will be is not known. Of 0 to 0.2 the best, by little, on recorded batches."""
    pace_rate: float = 0.2
    """Of what is new in the tokens per step that a request could write. Of 0.03 to 0.2 the best, by little,
    on recorded batches."""
    pace_memory: int = 100
    """Lookups over which the pace of all requests is averaged: where a new request begins. Chosen."""
    traffic_memory: int = 16
    """Finished requests over which it is averaged whether others follow them. Chosen."""
    newcomer_memory: int = 100
    """Steps over which newcomers are counted. Chosen."""
    rare_newcomers: float = 0.01
    """Newcomers per step below which `latency` does not look at those to come. Chosen."""
    first_token_delay: float = 0.04
    """Of the time that a newcomer waits without drafts, what drafts may add under `latency`. The aim is
    5% at the median; measured with the same arrivals for all: -4% and 1% (docs/planning.md). Doubled: 8%."""
    prompt_rate: float = 0.1
    """Of what is new in the time of a step with prompts. Chosen."""

    # ---- what is explored (`exploration`) ----

    probe_share: float = 0.01
    """Share of the time that may go to probes. It is the most that exploring can cost, so it bounds the
    promise never to be slower. Doubled: a change is noticed in half the time, for 1% more."""
    drafter_probe_requests: int = 4
    """Requests for which a drafter that seems not to pay is probed: it has to read their texts first.
    Chosen. Doubled: its acceptance is known from half as many probes, each twice as dear."""
    baseline_interval: int = 200
    """Steps with drafts at one load, after which one is run without, to measure the baseline: 0.5% of the
    steps. Doubled: half of that cost, and a machine that has become slower is noticed after 400 steps."""
    baseline_share: float = 0.003
    """Of the time, what steps without drafts may cost where a plan promises little: with 3% every tenth step
    is one. Doubled: every fifth, and such plans bring 0.3% less."""
    least_interval: int = 4
    """Steps with drafts between two without, at least. Chosen."""
    first_baseline: int = 10
    """The interval at first; it grows by as much with every baseline step. Chosen: with few measurements one
    outlier misleads. Doubled: a wrong first measurement lasts 20 steps."""
    steps_to_know: int = 5
    """Measurements of a kind of step after which it needs no probe. Chosen: the median of five step times is
    within a few percent. Doubled: twice the probes for each number of requests."""
    probe_survival: float = 0.3
    """Survival from which a draft token is worth a probe of what verifying it takes. Chosen: below it, a
    token pays only where verifying is nearly free. Doubled: fewer probes, and long drafts stay unmeasured."""

    # ---- which requests are looked up (`lookups`) ----

    lookup_share: float = 0.005
    """Share of a step's time for looking up requests that lately had no draft worth verifying. Doubled: such
    requests are noticed in half the time once they repeat themselves, for 0.5% more."""
    overlap_share: float = 0.5
    """Of a step's time, what lookups may take that go on while it runs (asynchronous scheduling): vLLM's own
    scheduling has to be done in it as well. Chosen. Doubled: steps shorter than a lookup for each request
    get longer."""
    lookup_memory: int = 200
    """Lookups over which their yield is averaged. Chosen. Doubled: follows new traffic half as fast."""
    lookup_time_rate: float = 0.05
    """Of what is new in a lookup's time. Chosen."""
    max_lookup_ratio: float = 4.0
    """Of one measurement to what is known: a process that was stopped says nothing of lookups. Chosen."""
    min_lookup_yield: float = 2.0
    """Of the time that lookups take, what they must save to be continued: what they save is estimated.
    Doubled: requests that seldom repeat themselves are left alone sooner."""
    max_empty_lookups: int = 4
    """Lookups in a row without a draft, after which a request is looked up within `lookup_share`. Chosen.
    Doubled: requests without repetition cost eight lookups before they cost next to nothing."""

    # ---- what steps take (`step_cost`) ----

    speed_rate: float = 0.2
    """Of a surprise, what goes to the machine's speed of the moment: it follows a change within 20 steps,
    also in a batch that drains, whose steps are all of kinds that were not seen before. Doubled: within 10,
    and noise moves it twice as much."""
    known_steps: int = 5
    """Steps of a kind after which they say more of it than others of its like do. Chosen."""
    profile_weight: int = 1
    """Steps of a kind that the profile of the engine's start is worth. Chosen low: the profile leaves out
    what the engine does around the pass."""
    cost_memory: int = 100
    """Steps of a kind after which old ones have faded. Doubled: half the noise, and twice as long until a
    kind that has become dearer is known to be."""
    max_surprise: float = 0.25
    """Of one step, in the logarithm: one slow step moves nothing far. Doubled: outliers count for more."""
    prior_weight: float = 1e-9
    """Steps that a number of drafts never seen is worth beside one that was: nearly none."""
    hang_factor: float = math.log(3)
    """A step of three times its expected time hung, and says nothing of its kind; nor does one of a third of
    it. Doubled (nine times): hung steps are learnt from."""
    hangs_in_a_row: int = 3
    """So many in a row are no accident: they are learnt from after all."""
    hang_memory: int = 200
    """Steps without drafts over which their hangs are averaged, so that hangs which have nothing to do with
    drafts are not held against them. Chosen."""
    rate_memory: int = 50
    """Steps over which the recent tokens per second are averaged. Chosen."""
    drafter_rate: float = 0.2
    """Of what is new in a drafter's time. Chosen, as `speed_rate`."""

    # ---- when speculation pauses (`guard`) ----

    guard_memory: int = 200
    """Steps with drafts after which old ones have faded from the guard's mean. Doubled: a loss that begins
    after a long gain is noticed in twice the time."""
    min_judged_steps: int = 16
    """Steps with drafts before a judgement. Chosen: with the spread seen, the standard error is then below a
    tenth of a step. Doubled: a bad start costs 32 steps."""
    min_judged_again: int = 4
    """The same after a pause, if more than `loss_again` was lost. Chosen."""
    loss_again: float = 8.0
    """Baseline steps lost since the pause that end the next try early. Chosen."""
    confidence: float = 2.0
    """Standard errors by which a loss must be certain: one false pause in 40 judgements where speculation
    neither gains nor loses. Doubled: hardly any, and a loss of 2% is never certain."""
    tolerated_loss: float = 0.02
    """Of a baseline step's time: what cannot be told from noise."""
    first_pause: int = 64
    """Steps; the pause doubles with each loss in a row. Chosen: a try of 16 steps in 80 bounds the cost of
    retries at first to a fifth of the loss, then to a tenth, and so on."""
    max_pause: int = 4096
    """Steps. Doubled: traffic that has become repetitive is noticed after 8,192 steps at worst."""

    # ---- when a drafter that reads every step is left out (`standing`) ----

    bare_steps: int = 16
    """Steps without the drafter, at about as many requests, after which it is known what bare steps take.
    Doubled: better known, and the drafter is left out twice as long for it."""
    max_drafter_factor: float = 8.0
    """Of what a drafter takes within steps to what was measured at the start, either way. Chosen."""
    max_drafter_credit: float = 8.0
    """Bare steps that it may have gained before and lose again, beside those that are tolerated. Chosen: at
    a loss of a third of each step it is left out after 36 steps, whatever was before. Doubled: after 60, and
    by chance less often where it gains little."""
    requests_unmeasured: int = 256
    """Requests, over the steps with the drafter, after which it is left out to measure that, if it never was;
    where nobody has to lose it, an eighth of them. Doubled: a wrong estimate of the start is believed twice
    as long."""
    min_read_requests: int = 32
    """Requests, over the steps with the drafter, before a judgement: what its tokens are worth has to be
    learnt first. Chosen. Doubled: a drafter that does not pay costs twice as much with every try."""


THRESHOLDS = Thresholds()
