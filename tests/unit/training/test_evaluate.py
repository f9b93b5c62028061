"""What would have been accepted of a text, by the engine's own loop."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from slipstream.training.evaluate import alone, composed

DEPTH, PROMPT = 3, 6


def example(tokens: list[int], prompt: int = PROMPT) -> Any:
    return SimpleNamespace(tokens=torch.tensor(tokens), prompt_length=prompt)


def guesses(tokens: list[int], wrong: int = 0) -> Any:
    """What follows each place, or always `wrong`."""
    following = [[*tokens[at + 2 : at + 2 + DEPTH], *[0] * DEPTH][:DEPTH] for at in range(len(tokens))]
    return np.array(following) if not wrong else np.full((len(tokens), DEPTH), wrong)


@pytest.mark.parametrize("length", range(PROMPT + 1, PROMPT + 12))
def test_a_drafter_that_is_always_right(length: int) -> None:
    """It ends, wherever the text does, also within a draft; and both ways of counting agree."""
    text = [100 + at for at in range(length)]
    found = composed([example(text)], [guesses(text)], [0.9, 0.8, 0.7], [], 1000)
    counted = alone([example(text)], [guesses(text)])
    assert found.survival == counted.survival
    written = length - PROMPT - 1  # after the first token of the answer
    steps = -(-written // (DEPTH + 1))
    assert round(sum(found.survival) * steps) in (written - steps, written - steps + 1)


def test_a_text_without_an_answer_takes_no_step() -> None:
    text = [100 + at for at in range(PROMPT)]
    assert composed([example(text)], [guesses(text)], [0.9, 0.8, 0.7], [], 1000).survival == (0.0, 0.0, 0.0)


def test_one_that_is_never_right_and_lookup_that_is() -> None:
    text = [7, 8, 9] * 12
    wrong = guesses(text, wrong=500)
    assert sum(composed([example(text)], [wrong], [0.1, 0.1, 0.1], [], 1000).survival) == 0
    assert sum(composed([example(text)], [wrong], [0.1, 0.1, 0.1], ["ngram"], 1000).survival) > 1.5
