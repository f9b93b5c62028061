"""Which prompts a target is asked to answer."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from slipstream.training import responses
from slipstream.training.recipe import Data


def test_prompts_that_are_too_long_are_left_out_and_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def one_token_a_word(_: str) -> Any:
        return lambda messages, prompt: [len(word) for word in messages[0]["content"].split()]

    monkeypatch.setattr(responses, "_tokenizer", one_token_a_word)
    lines = [{"prompt": " ".join(["word"] * 5 + ["x" * i])} for i in range(1, 9)]
    lines += [{"prompt": "word " * 20}] * 3
    file = tmp_path / "traffic.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    data = Data(prompts=(str(file),), max_prompt_tokens=8, texts=8)
    with caplog.at_level(logging.WARNING, "slipstream"):
        prompts = responses.read_prompts(data, "./model", 0)
    assert {len(prompt.tokens) for prompt in prompts} == {6}
    assert "3 of 11 prompts have more than 8 tokens" in caplog.text
