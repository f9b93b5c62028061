"""Drafts that are put where the text is, by the kernels themselves, compiled for the CPU."""

import os
import subprocess
import sys

from slipstream.testing import v2

PROGRAM = """
from types import SimpleNamespace
import torch
from slipstream.engine.core.async_scheduler import tokens_verified
from slipstream.engine.worker.v2_alignment import align, pack

texts = torch.zeros(5, 16, dtype=torch.int32)
texts[2, 5:7] = torch.tensor([11, 12])
texts[0, 4:5] = torch.tensor([9])
texts[1, 6:7] = torch.tensor([4])
texts[4, 6:7] = torch.tensor([4])
drafted = torch.full((5, 3), -1, dtype=torch.int64)
drafted[1, 0] = 21
drafted[4] = torch.tensor([31, 32, 33])
theirs = drafted.tolist()
states = SimpleNamespace(
    device=torch.device("cpu"),
    req_id_to_index={"right": 2, "first": 0, "wrong": 1, "unread": 4},
    draft_tokens=drafted,
    all_token_ids=SimpleNamespace(gpu=texts),
    total_len=SimpleNamespace(gpu=torch.tensor([5, 7, 7, 3, 7], dtype=torch.int32)),
)
drafts = {"right": (5, [11, 12, 13, 14]), "first": (4, [9, 8, 7]), "wrong": (6, [5, 6, 7, 8])}
drafts["unread"] = 6, [5, 6, 7]
logits = torch.randn(5, 3, 50)
before = logits.clone()
align(states, pack(drafts, 7, alone={"unread"}), logits)
assert drafted.tolist() == [[8, 7, 0], [21, 7, 8], [13, 14, 0], [-1, -1, -1], [6, 7, 0]], drafted
for request, (length, draft) in drafts.items():
    row = states.req_id_to_index[request]
    written = texts[row, length : int(states.total_len.gpu[row])].tolist()
    verified = tokens_verified(draft, written, () if request == "unread" else theirs[row])
    assert len(verified) >= 2 and verified[:3] == drafted[row, : len(verified)].tolist(), (request, verified)

certain = torch.full((5, 3, 50), float("-inf")).scatter(2, drafted.clamp(min=0)[:, :, None], 0.0)
certain[1, 0], certain[3] = before[1, 0], before[3]
assert torch.equal(logits, certain), "what the speculator has drawn keeps its logits, and nothing else"
"""


def test_drafts_are_put_where_the_text_is() -> None:
    """One draft goes on after two tokens, one after one; the third is wrong, and longer than the one pass of
    the speculator: its first token stays, with its logits, and the places after it hold what our draft has
    there. So do all places of a request of which the speculator has not read the text. The scheduler comes to
    the same tokens."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=v2.environment(os.environ), capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr.split("nanobind")[0][-3000:]
