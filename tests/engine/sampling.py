"""Sampling from vLLM's rejection sampler as our worker has it, in a process of its own.

vLLM's kernel registry searches every loaded module and stumbles over some that a test session loads.
"""

from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

REQUESTS = 40_000
UNDRAFTED = 7
VOCAB = 6
# [2 drafts, vocab]: the target's logits at each draft position
LOGITS = torch.tensor([[1.0, 0.5, 0.2, -0.3, -1.0, 0.8], [0.1, 1.2, -0.5, 0.9, 0.4, -0.2]])
DRAFTS = (0, 3)
BONUS = 5


def prepare() -> None:
    """What a worker does before its first step."""
    from vllm.platforms import current_platform

    from slipstream.engine.patches import fix_expand_batch_to_tokens, recover_only_where_drafts_are

    current_platform.import_kernels()
    current_platform.register_triton_kernel_overrides()
    fix_expand_batch_to_tokens()
    recover_only_where_drafts_are()


def sample(temperature: float, top_k: int | None, top_p: float | None) -> np.ndarray[Any, Any]:
    """[requests, 3] output tokens, -1 after the first rejection. The first requests have no drafts."""
    from vllm.v1.sample.rejection_sampler import apply_sampling_constraints, rejection_sample

    torch.manual_seed(0)

    def every(value: float | None, dtype: torch.dtype) -> torch.Tensor | None:
        return None if value is None else torch.full((UNDRAFTED + REQUESTS,), value, dtype=dtype)

    metadata: Any = SimpleNamespace(  # the part of SamplingMetadata that is read
        all_greedy=False,
        all_random=True,
        generators={},
        temperature=every(temperature, torch.float32),
        top_k=every(top_k, torch.int32),
        top_p=every(top_p, torch.float32),
    )
    counts = [0] * UNDRAFTED + [2] * REQUESTS
    cumulative = torch.tensor(counts).cumsum(0).to(torch.int32)
    logits = apply_sampling_constraints(LOGITS.repeat(REQUESTS, 1), cumulative, metadata)
    return rejection_sample(
        draft_token_ids=torch.tensor(DRAFTS, dtype=torch.int32).repeat(REQUESTS),
        num_draft_tokens=counts,
        max_spec_len=2,
        cu_num_draft_tokens=cumulative,
        draft_probs=None,
        target_logits=logits,
        bonus_token_ids=torch.full((len(counts), 1), BONUS, dtype=torch.int32),
        sampling_metadata=metadata,
    ).numpy()


def verify_both_ways(seed: int) -> tuple[list[list[int]], list[list[int]]]:
    """(by us, by vLLM's rejection sampler): random logits and ragged drafts, about half of them right."""
    from vllm.v1.sample.rejection_sampler import rejection_sample

    from slipstream.engine.worker.runner import verify_greedily

    random = np.random.default_rng(seed)
    counts = random.integers(0, 5, 40).tolist()
    logits = torch.from_numpy(random.integers(0, 4, (sum(counts) + 40, VOCAB))).to(torch.bfloat16)  # ties
    best = logits.float().argmax(-1)
    firsts = np.cumsum([0, *(count + 1 for count in counts[:-1])])
    targets = [first + j for first, count in zip(firsts, counts, strict=True) for j in range(count)]
    bonuses = [first + count for first, count in zip(firsts, counts, strict=True)]
    drafts = torch.where(torch.rand(len(targets)) < 0.5, best[targets], 0).to(torch.int32)
    metadata: Any = SimpleNamespace(draft_token_ids=drafts, num_draft_tokens=counts, max_spec_len=max(counts))
    theirs = rejection_sample(
        draft_token_ids=drafts,
        num_draft_tokens=counts,
        max_spec_len=max(counts),
        cu_num_draft_tokens=torch.tensor(counts).cumsum(0).to(torch.int32),
        draft_probs=None,
        target_logits=logits[targets].float(),
        bonus_token_ids=best[bonuses].to(torch.int32).unsqueeze(1),
        sampling_metadata=SimpleNamespace(all_greedy=True, all_random=False, temperature=None),
    )
    return verify_greedily(logits, metadata).sampled_token_ids.tolist(), theirs.tolist()


def plainly_greedy(**different: Any) -> bool:
    """What `is_plainly_greedy` says of a batch that is, but for what is different."""
    from vllm.v1.sample.logits_processor import LogitBiasLogitsProcessor, MinTokensLogitsProcessor

    from slipstream.engine.worker.runner import is_plainly_greedy

    device = torch.device("cpu")
    config: Any = SimpleNamespace(scheduler_config=SimpleNamespace(max_num_seqs=4))
    bias, least = (
        LogitBiasLogitsProcessor(config, device, False),
        MinTokensLogitsProcessor(config, device, False),
    )
    processors: list[Any] = [bias, least]
    if different.pop("logit_bias", False):
        bias.biases[0] = {1: 2.0}
    if different.pop("min_tokens", False):
        least.min_toks[0] = (4, [], set(), False)
    if different.pop("custom_processor", False):
        processors.append(object())
    plain: dict[str, Any] = {
        "all_greedy": True,
        "max_num_logprobs": None,
        "logprob_token_ids": None,
        "no_penalties": True,
        "allowed_token_ids_mask": None,
        "bad_words_token_ids": {},
        "thinking_budget_state_holder": None,
        "logitsprocs": SimpleNamespace(non_argmax_invariant=processors),
    }
    return is_plainly_greedy(SimpleNamespace(**(plain | different)))
