"""vLLM's V2 kernels compiled for the CPU do what Triton's interpreter does, on every launch of real
engines."""

import json
import os
from pathlib import Path

from engine.runs import run_program
from slipstream.testing import models, v2

PROGRAM = Path(__file__).parent / "v2" / "checked_kernels.py"
K = 3
BARE = {
    "_apply_write_kernel", "_prepare_prefill_inputs_kernel", "_prepare_pos_seq_lens_kernel",
    "_combine_sampled_and_draft_tokens_kernel", "_get_num_sampled_and_rejected_kernel", "_post_update_kernel",
    "_gather_block_tables_kernel", "_compute_slot_mappings_kernel", "_gumbel_sample_kernel",
}  # fmt: skip
SAMPLING = {
    "_temperature_kernel", "_min_p_kernel", "_penalties_kernel", "_bincount_kernel", "_bias_kernel",
    "_topk_log_softmax_kernel", "_ranks_kernel",
}  # fmt: skip
VERIFYING = {
    "_expand_idx_mapping_kernel", "_gather_draft_sampled_kernel", "_compute_local_logits_stats_kernel",
    "_rejection_kernel", "_resample_kernel", "_insert_resampled_kernel",
}  # fmt: skip

DRAFTING = {"_prepare_dflash_inputs_kernel"}

NOT_INTERPRETED = {"_ngram_scan_kernel", "_ngram_finalize_kernel"}
"""By Triton's interpreter: "mask has unsupported dtype". `check_lookup` has what they are to do."""


def test_kernels_do_what_the_interpreter_does() -> None:
    target, noisy = str(models.varied_llama()), str(models.noisy_llama())
    eagle = str(models.eagle_head(models.varied_llama()))
    dflash = str(models.dflash_head(models.varied_llama()))
    dspark = str(models.dspark_head(models.varied_llama()))
    greedy, sampled = {"temperature": 0.0}, {"temperature": 0.8, "seed": 3}
    penalised = {
        **sampled, "repetition_penalty": 1.2, "frequency_penalty": 0.3, "presence_penalty": 0.2,
        "logprobs": 2,
    }  # fmt: skip
    everything = {**penalised, "min_p": 0.1, "logit_bias": {7: 2.0}, "min_tokens": 2, "stop_token_ids": [9]}

    def drafted(**method: object) -> dict[str, object]:
        return {"model": target, "speculative_config": {"num_speculative_tokens": K, **method}}

    found = _run([
        {"options": {"model": target}, "sampling": [greedy, everything]},
        {"options": drafted(method="draft_model", model=noisy), "sampling": [greedy, sampled, penalised]},
        {
            "options": drafted(method="draft_model", model=noisy, draft_sample_method="probabilistic"),
            "sampling": [sampled],
        },
        {"options": drafted(method="eagle", model=eagle), "sampling": [greedy]},
        {"options": drafted(method="dflash", model=dflash), "sampling": [greedy]},
        {"options": drafted(method="dspark", model=dspark), "sampling": [greedy]},
        {
            "options": drafted(method="ngram_gpu", prompt_lookup_min=1, prompt_lookup_max=3),
            "sampling": [greedy],
        },
    ])  # fmt: skip
    assert not found["interpreted"]
    never_checked = {k for k, count in found["compiled"].items() if found["unchecked"].get(k) == count}
    assert never_checked <= NOT_INTERPRETED
    assert set(found["compiled"]) >= BARE | SAMPLING | VERIFYING | DRAFTING | NOT_INTERPRETED


def _run(arms: list[dict[str, object]]) -> dict[str, dict[str, int]]:
    environment = v2.environment(os.environ, checked=True) | {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
    found: dict[str, dict[str, int]] = run_program(PROGRAM, environment, json.dumps(arms))
    return found
