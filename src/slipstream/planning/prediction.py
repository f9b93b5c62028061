"""What speculation gives, before trying it (Leviathan et al., arXiv 2211.17192; docs/prediction.md).

alpha  the chance that a draft token is accepted, given that those before it were
K      draft tokens per step
c      cost of one draft pass / cost of one target pass
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Self

from slipstream.planning.cost import CostCurve


def expected_tokens(alpha: float, num_draft_tokens: int) -> float:
    """Return tokens per target pass, the recovered or bonus token included: (1 - alpha^(K+1)) / (1 -
    alpha)."""
    if not 0.0 <= alpha <= 1.0:
        raise ValueError(f"alpha={alpha}: a probability is between 0 and 1")
    if alpha == 1.0:
        return num_draft_tokens + 1.0
    return (1.0 - alpha ** (num_draft_tokens + 1)) / (1.0 - alpha)


def speedup(alpha: float, num_draft_tokens: int, cost: float) -> float:
    """Return the speedup over no speculation while a target pass costs the same for 1 and K+1 tokens
    (memory-bound)."""
    return expected_tokens(alpha, num_draft_tokens) / (cost * num_draft_tokens + 1.0)


def best_num_draft_tokens(alpha: float, cost: float, most: int = 16) -> int:
    """Return the K in 0..most with the highest speedup; 0 where drafting only costs."""
    return max(range(most + 1), key=lambda k: speedup(alpha, k, cost))


@dataclass(frozen=True)
class Acceptance:
    """What becomes of draft tokens, per target pass of a request."""

    offered: tuple[float, ...]
    """Share of passes in which draft token j is verified. A model always drafts; an n-gram index does not."""
    survival: tuple[float, ...]
    """Share of passes in which tokens 1..j are all accepted."""

    @classmethod
    def constant(cls, alpha: float, num_draft_tokens: int) -> Self:
        positions = range(1, num_draft_tokens + 1)
        return cls((1.0,) * num_draft_tokens, tuple(alpha**j for j in positions))

    @classmethod
    def from_dict(cls, content: Mapping[str, Sequence[float]]) -> Self:
        """Make it from `offered` and `survival`, as bench and tune write them."""
        return cls(tuple(content["offered"]), tuple(content["survival"]))

    @property
    def tokens(self) -> float:
        """Return the tokens per pass, the recovered or bonus token included."""
        return 1.0 + sum(self.survival)

    @property
    def drafts(self) -> float:
        """Draft tokens verified per pass."""
        return sum(self.offered)

    def limited_to(self, num_draft_tokens: int) -> "Acceptance":
        """Return what the same proposer gives with a smaller K, from what it gave with a larger one.

        A run of `a` accepted tokens and one more came in one pass. With K < a it takes several: K + 1 tokens,
        then the rest, drafted again from where it stands. A draft that was accepted to its end would have
        gone on, so of it every pass is full. Passes without drafts stay as they are.
        """
        k = num_draft_tokens
        if k >= len(self.offered):
            return self
        if k == 0:
            return Acceptance((), ())
        full = self.survival[-1] * (len(self.survival) + 1) / (k + 1)
        drafting, kept = full, [full] * k
        for run, (here, further) in enumerate(pairwise((self.offered[0], *self.survival))):
            left = run
            while left >= 0:
                drafting += here - further
                for j in range(min(left, k)):
                    kept[j] += here - further
                left -= k + 1
        passes = 1.0 - self.offered[0] + drafting
        length = [offered / self.offered[0] if self.offered[0] else 0.0 for offered in self.offered[:k]]
        return Acceptance(
            tuple(drafting * share / passes for share in length), tuple(share / passes for share in kept)
        )


@dataclass(frozen=True)
class Situation:
    """How the engine is used: `requests` at once, each with its prompt and its answer."""

    requests: float
    prompt_tokens: float = 0.0
    output_tokens: float = 0.0
    """0: an answer so long that the prompts do not count."""


def tokens_per_second(
    curve: CostCurve, acceptance: Acceptance | None, situation: Situation, drafting: float = 0.0
) -> float:
    """Return the throughput of the whole engine; without `acceptance`, of one that does not speculate.
    `drafting` is the seconds that it takes per step."""
    if acceptance is None:
        acceptance, step = Acceptance((), ()), curve.bare_step(situation.requests)
    else:
        step = curve.step(situation.requests, acceptance.drafts) + drafting
    per_token = step / acceptance.tokens / situation.requests
    if not situation.output_tokens:
        return 1.0 / per_token
    # One token of an answer comes with its prefill; the prompts of all requests are one step together.
    prefill = curve.prefill(situation.prompt_tokens * situation.requests) / situation.requests
    seconds = (situation.output_tokens - 1) * per_token + prefill
    return situation.output_tokens / seconds


def predicted_speedup(
    curve: CostCurve, acceptance: Acceptance, situation: Situation, drafting: float = 0.0
) -> float:
    """Return the speedup over no speculation, from measured cost: no assumption that verification is free."""
    bare = tokens_per_second(curve, None, situation)
    return tokens_per_second(curve, acceptance, situation, drafting) / bare


def break_even_alpha(
    curve: CostCurve, num_draft_tokens: int, situation: Situation, cost: float
) -> float | None:
    """Return the acceptance rate at which speculation neither gains nor loses; None if even 1 does not do."""
    drafting = cost * num_draft_tokens * curve.step(situation.requests, 0)

    def gain(alpha: float) -> float:
        return predicted_speedup(curve, Acceptance.constant(alpha, num_draft_tokens), situation, drafting)

    if gain(1.0) < 1.0:
        return None
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (low, middle) if gain(middle) >= 1.0 else (middle, high)
    return high


def break_even_load(curve: CostCurve, acceptance: Acceptance, cost: float, most: int) -> int | None:
    """Return the fewest requests at once at which speculation loses; None if it does not up to `most`."""
    for requests in range(1, most + 1):
        drafting = cost * len(acceptance.offered) * curve.step(requests, 0)
        if predicted_speedup(curve, acceptance, Situation(requests), drafting) < 1.0:
            return requests
    return None


def price_per_million_tokens(per_hour: float, tokens_per_second: float) -> float:
    return per_hour / 3600 / tokens_per_second * 1e6


def flat_curve(most_drafts: int) -> CostCurve:
    """Memory-bound: a step costs the same however many tokens it verifies."""
    return CostCurve((1,), (0, max(most_drafts, 1)), ((1.0, 1.0),))
