"""Which of the draft tokens are kept, and what is written after them, so that the text follows the target.

A drafter has proposed tokens x_1 .. x_K, each drawn by its own law q_i. The target's laws p_1 .. p_K+1, one
for each of these positions and one more, come from a single pass. Every rule returns the tokens that are
written: those kept and one more, the recovered token after a rejection or the bonus token if all were kept.
"""

from collections.abc import Callable, Sequence

import numpy as np

from slipstream.testing.reference.randomness import Chance, Distribution

Tokens = tuple[int, ...]
Rule = Callable[[Tokens, Sequence[Distribution], Sequence[Distribution], Chance], Tokens]
Model = Callable[[Tokens], Distribution]
"""The law of the next token after these."""


def generate(target: Model, drafter: Model, rule: Rule, length: int, k: int, chance: Chance) -> Tokens:
    """Run speculative decoding, all of it: draft k tokens, judge them by the target, write, and so on."""
    text: Tokens = ()
    while len(text) < length:
        draft: Tokens = ()
        q = []
        for _ in range(k):
            q.append(drafter(text + draft))
            draft += (chance.pick(q[-1]),)
        p = [target(text + draft[:kept]) for kept in range(k + 1)]
        text += rule(draft, p, q, chance)
    return text[:length]


def tokenwise(draft: Tokens, p: Sequence[Distribution], q: Sequence[Distribution], chance: Chance) -> Tokens:
    """Keep x with probability min(1, p(x) / q(x)); at the first that is not kept, draw what the target has
    more of than the drafter (Leviathan et al. 2211.17192, Chen et al. 2302.01318)."""
    for at, token in enumerate(draft):
        if not chance.happens(min(1.0, p[at][token] / q[at][token])):
            return (*draft[:at], chance.pick(remainder(p[at], q[at])))
    return (*draft, chance.pick(p[-1]))


def greedy(draft: Tokens, p: Sequence[Distribution], q: Sequence[Distribution], chance: Chance) -> Tokens:
    """Keep what the target would have written itself: its likeliest token, the first of equals."""
    best = [int(np.argmax(law)) for law in p]
    kept = next((at for at, token in enumerate(draft) if token != best[at]), len(draft))
    return (*draft[:kept], best[kept])


def block(draft: Tokens, p: Sequence[Distribution], q: Sequence[Distribution], chance: Chance) -> Tokens:
    """Judge the draft as a whole: a prefix may be kept because of what follows it. Never keeps fewer tokens
    on average than `tokenwise` (Sun et al. 2403.10444)."""
    weight, weights = 1.0, [1.0]
    kept = 0
    for at, token in enumerate(draft, start=1):
        weight = min(1.0, weight * p[at - 1][token] / q[at - 1][token])
        weights.append(weight)
        if at < len(draft):
            excess = float(np.maximum(weight * np.asarray(p[at]) - np.asarray(q[at]), 0).sum())
            probability = excess / (excess + 1 - weight) if excess else 0.0
        else:
            probability = weight
        if chance.happens(probability):
            kept = at
    if kept == len(draft):
        return (*draft, chance.pick(p[-1]))
    return (*draft[:kept], chance.pick(remainder(weights[kept] * np.asarray(p[kept]), q[kept])))


def any_of(candidates: Sequence[int], p: Distribution, q: Sequence[Distribution], chance: Chance) -> int:
    """Return one token out of several candidates for the same position, each drawn by its own q, tried in
    turn (SpecInfer 2305.09781)."""
    for token, law in zip(candidates, q, strict=True):
        if chance.happens(min(1.0, p[token] / law[token])):
            return token
        p = remainder(p, law)
    return chance.pick(p)


def remainder(p: Distribution | np.ndarray, q: Distribution) -> Distribution:
    """Return norm(max(p - q, 0)): what is left to draw from when a token of q was not kept."""
    more = np.maximum(np.asarray(p) - np.asarray(q), 0)
    law: list[float] = (more / more.sum()).tolist()
    return law


def one_hot(token: int, size: int) -> Distribution:
    """Return the law of a proposer that is sure, as n-gram lookup is: `tokenwise` then keeps x with
    probability p(x), and else draws from p without x."""
    return tuple(float(other == token) for other in range(size))
