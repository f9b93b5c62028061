"""From every form to vLLM's own arguments."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from slipstream.config import Deployment, ResolvedSpeculation, choose, read_speculation
from slipstream.engine.launch.arguments import (
    ASYNC_SCHEDULER,
    CPU_WORKER,
    GPU_WORKER,
    LOOKAHEAD_ASYNC_SCHEDULER,
    LOOKAHEAD_SCHEDULER,
    NO_DRAFTER,
    SCHEDULER,
    engine_arguments,
    speculative_config,
)
from slipstream.engine.launch.start import server_flags
from slipstream.engine.settings import Settings
from slipstream.errors import ConfigError
from slipstream.methods import MLP_SPECULATOR
from unit.folders import write_head, write_model


def made_of(**arguments: Any) -> dict[str, Any] | None:
    config, _ = read_speculation(arguments)
    return speculative_config(choose(config, Deployment("m"), None))


def test_off_is_no_speculative_config() -> None:
    assert made_of(speculate="off") is None


def test_auto_is_free_proposers_and_a_planner() -> None:
    choice = choose(read_speculation({})[0], Deployment("m"), None)
    made = engine_arguments(choice, "cpu", additional_config={"theirs": 1})
    assert made["speculative_config"] == {
        "method": "custom_class",
        "model": NO_DRAFTER,
        "num_speculative_tokens": 8,
    }
    assert (made["scheduler_cls"], made["async_scheduling"]) == (SCHEDULER, False)
    assert made["additional_config"]["theirs"] == 1
    told = Settings.of(SimpleNamespace(additional_config=made["additional_config"]))
    assert (list(told.free), told.drafter, told.share) == (["ngram", "suffix", "grammar"], "", "off")
    assert told.plans


def test_on_the_v2_runner_drafts_are_made_a_step_ahead(tmp_path: Path) -> None:
    v2 = Deployment("m", v2=True)
    made = engine_arguments(choose(read_speculation({})[0], v2, None), "cuda")
    config = made["speculative_config"]
    assert config["method"] == "ngram_gpu", "it keeps room for the drafts, and stands in where they are wrong"
    assert (config["prompt_lookup_min"], config["prompt_lookup_max"]) == (2, 5)
    assert Settings.of(SimpleNamespace(additional_config=made["additional_config"])).device_lookup
    assert (made["scheduler_cls"], made["async_scheduling"]) == (ASYNC_SCHEDULER, True)
    assert made["worker_cls"] == GPU_WORKER
    sampled = {"vllm": {"draft_sample_method": "probabilistic"}}
    asked = {"drafter": write_model(tmp_path / "d"), "speculate": sampled}
    choice = choose(read_speculation(asked)[0], v2, None)
    assert list(choice.free) == ["ngram", "suffix", "grammar"]
    assert (choice.asynchronous, choice.plans) == (True, True)
    made = engine_arguments(choice, "cuda")
    assert made["speculative_config"]["method"] == "draft_model"
    assert made["scheduler_cls"] == ASYNC_SCHEDULER


def test_heads_that_draft_a_block_compose_on_v2_and_run_alone_on_v1(tmp_path: Path) -> None:
    head = write_head(tmp_path / "h", architectures=["DFlashDraftModel"], block_size=8)

    def free(v2: bool, **vllm: Any) -> list[str]:
        asked = {"drafter": head, "speculate": {"vllm": vllm}}
        return list(choose(read_speculation(asked)[0], Deployment("m", v2=v2), None).free)

    assert free(v2=True) == ["ngram", "suffix", "grammar"]
    assert free(v2=True, draft_sample_method="probabilistic") == free(v2=False) == []


@pytest.mark.parametrize("native", [False, True])
def test_where_vllm_plans_we_do_not(native: bool, tmp_path: Path) -> None:
    v2 = Deployment("m", v2=True)
    asked: dict[str, Any] = {
        "native": native,
        "drafter": {"model": write_model(tmp_path / "d")},
        "vllm": {"enable_adaptive_verification": True},
    }
    choice = choose(read_speculation({"speculate": asked})[0], v2, None)
    assert (choice.composes, choice.ahead, choice.plans) == (False, False, False)
    assert engine_arguments(choice, "cuda").keys() == {"speculative_config"}
    if not native:
        with pytest.raises(ConfigError, match="leave out ngram"):
            choose(read_speculation({"speculate": {**asked, "ngram": {}}})[0], v2, None)


def test_a_batch_is_planned_for_its_end_and_a_server_for_throughput() -> None:
    def told(default: str, **asked: Any) -> Settings:
        choice = choose(read_speculation(asked)[0], Deployment("m"), None)
        made = engine_arguments(choice, "cpu", default_objective=default)
        return Settings.of(SimpleNamespace(additional_config=made["additional_config"]))

    assert told("makespan").objective == "makespan"
    assert told("throughput").objective == "throughput"
    asked = told("makespan", speculate="auto", objective="latency", max_tpot_ms=50.0)
    assert (asked.objective, asked.max_tpot_ms, asked.max_ttft_ms) == ("latency", 50.0, None)


def test_vllms_own_drafter_is_planned_ahead(tmp_path: Path) -> None:
    asked = {"speculate": {"native": True, "drafter": {"model": write_model(tmp_path / "d")}}}
    choice = choose(read_speculation(asked)[0], Deployment("m"), None)
    assert (choice.ahead, choice.plans, choice.composes) == (True, True, False)
    on_cpu, on_gpu = engine_arguments(choice, "cpu"), engine_arguments(choice, "cuda")
    assert (on_cpu["scheduler_cls"], on_cpu["async_scheduling"]) == (LOOKAHEAD_SCHEDULER, False)
    assert (on_gpu["scheduler_cls"], on_gpu["async_scheduling"]) == (LOOKAHEAD_ASYNC_SCHEDULER, True)
    assert (on_cpu["worker_cls"], on_gpu["worker_cls"]) == (CPU_WORKER, GPU_WORKER)


def test_what_is_fixed_or_vllms_own_is_not_planned(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "d")

    def chosen(**arguments: Any) -> tuple[bool, int | None]:
        choice = choose(read_speculation(arguments)[0], Deployment("m"), None)
        return choice.plans, choice.num_draft_tokens

    assert chosen(speculate="fixed:5") == (False, 5)
    assert chosen(speculate={"num_draft_tokens": 5}) == (True, 5)
    assert chosen(drafter=folder) == (True, 8)
    assert chosen(drafter=folder, speculate={"vllm": {"draft_sample_method": "probabilistic"}}) == (False, 3)
    assert chosen(speculative_model=folder, num_speculative_tokens=4) == (False, 4)


def test_what_drafts_beside_a_drafter(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "d")

    def free(**arguments: Any) -> list[str]:
        return list(choose(read_speculation(arguments)[0], Deployment("m"), None).free)

    assert free(drafter=folder) == ["ngram", "suffix", "grammar"]
    assert free(drafter=folder, speculate={"ngram": {}}) == ["ngram"]
    assert free(drafter=folder, speculate={"grammar": True}) == ["grammar"]
    assert free(drafter=folder, speculate="fixed:3") == []
    assert free(speculative_model=folder, num_speculative_tokens=3) == []
    assert free(drafter=folder, speculate={"vllm": {"draft_sample_method": "probabilistic"}}) == []
    with pytest.raises(ConfigError, match="leave out ngram"):
        free(drafter=folder, speculate={"ngram": {}, "vllm": {"draft_sample_method": "probabilistic"}})


def test_an_mlp_speculator_is_run_by_us(tmp_path: Path) -> None:
    head = write_head(tmp_path / "h", model_type="mlp_speculator", n_predict=2, emb_dim=64)
    classic = {"speculative_model": head, "num_speculative_tokens": 2}
    choice = choose(read_speculation(classic)[0], Deployment("m"), None)
    made = engine_arguments(choice, "cpu")
    assert made["speculative_config"]["model"] == MLP_SPECULATOR.implementation
    told = made["additional_config"]["slipstream"]
    assert (told["drafter"], told["drafter_folder"], told["free"]) == ("mlp_speculator", head, {})


def test_a_drafter(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "d")
    classic = {
        "speculative_model": folder,
        "num_speculative_tokens": 5,
        "speculative_draft_tensor_parallel_size": 1,
    }
    assert made_of(**classic) == {
        "method": "draft_model",
        "model": folder,
        "num_speculative_tokens": 5,
        "draft_tensor_parallel_size": 1,
    }


@pytest.mark.parametrize(
    "given",
    [
        {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 2, "prompt_lookup_max": 4},
        {"method": "suffix", "num_speculative_tokens": 8, "suffix_decoding_max_tree_depth": 9},
        {"method": "suffix"},
        {"method": "mtp", "num_speculative_tokens": 1},
        {"method": "custom_class", "model": "pkg.mod.Cls", "num_speculative_tokens": 2},
        {
            "method": "ngram",
            "num_speculative_tokens": 3,
            "prompt_lookup_min": 5,
            "prompt_lookup_max": 5,
            "num_speculative_tokens_per_batch_size": [[1, 4, 3], [5, 5, 0]],
        },
    ],
)
def test_vllms_form_comes_out_as_it_went_in(given: dict[str, Any]) -> None:
    assert made_of(speculative_config=given) == given


def test_on_cpu_the_worker_is_ours() -> None:
    choice = choose(read_speculation({})[0], Deployment("m"), None)
    assert engine_arguments(choice, "cpu")["worker_cls"] == "slipstream.engine.worker.worker.CPUWorker"
    assert engine_arguments(choice, "cuda")["worker_cls"] == GPU_WORKER
    native = {"method": "ngram", "num_speculative_tokens": 3}
    choice = choose(read_speculation({"speculative_config": native})[0], Deployment("m"), None)
    assert engine_arguments(choice, "cpu")["scheduler_cls"] == SCHEDULER
    assert engine_arguments(choice, "cuda").keys() == {"speculative_config"}


def test_a_drafter_that_vllm_starts_by_itself_gets_our_worker_too() -> None:
    assert engine_arguments(ResolvedSpeculation(None, "", left_to_vllm=True), "cpu") == {
        "worker_cls": CPU_WORKER
    }


def test_off_adds_nothing_to_vllm() -> None:
    choice = choose(read_speculation({"speculate": "off"})[0], Deployment("m"), None)
    assert engine_arguments(choice, "cpu") == {}


def test_the_server_listens_on_loopback_unless_told(tmp_path: Path) -> None:
    assert server_flags(["m"]) == ["m", "--host", "127.0.0.1"]
    assert server_flags(["m", "--host=0.0.0.0"]) == ["m", "--host=0.0.0.0"]
    assert server_flags(["m", "--uds", "/s"]) == ["m", "--uds", "/s"]
    file = tmp_path / "vllm.yaml"
    file.write_text("host: 0.0.0.0\n")
    assert server_flags(["m", "--config", str(file)]) == ["m", "--config", str(file)]


def test_the_model_flag_of_older_guides_becomes_the_argument() -> None:
    flags = server_flags(["--port", "1", "--model", "m", "--host", "h"])
    assert flags == ["m", "--port", "1", "--host", "h"]
    assert server_flags(["--model=m", "--host", "h"]) == ["m", "--host", "h"]
