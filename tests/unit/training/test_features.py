"""Hidden states on disk: those of the layers that are asked for, shared by the methods, within a limit."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from slipstream.training.eagle3 import layers_read
from slipstream.training.features import GIB, read_examples, write_features
from slipstream.training.responses import Response

NUM_LAYERS = 8
LAYERS = layers_read(NUM_LAYERS)
TEXTS = ((9, 17), (12,))  # lengths, portion by portion


@pytest.fixture(scope="module")
def model() -> Any:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=NUM_LAYERS,
        num_attention_heads=2, initializer_range=0.2,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """With texts."""
    for portion, lengths in enumerate(TEXTS):
        texts = [Response([(7 * i) % 61 for i in range(n)], 4, "any", False, 0.0) for n in lengths]
        lines = "".join(json.dumps(asdict(text)) + "\n" for text in texts)
        (tmp_path / f"texts-{portion:05}.jsonl").write_text(lines)
    return tmp_path


def write(folder: Path, model: Any, layers: tuple[int, ...] = (), max_bytes: float = GIB) -> None:
    write_features(folder, lambda: model, max_bytes / GIB, lambda texts: None, layers)


def test_states_are_what_goes_into_the_layers(folder: Path, model: Any) -> None:
    assert LAYERS == (2, 4, 5)
    write(folder, model, LAYERS)
    examples = list(read_examples(folder, LAYERS))
    assert [len(example.tokens) for example in examples] == [9, 17, 12]
    for example in examples:
        given: list[torch.Tensor] = []
        hooks = [
            layer.register_forward_pre_hook(lambda _, inputs, given=given: given.append(inputs[0][0]))
            for layer in model.get_decoder().layers
        ]
        with torch.inference_mode():
            last = model.get_decoder()(input_ids=example.tokens[None]).last_hidden_state[0]
        for hook in hooks:
            hook.remove()
        expected = torch.cat([given[layer] for layer in LAYERS], dim=-1)
        assert example.layers is not None
        torch.testing.assert_close(example.layers.float(), expected, rtol=0.01, atol=0.01)
        torch.testing.assert_close(example.hidden.float(), last, rtol=0.01, atol=0.01)


def test_methods_share_the_last_states(folder: Path, model: Any) -> None:
    write(folder, model)
    before = {file.name: file.stat().st_mtime_ns for file in folder.glob("*.safetensors")}
    assert len(before) == len(TEXTS)
    write(folder, model, LAYERS)
    after = {file.name: file.stat().st_mtime_ns for file in folder.glob("*.safetensors")}
    assert before.items() < after.items()
    assert len(after) == 2 * len(TEXTS)
    assert all(example.layers is None for example in read_examples(folder))


def test_the_limit_is_for_the_files_of_the_method(folder: Path, model: Any) -> None:
    write(folder, model)
    limit = 1.5 * (folder / "features-00000.safetensors").stat().st_size
    write(folder, model, LAYERS, limit)
    assert len(list(read_examples(folder, LAYERS))) == len(TEXTS[0])
    (folder / "features-00001.safetensors").unlink()
    write(folder, model, (), 0.8 * limit)  # the next portion would go beyond it
    assert len(list(read_examples(folder))) == len(TEXTS[0])
    write(folder, model, (), limit)
    assert len(list(read_examples(folder))) == sum(map(len, TEXTS))
