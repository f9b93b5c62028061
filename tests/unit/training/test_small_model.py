"""Which existing models can be made a draft model of a target, and what is said of the others."""

from pathlib import Path

import pytest

from slipstream.errors import ConfigError
from slipstream.training.recipe import Recipe, SmallModel
from slipstream.training.small_model import check_small_model
from unit.folders import WORDS, write_head, write_model


@pytest.fixture
def target(tmp_path: Path) -> str:
    return write_model(tmp_path / "target", parameters=100_000)


def test_a_smaller_model_with_the_same_tokens_is_taken(target: str, tmp_path: Path) -> None:
    small = write_model(tmp_path / "small", parameters=2_000, hidden_size=16, vocab_size=16)
    check_small_model(target, SmallModel(name=small))


def test_others_are_refused_with_what_to_do(target: str, tmp_path: Path) -> None:
    stranger = write_model(tmp_path / "stranger", words=(*WORDS[:-1], "z"), parameters=2_000)
    with pytest.raises(ConfigError, match=r"another tokenizer .*own family.*leave --from out"):
        check_small_model(target, SmallModel(name=stranger))
    twin = write_model(tmp_path / "twin", parameters=100_000)
    with pytest.raises(ConfigError, match="not smaller than the target"):
        check_small_model(target, SmallModel(name=twin))
    heads = write_head(tmp_path / "heads", model_type="medusa", num_heads=3, hidden_size=64)
    with pytest.raises(ConfigError, match=r"head of method medusa.*--start-from"):
        check_small_model(target, SmallModel(name=heads))


def test_pickled_weights_are_not_loaded(target: str, tmp_path: Path) -> None:
    pickled = Path(write_model(tmp_path / "pickled", parameters=2_000))
    (pickled / "model.safetensors").rename(pickled / "pytorch_model.bin")
    with pytest.raises(ConfigError, match="pickled weights only"):
        check_small_model(target, SmallModel(name=str(pickled)))


def test_a_corpus_must_be_there(target: str, tmp_path: Path) -> None:
    small = write_model(tmp_path / "small", parameters=2_000)
    with pytest.raises(ConfigError, match="no such file"):
        check_small_model(target, SmallModel(name=small, corpus=str(tmp_path / "none.txt")))


def test_a_recipe_begins_with_a_model_in_one_way() -> None:
    small = {"name": "small"}
    with pytest.raises(ConfigError, match="only --method draft"):
        Recipe.build({"target": "t", "method": "eagle", "small_model": small})
    with pytest.raises(ConfigError, match="give one of them"):
        Recipe.build({"target": "t", "method": "draft", "small_model": small, "start_from": "drafter"})
