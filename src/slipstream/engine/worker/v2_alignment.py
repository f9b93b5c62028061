"""On the V2 model runner: drafts that the scheduler made a step ahead, put where the text really is.

With asynchronous scheduling the scheduler drafts while a step is under way whose tokens it does not know. Its
draft therefore begins with what that step is expected to write. When the step is over, and before the next
begins, the two are compared on the device: where they agree, the rest of the draft is verified; where they do
not, what vLLM's own speculator drafted. Nothing waits for the device.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from vllm.triton_utils import tl, triton
from vllm.utils.torch_utils import async_tensor_h2d


class AlignedDrafting:
    """Extends the V2 model runner: before a step the scheduler's drafts are aligned."""

    def execute_model(self: Any, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        if drafts := getattr(scheduler_output, "slipstream_drafts", None):
            align(self.req_states, drafts)
        return super().execute_model(scheduler_output, *args, **kwargs)  # type: ignore[misc]


def align(states: Any, drafts: Mapping[str, tuple[int, Sequence[int]]]) -> None:
    """Write the drafts into `states.draft_tokens`: for each request the length of its text when its draft was
    made, and the draft from there on."""
    rows = [states.req_id_to_index[request] for request in drafts]
    longest = max(len(tokens) for _, tokens in drafts.values())
    table = np.zeros((len(drafts), longest + 3), np.int32)
    for number, (row, (length, tokens)) in enumerate(zip(rows, drafts.values(), strict=True)):
        table[number, :3] = row, length, len(tokens)
        table[number, 3 : 3 + len(tokens)] = tokens
    on_device = async_tensor_h2d(table, device=states.device)
    most = states.draft_tokens.shape[1]
    _align_kernel[(len(drafts),)](
        on_device,
        on_device.stride(0),
        states.all_token_ids.gpu,
        states.all_token_ids.gpu.stride(0),
        states.total_len.gpu,
        states.draft_tokens,
        states.draft_tokens.stride(0),
        most,
        BLOCK=triton.next_power_of_2(max(longest, most)),
    )


@triton.jit
def _align_kernel(
    drafts_ptr,  # [drafts, 3 + tokens]: row of the request, length of its text then, tokens, and the tokens
    drafts_stride,
    all_token_ids_ptr,
    all_token_ids_stride,
    total_len_ptr,
    draft_tokens_ptr,
    draft_tokens_stride,
    num_draft_tokens,
    BLOCK: tl.constexpr,
):
    draft_ptr = drafts_ptr + tl.program_id(0) * drafts_stride
    row = tl.load(draft_ptr).to(tl.int64)
    length = tl.load(draft_ptr + 1)
    tokens = tl.load(draft_ptr + 2)
    written = tl.load(total_len_ptr + row) - length
    block = tl.arange(0, BLOCK)
    expected = tl.load(draft_ptr + 3 + block, mask=block < tokens, other=-1)
    text = tl.load(
        all_token_ids_ptr + row * all_token_ids_stride + length + block, mask=block < written, other=0
    )
    wrong = tl.sum(((block < written) & (text != expected)).to(tl.int32))
    aligned = (wrong == 0) & (written >= 0) & (written <= BLOCK)
    rest = tl.load(draft_ptr + 3 + written + block, mask=aligned & (written + block < tokens), other=0)
    tl.store(
        draft_tokens_ptr + row * draft_tokens_stride + block,
        rest.to(tl.int64),
        mask=aligned & (block < num_draft_tokens),
    )


def stop_proposing(speculator: Any) -> None:
    """Let a speculator of vLLM's, which is there to reserve room for drafts, draft nothing."""

    def propose(input_batch: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        return drafts[: input_batch.num_reqs]

    drafts = torch.zeros(
        speculator.max_num_reqs, speculator.num_speculative_steps, dtype=torch.int64, device=speculator.device
    )
    speculator.propose = propose
