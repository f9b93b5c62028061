from pathlib import Path

import pytest

from slipstream.errors import ConfigError
from slipstream.serving.arms import Arm, read_arms, refuse_speculation


def names(*texts: str, file: Path | None = None) -> list[str]:
    return [arm.name for arm in read_arms(texts, file)]


def test_bare_is_always_there_and_first() -> None:
    assert names() == ["bare", "auto"]
    assert names("fixed:3", "fast=fixed:5") == ["bare", "fixed-3", "fast"]
    assert names("fixed:3", "bare") == ["bare", "fixed-3"]
    assert names("first=off", "again=off") == ["first", "again"]


def test_json_is_not_taken_for_a_name() -> None:
    text = '{"mode": "fixed", "num_draft_tokens": 4}'
    assert read_arms([f"x={text}"], None)[1] == Arm("x", text)
    assert read_arms([text], None)[1].speculate == text


def test_a_file_of_arms(tmp_path: Path) -> None:
    file = tmp_path / "arms.yaml"
    file.write_text(
        "- name: bare\n"
        "- name: openmp\n"
        "  speculate: {mode: fixed, num_draft_tokens: 5}\n"
        "  environment: {NUMBA_THREADING_LAYER: omp}\n"
        "- {name: quiet, speculate: off, flags: [--max-num-seqs, 4]}\n"
    )
    bare, openmp, quiet = read_arms([], file)
    assert bare == Arm("bare")
    assert openmp.environment == {"NUMBA_THREADING_LAYER": "omp"}
    assert openmp.speculate == '{"mode": "fixed", "num_draft_tokens": 5}'
    assert quiet == Arm("quiet", "off", {}, ("--max-num-seqs", "4"))


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["fixed:0"], "num_draft_tokens"),
        (["a=fixed:3", "a=fixed:4"], "'a' is given twice"),
        (["nonsense"], "not auto, off or fixed:K"),
    ],
)
def test_mistakes_are_found_before_anything_starts(texts: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_arms(texts, None)


def test_speculation_is_not_for_all_arms() -> None:
    """`bench MODEL --speculate fixed:3` would make the bare arm speculate, and the report say 1.00x."""
    refuse_speculation(["--dtype", "float32"])
    with pytest.raises(ConfigError, match="write it as an arm"):
        refuse_speculation(["--dtype", "float32", "--speculate", "fixed:3"])
    with pytest.raises(ConfigError, match="write it as an arm"):
        Arm("x", "off", {}, ("--speculative-config", "{}"))


def test_a_file_that_changed_is_another_arm(tmp_path: Path) -> None:
    file = tmp_path / "s.yaml"
    file.write_text("{mode: fixed, num_draft_tokens: 3}")
    before = Arm("x", str(file)).as_dict()
    file.write_text("{mode: fixed, num_draft_tokens: 4}")
    assert Arm("x", str(file)).as_dict() != before


def test_an_unknown_key_in_the_file(tmp_path: Path) -> None:
    file = tmp_path / "arms.yaml"
    file.write_text("- {name: x, speculat: auto}\n")
    with pytest.raises(ConfigError, match="unknown key 'speculat'"):
        read_arms([], file)
