"""What speculation gives, from three numbers (Leviathan et al., arXiv 2211.17192).

alpha  the chance that a draft token is accepted, given that those before it were
K      draft tokens per step
c      cost of one draft pass / cost of one target pass

Two slips are widespread: the speedup has no `c` in its numerator, and accepting `when p >= q` is not
the accepted-with-probability-p/q that alpha stands for.
"""


def expected_tokens(alpha: float, num_draft_tokens: int) -> float:
    """Tokens per target pass, the recovered or bonus token included: (1 - alpha^(K+1)) / (1 - alpha)."""
    if not 0.0 <= alpha <= 1.0:
        raise ValueError(f"alpha={alpha}: a probability is between 0 and 1")
    if alpha == 1.0:
        return num_draft_tokens + 1.0
    return (1.0 - alpha ** (num_draft_tokens + 1)) / (1.0 - alpha)


def speedup(alpha: float, num_draft_tokens: int, cost: float) -> float:
    """Against no speculation while a target pass costs the same for 1 and K+1 tokens (memory-bound)."""
    return expected_tokens(alpha, num_draft_tokens) / (cost * num_draft_tokens + 1.0)


def best_num_draft_tokens(alpha: float, cost: float, most: int = 16) -> int:
    """The K in 0..most with the highest speedup; 0 where drafting only costs."""
    return max(range(most + 1), key=lambda k: speedup(alpha, k, cost))
