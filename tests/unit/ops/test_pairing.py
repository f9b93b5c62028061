import json
from pathlib import Path

import pytest

from slipstream.checkpoints import hub, open_checkpoint
from slipstream.checkpoints.catalogue import Published
from slipstream.errors import CheckpointError
from slipstream.ops import pairing
from slipstream.ops.pairing import find_candidates, rank_drafters
from unit.folders import WORDS, write_head, write_model, write_training, write_vllm


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


def test_a_head_that_vllm_cannot_run_for_the_target_does_not_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vllm = write_vllm(
        tmp_path / "source",
        registry='MODELS = {"LlamaForCausalLM": ("llama", "LlamaForCausalLM")}',
        llama="class LlamaForCausalLM: ...",
    )
    monkeypatch.setattr(pairing, "vllm_folder", lambda: vllm)
    target = write_model(tmp_path / "target", parameters=100_000)
    for name, kind in (("qwen2", "EagleQwen2ForCausalLM"), ("three", "LlamaForCausalLMEagle3")):
        write_head(tmp_path / "heads" / name, architectures=[kind], hidden_size=64)
    ranked = rank_drafters(open_checkpoint(target), find_candidates([str(tmp_path / "heads")]), 0.6)
    reasons = {Path(candidate.name).name: candidate.reason for candidate in ranked}
    assert not any(candidate.compatible for candidate in ranked)
    assert "vLLM 0.32 has no EagleQwen2ForCausalLM" in reasons["qwen2"]
    assert "no SupportsEagle3" in reasons["three"]


HEAD = Published("org/head", "eagle3", "org/target", "https://example.org", "2026-01-01")


def test_a_published_drafter_is_listed_when_the_hub_cannot_be_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fetch(repo: str, filename: str, revision: str | None) -> Path | None:
        raise CheckpointError(f"{repo}: the hub cannot be reached")

    monkeypatch.setattr(hub, "fetch", fetch)
    monkeypatch.setattr(hub, "_unreachable", True)
    target = open_checkpoint(write_model(tmp_path / "target"))
    (candidate,) = rank_drafters(target, [], 0.6, [HEAD])
    assert candidate.compatible
    assert (candidate.name, candidate.method, candidate.size_ratio) == ("org/head", "eagle3", None)
    assert "published for org/target; size unknown" in candidate.reason
    assert candidate.source == HEAD.source


def test_a_published_drafter_that_is_gone_does_not_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fetch(repo: str, filename: str, revision: str | None) -> Path | None:
        raise CheckpointError(f"{repo}: no such model on the hub")

    monkeypatch.setattr(hub, "fetch", fetch)
    monkeypatch.setattr(hub, "_unreachable", False)
    (candidate,) = rank_drafters(open_checkpoint(write_model(tmp_path / "target")), [], 0.6, [HEAD])
    assert not candidate.compatible
    assert "no such model on the hub" in candidate.reason


def test_the_size_of_a_published_drafter_is_asked_of_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot = tmp_path / "snapshot"
    snapshot.mkdir()
    config = {"architectures": ["LlamaForCausalLMEagle3"], "hidden_size": 64, "draft_vocab_size": 4}
    (snapshot / "config.json").write_text(json.dumps(config))

    def fetch(repo: str, filename: str, revision: str | None) -> Path | None:
        file = snapshot / filename
        return file if file.exists() else None

    monkeypatch.setattr(hub, "fetch", fetch)
    monkeypatch.setattr(hub, "list_files", lambda repo, revision: [])
    monkeypatch.setattr(hub, "num_parameters", lambda repo, revision: 5_000)
    target = open_checkpoint(write_model(tmp_path / "target", parameters=100_000))
    (candidate,) = rank_drafters(target, [], 0.6, [HEAD])
    assert candidate.compatible
    assert candidate.method == "eagle3"
    assert candidate.size_ratio == pytest.approx(0.05)
    assert candidate.reason == "published for org/target"
