"""A trace of a real engine, replayed."""

from pathlib import Path

import pytest

import slipstream
from slipstream.replay.simulator import measured, replay
from slipstream.replay.trace import read_trace


def test_a_run_is_recorded_and_replayed(
    tiny_llama: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tiny Llama repeats itself, so there is something to draft."""
    monkeypatch.setenv("SLIPSTREAM_TRACE", str(tmp_path / "trace"))
    llm = slipstream.LLM(
        tiny_llama, dtype="float32", enforce_eager=True, max_model_len=256, max_num_seqs=4,
        kv_cache_memory_bytes=1 << 28,
    )  # fmt: skip
    sampling = slipstream.SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
    outputs = llm.generate([f"{number} and {number}" for number in range(6)], sampling)
    llm.generate("to the end", sampling)
    trace = read_trace(tmp_path / "trace")
    prompts = [len(output.prompt_token_ids) for output in outputs]
    assert sorted(request.prompt_tokens for request in trace.requests[:6]) == sorted(prompts)
    assert all(request.output_tokens == 40 for request in trace.requests)
    assert 0 <= min(r.arrived for r in trace.requests) <= max(r.arrived for r in trace.requests)
    assert trace.limits.max_num_seqs == 4
    run, again, off = measured(trace), replay(trace, "auto"), replay(trace, "off")
    assert 0 < run.tokens <= 7 * 40
    assert again.tokens == off.tokens == len(trace.requests) * 40
    assert run.draft_tokens > 0
    assert again.draft_tokens > 0
    assert again.steps < off.steps
