"""On the V2 model runner: drafts that the scheduler made a step ahead, put where the text really is.

With asynchronous scheduling the scheduler drafts while a step is under way whose tokens it does not know. Its
draft therefore begins with what that step is expected to write. When the step is over, and before the next
begins, the two are compared on the device: where they agree, the rest of the draft is verified; where they do
not, what vLLM's own speculator drafted. Where it drafted nothing, the rest of the draft is verified all the
same: a text that copies another often goes on as it does after a token that differs. Nothing waits for the
device.
"""

from collections.abc import Container, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from vllm.triton_utils import tl, triton
from vllm.utils.torch_utils import async_tensor_h2d

HEADER = 4  # numbers before a draft's tokens, as in the kernels
VOCAB_BLOCK = 1024


class PackedDrafts(NamedTuple):
    """Drafts as the scheduler sends them to the workers: packed there, where nothing waits for it."""

    request_ids: Sequence[str]
    table: NDArray[np.int32]
    """[drafts, HEADER + tokens]: room for the request's row, the length of its text when the draft was made,
    the number of its tokens, whether nothing else is verified in their place, and the tokens."""


def longest_draft(num_spec_tokens: int) -> int:
    """Return the tokens of the longest draft: those of the step under way, and those to verify after them."""
    return 2 * num_spec_tokens + 1


def pack(
    drafts: Mapping[str, tuple[int, Sequence[int]]], longest: int, alone: Container[str] = ()
) -> PackedDrafts:
    """Pack for each request the length of its text and its draft, of at most `longest` tokens: always the
    same, so that one kernel is compiled. For those `alone` the speculator has read too little to draft."""
    table = np.zeros((len(drafts), HEADER + longest), np.int32)
    for row, (request_id, (length, tokens)) in zip(table, drafts.items(), strict=True):
        row[1:HEADER] = length, len(tokens), request_id in alone
        row[HEADER : HEADER + len(tokens)] = tokens
    return PackedDrafts(list(drafts), table)


