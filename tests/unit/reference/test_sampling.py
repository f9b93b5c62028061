import numpy as np
import pytest

from slipstream.testing.reference.sampling import Sampling, law_of

LOGITS = [2.0, 1.0, 0.0, -1.0]


def softmax(values: list[float]) -> list[float]:
    weights = np.exp(np.array(values))
    law: list[float] = (weights / weights.sum()).tolist()
    return law


@pytest.mark.parametrize(
    ("sampling", "wanted"),
    [
        (Sampling(), softmax(LOGITS)),
        (Sampling(temperature=0.5), softmax([4.0, 2.0, 0.0, -2.0])),
        (Sampling(temperature=0), [1, 0, 0, 0]),
        (Sampling(top_k=2), [*softmax([2.0, 1.0]), 0, 0]),
        (Sampling(top_k=9), softmax(LOGITS)),
        (Sampling(top_p=0.8), [*softmax([2.0, 1.0]), 0, 0]),
        (Sampling(top_p=0.01), [1, 0, 0, 0]),
        (Sampling(min_p=0.2), [*softmax([2.0, 1.0]), 0, 0]),
        (Sampling(repetition_penalty=2.0), softmax([1.0, 1.0, 0.0, -2.0])),
        (Sampling(frequency_penalty=0.5), softmax([2.0, 1.0, -1.0, -1.0])),
        (Sampling(presence_penalty=0.5), softmax([2.0, 1.0, -0.5, -1.0])),
    ],
)  # fmt: skip
def test_law(sampling: Sampling, wanted: list[float]) -> None:
    assert law_of(LOGITS, sampling, prompt=[0, 3], output=[2, 2]) == pytest.approx(wanted)


def test_penalties_count_the_prompt_only_for_repetition() -> None:
    sampling = Sampling(frequency_penalty=1.0, presence_penalty=1.0)
    assert law_of(LOGITS, sampling, prompt=[0, 1]) == pytest.approx(softmax(LOGITS))
