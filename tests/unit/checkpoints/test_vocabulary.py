import json
from pathlib import Path

from slipstream.checkpoints import Agreement, compare_vocabularies, open_checkpoint, read_vocabulary
from slipstream.checkpoints.vocabulary import VocabularyComparison
from unit.folders import WORDS, write_head, write_model, write_tokenizer


def compare(target: str, drafter: str) -> VocabularyComparison:
    ours, theirs = read_vocabulary(open_checkpoint(target)), read_vocabulary(open_checkpoint(drafter))
    assert ours is not None
    assert theirs is not None
    return compare_vocabularies(ours, theirs)


def test_same_tokens(tmp_path: Path) -> None:
    comparison = compare(write_model(tmp_path / "a"), write_model(tmp_path / "b"))
    assert comparison.agreement is Agreement.SAME
    assert comparison.describe() == "8 tokens, all the same"


def test_same_tokens_in_files_that_differ(tmp_path: Path) -> None:
    target, drafter = write_model(tmp_path / "a"), write_model(tmp_path / "b")
    file = tmp_path / "b" / "tokenizer.json"
    file.write_text(json.dumps(json.loads(file.read_text()), indent=7))
    assert compare(target, drafter).agreement is Agreement.SAME


def test_two_tokens_swapped_are_found_though_the_sizes_agree(tmp_path: Path) -> None:
    swapped = (*WORDS[:-2], WORDS[-1], WORDS[-2])
    comparison = compare(write_model(tmp_path / "big"), write_model(tmp_path / "small", words=swapped))
    assert comparison.agreement is Agreement.DIFFERENT
    assert comparison.differing == (6, 7)
    assert comparison.shared_tokens == 8
    said = comparison.describe()
    assert str(tmp_path / "big") in said
    assert str(tmp_path / "small") in said
    assert "id 6 is 'g' in big and 'h' in small" in said


def test_more_special_tokens_do_not_make_another_tokenizer(tmp_path: Path) -> None:
    target, drafter = write_model(tmp_path / "a"), write_model(tmp_path / "b")
    write_tokenizer(tmp_path / "b", WORDS, special=("<tool>",))
    comparison = compare(target, drafter)
    assert comparison.agreement is Agreement.SPECIAL_TOKENS_DIFFER
    assert comparison.differing == (8,)


def test_gpt2_style_files(tmp_path: Path) -> None:
    """facebook/opt-125m and its like have vocab.json and merges.txt only."""
    for name in ("a", "b"):
        write_head(tmp_path / name, model_type="opt")
        (tmp_path / name / "vocab.json").write_text(json.dumps({w: i for i, w in enumerate(WORDS)}))
    (tmp_path / "b" / "added_tokens.json").write_text('{"<pad>": 8}')
    comparison = compare(str(tmp_path / "a"), str(tmp_path / "b"))
    assert comparison.agreement is Agreement.SPECIAL_TOKENS_DIFFER


def test_opaque_formats_are_compared_as_files(tmp_path: Path) -> None:
    for name, content in (("a", b"1"), ("b", b"1"), ("c", b"2")):
        write_head(tmp_path / name, model_type="llama")
        (tmp_path / name / "tokenizer.model").write_bytes(content)
    assert compare(str(tmp_path / "a"), str(tmp_path / "b")).agreement is Agreement.SAME
    assert compare(str(tmp_path / "a"), str(tmp_path / "c")).agreement is Agreement.UNKNOWN


def test_heads_have_no_vocabulary(tmp_path: Path) -> None:
    assert read_vocabulary(open_checkpoint(write_head(tmp_path, model_type="medusa"))) is None