class AlignedDrafting:
    """Extends the V2 model runner: before a step the scheduler's drafts are aligned, and before the drafter
    runs it is told whose drafts are to be argmax, or that it does not run."""

    def execute_model(self: Any, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        drafts: PackedDrafts | None = getattr(scheduler_output, "slipstream_drafts", None)
        if drafts is not None and drafts.request_ids:
            align(self.req_states, drafts, self.speculator.draft_logits)
        self.speculator.is_left_out = getattr(scheduler_output, "slipstream_leaves_drafter_out", False)
        output = super().execute_model(scheduler_output, *args, **kwargs)  # type: ignore[misc]
        argmax: Sequence[str] | None = getattr(scheduler_output, "slipstream_argmax", None)
        if argmax is not None:
            rows = self.req_states.req_id_to_index  # in which new requests are by now
            self.speculator.choose_argmax([rows[request_id] for request_id in argmax])
        return output


def align(states: Any, drafts: PackedDrafts, draft_logits: torch.Tensor | None = None) -> None:
    """Write the drafts into `states.draft_tokens`; and where the speculator samples its drafts, into its
    `draft_logits` that tokens which it has not drawn were certain."""
    drafts.table[:, 0] = [states.req_id_to_index[request_id] for request_id in drafts.request_ids]
    _align_rows(states, drafts.table, draft_logits)


def compile_kernels(states: Any, longest: int, draft_logits: torch.Tensor | None) -> None:
    """Compile the kernels, for drafts of at most `longest` tokens, while no request is running."""
    no_draft = np.zeros((1, HEADER + longest), np.int32)
    no_draft[0, 1] = 1  # the text of row 0 is shorter than this, so that the draft is of no use
    _align_rows(states, no_draft, draft_logits)


def _align_rows(states: Any, table: NDArray[np.int32], draft_logits: torch.Tensor | None) -> None:
    count, longest = table.shape[0], table.shape[1] - HEADER
    on_device = async_tensor_h2d(table, device=states.device)
    most = states.draft_tokens.shape[1]
    certain = torch.empty(count, most, dtype=torch.int32, device=states.device)
    _align_kernel[(count,)](
        on_device,
        on_device.stride(0),
        certain,
        states.all_token_ids.gpu,
        states.all_token_ids.gpu.stride(0),
        states.total_len.gpu,
        states.draft_tokens,
        states.draft_tokens.stride(0),
        most,
        BLOCK=triton.next_power_of_2(max(longest, most)),
    )
    if draft_logits is not None:
        vocab_size = draft_logits.shape[-1]
        _certain_kernel[(count, most, triton.cdiv(vocab_size, VOCAB_BLOCK))](
            on_device,
            on_device.stride(0),
            certain,
            states.draft_tokens,
            states.draft_tokens.stride(0),
            draft_logits,
            draft_logits.stride(0),
            draft_logits.stride(1),
            vocab_size,
            BLOCK=VOCAB_BLOCK,
        )


@triton.jit
def _align_kernel(  # type: ignore[no-untyped-def]
    drafts_ptr,  # PackedDrafts.table
    drafts_stride,
    certain_ptr,  # [drafts, draft tokens]: 1 where the speculator has not drawn the token
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
    alone = tl.load(draft_ptr + 3) > 0
    written = tl.load(total_len_ptr + row) - length
    block = tl.arange(0, BLOCK)
    expected = tl.load(draft_ptr + 4 + block, mask=block < tokens, other=-1)
    text = tl.load(
        all_token_ids_ptr + row * all_token_ids_stride + length + block, mask=block < written, other=0
    )
    wrong = tl.sum(((block < written) & (text != expected)).to(tl.int32))
    is_known = (written >= 0) & (written <= BLOCK)
    aligned = (wrong == 0) & is_known
    rest = tl.load(draft_ptr + 4 + written + block, mask=is_known & (written + block < tokens), other=0)
    # The speculator may have drafted fewer tokens than are verified: it leaves -1, which is no token.
    place_ptr = draft_tokens_ptr + row * draft_tokens_stride + block
    theirs = tl.load(place_ptr, mask=block < num_draft_tokens, other=0)
    certain = aligned | alone | (theirs < 0)
    tl.store(place_ptr, tl.where(certain, rest.to(tl.int64), theirs), mask=block < num_draft_tokens)
    places_ptr = certain_ptr + tl.program_id(0) * num_draft_tokens + block
    tl.store(places_ptr, certain.to(tl.int32), mask=block < num_draft_tokens)


@triton.jit
def _certain_kernel(  # type: ignore[no-untyped-def]
    drafts_ptr,
    drafts_stride,
    certain_ptr,
    draft_tokens_ptr,
    draft_tokens_stride,
    draft_logits_ptr,  # [requests, draft tokens, vocabulary]
    draft_logits_stride_0,
    draft_logits_stride_1,
    vocab_size,
    BLOCK: tl.constexpr,
):
    row = tl.load(drafts_ptr + tl.program_id(0) * drafts_stride).to(tl.int64)
    place = tl.program_id(1)
    certain = tl.load(certain_ptr + tl.program_id(0) * tl.num_programs(1) + place) > 0
    token = tl.load(draft_tokens_ptr + row * draft_tokens_stride + place)
    block = tl.program_id(2) * BLOCK + tl.arange(0, BLOCK)
    logits = tl.where(block == token, 0.0, float("-inf"))
    tl.store(
        draft_logits_ptr + row * draft_logits_stride_0 + place * draft_logits_stride_1 + block,
        logits,
        mask=certain & (block < vocab_size),
    )


def propose_if_asked(speculator: Any, ever: bool) -> None:
    """Let vLLM's lookup, which is also there to reserve room for drafts, run where its drafts are asked for,
    or never; and say where it found nothing."""

    def propose_some(
        input_batch: Any, *args: Any, num_speculative_tokens: int = 0, **kwargs: Any
    ) -> torch.Tensor:
        if not ever or not num_speculative_tokens:
            drafts: torch.Tensor = speculator.drafts[: input_batch.num_reqs]
            return drafts
        found = propose(input_batch, *args, num_speculative_tokens=num_speculative_tokens, **kwargs)
        # Where nothing matches, it repeats the last token.
        last = speculator.req_states.last_sampled_tokens.view(-1)[input_batch.idx_mapping]
        return torch.where((found == last[:, None]).all(1, keepdim=True), -1, found)

    propose = speculator.propose
    speculator.propose = propose_some
