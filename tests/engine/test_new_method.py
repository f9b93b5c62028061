"""docs/adding-a-method.md, followed: a drafter of a new kind is one row of the table and one class."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

import slipstream
from slipstream import methods
from slipstream.engine.worker.drafters import HiddenStateDrafter
from slipstream.methods import Kind, Method, Signs

ROW = Method(
    "echo", Kind.HEAD, composable=True, offered_keys=("n_predict",), beyond_offered="none", runner="V1",
    synchronous=True, implementation="engine.test_new_method.Echo", signs=Signs(model_types=("echo",)),
)  # fmt: skip


class Echo(HiddenStateDrafter):
    """Drafts the token before again."""

    def load(self, folder: str, dtype: torch.dtype, device: torch.device) -> None:
        assert json.loads((Path(folder) / "config.json").read_text())["model_type"] == "echo"

    def draft(self, hidden_states: torch.Tensor, last_tokens: torch.Tensor, num_tokens: int) -> torch.Tensor:
        assert hidden_states.shape[0] == last_tokens.shape[0]
        return last_tokens[:, None].expand(-1, num_tokens)


def write(model: str, **options: Any) -> tuple[list[list[int]], dict[str, int]]:
    llm = slipstream.LLM(
        model,
        dtype="float32",
        enforce_eager=True,
        max_model_len=256,
        kv_cache_memory_bytes=1 << 28,
        **options,
    )
    sampling = slipstream.SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
    texts = [list(output.outputs[0].token_ids) for output in llm.generate(["a b c", "1 2 3 1 2"], sampling)]
    return texts, slipstream.drafting_report(llm)["draft_tokens"] if options["speculate"] != "off" else {}


def test_a_method_of_ones_own(
    quick_starts: None, tiny_llama: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(methods.METHODS, ROW.name, ROW)
    monkeypatch.setattr(methods, "DRAFTERS", (ROW.name, *methods.DRAFTERS))
    hidden = json.loads((Path(tiny_llama) / "config.json").read_text())["hidden_size"]
    (tmp_path / "config.json").write_text(
        json.dumps({"model_type": "echo", "n_predict": 3, "hidden_size": hidden})
    )
    save_file({"nothing": torch.zeros(1)}, tmp_path / "model.safetensors")
    bare, _ = write(tiny_llama, speculate="off")
    ours, drafted = write(tiny_llama, drafter=str(tmp_path), speculate="fixed:3")
    assert ours == bare
    assert drafted["echo"] > 10
