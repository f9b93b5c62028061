"""Runs features of vLLM's V2 model runner and prints as JSON which kernels were compiled and which were not.

Run with `slipstream.testing.v2.environment(checked=True)`: every launch is held against Triton's interpreter.
"""

import gc
import json
import sys
from typing import Any

import torch
from vllm import LLM, SamplingParams
from vllm.v1.worker.gpu.block_table import BlockTables
from vllm.v1.worker.gpu.spec_decode.ngram import speculator as ngram

from slipstream.testing.triton_cpu import launch

PROMPTS = [[5, 17, 9, 5, 17, 9, 5], [200, 3, 77, 41, 8], [100, 101]]


def run(options: dict[str, Any], sampling: list[dict[str, Any]]) -> None:
    llm = LLM(
        dtype="float32",
        enforce_eager=True,
        skip_tokenizer_init=True,
        max_model_len=64,
        max_num_seqs=4,
        max_num_batched_tokens=64,
        kv_cache_memory_bytes=16 * 1024**2,
        **options,
    )
    prompts = [{"prompt_token_ids": prompt} for prompt in PROMPTS]
    for parameters in sampling:
        biases = {int(token): bias for token, bias in parameters.pop("logit_bias", {}).items()}
        limits = {"max_tokens": 5, "ignore_eos": True, "detokenize": False}
        llm.generate(prompts, SamplingParams(**limits, **parameters, logit_bias=biases), use_tqdm=False)
    del llm
    gc.collect()


def check_tables() -> None:
    """Hold kernels that write through tables of pointers, which copies of the arguments do not hold, against
    what they are to write."""
    tables = BlockTables([16, 32], 4, 64, [4, 8], torch.device("cpu"))
    rows = {2: ([7, 8, 9], [1, 2]), 0: ([3], [4, 5, 6, 10]), 3: ([11, 12], [13])}
    for request, blocks in rows.items():
        tables.append_block_ids(request, blocks, overwrite=True)
    tables.apply_staged_writes()
    order = torch.tensor([3, 0, 2], dtype=torch.int32)
    gathered = tables.gather_block_tables(order, num_reqs_padded=4)
    for group, table in enumerate(gathered):
        for row, request in enumerate(order.tolist()):
            wanted = rows[request][group]
            assert table[row, : len(wanted)].tolist() == wanted
        assert not table[3].any()
    starts, positions = torch.tensor([0, 1, 3, 5], dtype=torch.int32), torch.tensor([17, 5, 6, 33, 34])
    slots = tables.compute_slot_mappings(order, starts, positions, num_tokens_padded=6)
    assert slots[0].tolist() == [12 * 16 + 1, 3 * 16 + 5, 3 * 16 + 6, 9 * 16 + 1, 9 * 16 + 2, -1]
    assert slots[1].tolist() == [13 * 32 + 17, 4 * 32 + 5, 4 * 32 + 6, 2 * 32 + 1, 2 * 32 + 2, -1]


def check_lookup() -> None:
    """Hold the lookup kernels, which Triton's interpreter cannot run, against the same in plain Python."""
    random = torch.Generator().manual_seed(0)
    texts = torch.randint(0, 4, (6, 64), generator=random, dtype=torch.int32)
    lengths = torch.tensor([64, 40, 7, 3, 1, 50], dtype=torch.int32)
    rows, sampled = torch.arange(6), torch.tensor([1, 1, 1, 1, 1, 0], dtype=torch.int32)
    last = torch.tensor([[9]] * 6)
    scratch, drafts = torch.zeros(6, 4, dtype=torch.int64), torch.zeros(6, 5, dtype=torch.int64)
    ngram._ngram_scan_kernel[(6, 4)](
        texts, 64, rows, lengths, sampled, scratch, 4, 64, MIN_N=2, MAX_N=4, MAX_N_PO2=4, BLOCK_L=16
    )
    ngram._ngram_finalize_kernel[(6,)](
        texts, 64, rows, lengths, sampled, last, scratch, 4, drafts, 64, 4, K=5, K_PO2=8, N_BLOCKS_PO2=4
    )
    for row in range(6):
        text = texts[row, : lengths[row]].tolist() if sampled[row] else []
        found: list[int] = []
        for n in (4, 3, 2):
            places = [at for at in range(len(text) - n) if text[at : at + n] == text[len(text) - n :]]
            if places and not found:
                found = text[places[-1] + n :][:5]
        assert drafts[row].tolist() == (found + [9] * 5)[:5]


if __name__ == "__main__":
    for arm in json.loads(sys.argv[1]):
        run(arm["options"], arm["sampling"])
    check_lookup()
    check_tables()  # now that vLLM's buffers are the CPU's
    found = {
        "compiled": launch.compiled, "interpreted": launch.interpreted, "unchecked": launch.unchecked
    }  # fmt: skip
    sys.stdout.write("\nRESULT " + json.dumps(found) + "\n")
