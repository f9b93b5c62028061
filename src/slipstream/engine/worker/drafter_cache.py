"""Which parts of a draft model's KV cache are filled, and filling the rest when the drafter is needed.

Target and draft model share block tables: where the target has written keys and values for a token, there
is room for the drafter's. A step in which the drafter does not run leaves that room with whatever was
there. So for every block is kept how many of its first slots hold the drafter's keys for the tokens that
the target has there; before the drafter runs for a request, it is run over what is missing. Kept by block,
this holds for shared prefixes, preempted requests and blocks that change hands. All of it follows from what
the scheduler sent, so all ranks come to the same.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from vllm.forward_context import set_forward_context

Span = tuple[int, int, int]  # row of the batch, first position, end


class DrafterCache:
    def __init__(self, runner: Any) -> None:
        self._runner = runner
        group = max(runner.drafter.kv_cache_gid, 0)
        self._table = runner.input_batch.block_table[group]
        self._size = self._table.block_size  # tokens in a block
        # vLLM may cut the blocks it allocates into smaller ones for its kernels.
        allocated = runner.kv_cache_config.kv_cache_groups[group].kv_cache_spec.block_size
        num_blocks = runner.kv_cache_config.num_blocks * max(allocated // self._size, 1)
        self._filled = np.zeros(num_blocks, np.int64)

    def target_wrote(self, scheduler_output: Any) -> None:
        """The target has computed this step's tokens; the drafter has not."""
        blocks = self._table.block_table.np
        for row, start, end in self._spans(scheduler_output):
            first = start // self._size
            block = blocks[row, first]
            self._filled[block] = min(self._filled[block], start % self._size)
            self._filled[blocks[row, first + 1 : (end - 1) // self._size + 1]] = 0

    def drafter_ran(self, scheduler_output: Any) -> None:
        """The drafter has run over this step's tokens, and over the newest one of each request."""
        batch = self._runner.input_batch
        for row, start, end in self._spans(scheduler_output):
            if not self._runner.discard_request_mask.np[row]:  # not a part of a prompt
                end = int(batch.num_tokens_no_spec[row])
            if self._filled_to(row, start) == start:
                self._mark(row, start, end)

    def catch_up(self, kept: Any, rows: list[int]) -> set[int]:
        """Run the drafter over what it has missed of these requests, up to this step, in one pass of no more
        tokens than a step of vLLM may have; where least is missing first. Return the rows that miss nothing
        now; the others go on in the next call."""
        starts = {row: start for row, start, _ in self._spans(kept.scheduler_output)}
        missed = [(row, self._filled_to(row, starts[row]), starts[row]) for row in rows]
        missed = sorted((m for m in missed if m[1] < m[2]), key=lambda m: m[2] - m[1])
        portion = _first_tokens(missed, self._runner.drafter.max_num_tokens)
        if portion:
            self._run(kept.common_attn_metadata, portion)
        for row, start, end in portion:
            self._mark(row, start, end)
        return set(rows) - {span[0] for span in missed if span not in portion}

    def _spans(self, scheduler_output: Any) -> list[Span]:
        """Return what the target computed of each row in this step."""
        batch = self._runner.input_batch
        starts = batch.num_computed_tokens_cpu[: batch.num_reqs].tolist()
        scheduled = scheduler_output.num_scheduled_tokens
        return [
            (row, start, start + scheduled[request_id])
            for row, (request_id, start) in enumerate(zip(batch.req_ids, starts, strict=True))
        ]

    def _mark(self, row: int, start: int, end: int) -> None:
        for index in range(start // self._size, (end - 1) // self._size + 1):
            block = self._table.block_table.np[row, index]
            self._filled[block] = min(end - index * self._size, self._size)

    def _filled_to(self, row: int, position: int) -> int:
        """Return the first position before `position` that the drafter has no keys for, or `position`."""
        count = -(-position // self._size)
        filled = self._filled[self._table.block_table.np[row, :count]]
        needed = np.full(count, self._size)
        needed[-1:] = position - (count - 1) * self._size
        short = np.flatnonzero(filled < needed)
        return position if not len(short) else int(short[0] * self._size + filled[short[0]])

    def _run(self, common: Any, spans: list[Span]) -> None:
        """One pass of the drafter over these, for its keys and values alone."""
        drafter = self._runner.drafter
        rows = np.concatenate([np.full(end - start, row) for row, start, end in spans])
        positions = np.concatenate([np.arange(start, end) for _, start, end in spans])
        blocks = self._table.block_table.np[rows, positions // self._size].astype(np.int64)
        count = len(positions)

        def on_device(values: Any, dtype: torch.dtype) -> torch.Tensor:
            return torch.as_tensor(values, dtype=dtype, device=drafter.device)

        tokens = on_device(self._runner.input_batch.token_ids_cpu[rows, positions], torch.int32)
        if drafter.use_heterogeneous_vocab:
            tokens = drafter.vocab_mapping.map_target_to_draft_ids(tokens)
        drafter.input_ids[:count] = tokens
        drafter.positions[:count] = on_device(positions, torch.int64)
        lengths = [end - start for _, start, end in spans]
        starts = torch.tensor(np.cumsum([0, *lengths]), dtype=torch.int32)
        seq_lens = torch.tensor([end for _, _, end in spans], dtype=torch.int32)
        metadata = replace(
            common,
            query_start_loc=starts.to(drafter.device),
            query_start_loc_cpu=starts,
            seq_lens=seq_lens.to(drafter.device),
            seq_lens_cpu_upper_bound=seq_lens,
            num_reqs=len(spans),
            num_actual_tokens=count,
            max_query_len=max(lengths),
            max_seq_len=int(seq_lens.max()),
            block_table_tensor=common.block_table_tensor[
                on_device([row for row, _, _ in spans], torch.int64)
            ],
            slot_mapping=on_device(blocks * self._size + positions % self._size, torch.int64),
            positions=None,
            is_prefilling=None,
            _num_computed_tokens_cache=None,
            _token_to_req_indices_cache=None,
        )
        _, per_layer = drafter.build_per_group_and_layer_attn_metadata(metadata)
        slots = drafter._get_slot_mapping(count, metadata.slot_mapping)
        with set_forward_context(per_layer, drafter.vllm_config, num_tokens=count, slot_mapping=slots):
            drafter.model(
                input_ids=drafter.input_ids[:count], positions=drafter.positions[:count], inputs_embeds=None
            )


def _first_tokens(spans: list[Span], most: int) -> list[Span]:
    """Return the first spans, of at most `most` tokens together; the last may be cut."""
    first = []
    for row, start, end in spans:
        if most <= 0:
            break
        stop = min(end, start + most)
        first.append((row, start, stop))
        most -= stop - start
    return first
