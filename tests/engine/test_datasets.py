"""The dataset loaders of `vllm bench serve`, by their own flags."""

import json
from pathlib import Path

import pytest

from slipstream.workloads.loading import VLLM_PROMPTS, load_workload


def test_random(smollm2: str) -> None:
    workload = load_workload("vllm: --dataset-name random --random-input-len 20", 8, smollm2)
    assert workload.name == "random"
    assert len(workload.requests) == VLLM_PROMPTS
    assert all(r.messages is None and r.prompt and r.max_tokens == 8 for r in workload.requests)


def test_a_file_of_ones_own(smollm2: str, tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    file = tmp_path / "mine.jsonl"
    file.write_text("".join(json.dumps({"prompt": f"Count to {i}."}) + "\n" for i in range(4)))
    workload = load_workload(f"vllm: --dataset-name custom --dataset-path {file}", 8, smollm2)
    assert any("Count to 3." in str(request.prompt) for request in workload.requests)
