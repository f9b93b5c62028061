from pathlib import Path

import pytest

from slipstream.checkpoints import open_checkpoint
from slipstream.ops.pairing import find_candidates, rank_drafters
from unit.folders import WORDS, write_head, write_model, write_training


def test_ranking(tmp_path: Path) -> None:
    target = write_model(tmp_path / "target", parameters=100_000)
    write_model(tmp_path / "tiny", parameters=2_000)
    write_model(tmp_path / "half", parameters=50_000)
    write_model(tmp_path / "twin", parameters=100_000)
    write_model(tmp_path / "stranger", words=(*WORDS[:-1], "z"), parameters=2_000)
    write_head(tmp_path / "heads", model_type="medusa", num_heads=3, hidden_size=64, parameters=1_000)
    write_head(tmp_path / "old", medusa_num_heads=2, parameters=1_000)
    write_head(tmp_path / "alien", model_type="medusa", num_heads=3, hidden_size=8)

    ranked = rank_drafters(open_checkpoint(target), find_candidates([str(tmp_path)]), 0.6)
    names = [Path(candidate.name).name for candidate in ranked]
    assert set(names[:4]) == {"heads", "old", "tiny", "half"}
    assert names[3] == "half"
    assert ranked[3].predicted_speedup is not None
    assert ranked[3].predicted_speedup < 1.2
    reasons = {Path(c.name).name: c.reason for c in ranked if not c.compatible}
    assert reasons.keys() == {"twin", "stranger", "alien"}
    assert "another tokenizer (88%" in reasons["stranger"]
    assert "hidden size 8" in reasons["alien"]
    assert "not smaller" in reasons["twin"]


def test_a_missing_candidate_is_listed_with_its_reason(tmp_path: Path) -> None:
    target = open_checkpoint(write_model(tmp_path / "target"))
    (candidate,) = rank_drafters(target, ["/no/such"], 0.6)
    assert not candidate.compatible
    assert "no such folder" in candidate.reason


def test_a_trained_drafter_is_ranked_by_what_was_measured(tmp_path: Path) -> None:
    target = write_model(tmp_path / "target", parameters=100_000)
    write_training(write_model(tmp_path / "poor", parameters=2_000), target, [0.1, 0.0])
    write_training(write_model(tmp_path / "good", parameters=2_000), target, [0.8, 0.7])
    good, poor = rank_drafters(open_checkpoint(target), find_candidates([str(tmp_path)]), 0.6)
    assert Path(good.name).name == "good"
    assert good.predicted_speedup == pytest.approx(2.5 / 1.04)
    assert "2.50 tokens per step" in good.reason
    assert poor.num_draft_tokens == 2
