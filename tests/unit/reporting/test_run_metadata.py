import sys

import pytest

from slipstream.reporting.run_metadata import about_this_run


def test_no_secret_is_written_down(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "hush")
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "2")
    monkeypatch.setattr(
        sys, "argv", ["x", "bench", "m", "--api-key", "hush", "--api-key=hush", "--port", "1"]
    )
    about = about_this_run()
    assert "hush" not in str(about)
    assert about["environment"]["VLLM_CPU_KVCACHE_SPACE"] == "2"
    assert about["command"] == "slipstream bench m --api-key ... --api-key=... --port 1"
    assert about["vllm"] is None or about["vllm"].startswith("0.32")


def test_the_command_of_a_script(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["some/where/benchmarks/soak.py", "./a model"])
    assert about_this_run()["command"] == "python benchmarks/soak.py './a model'"
