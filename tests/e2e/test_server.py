"""The server started by a classic command line, talked to by the real openai client."""

import re

import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families

from e2e.server import Server

PROMPT = "List the days of the week: Monday, Tuesday,"


@pytest.fixture
def client(server: Server) -> openai.OpenAI:
    return openai.OpenAI(api_key="EMPTY", base_url=f"{server.url}/v1")


@pytest.fixture
def model(client: openai.OpenAI) -> str:
    return str(client.models.list().data[0].id)


def test_it_says_at_start_what_is_active_and_why(server: Server) -> None:
    log = server.log.read_text()
    assert re.search(r"Slipstream 0\.\S+ on vLLM 0\.32\.\S+ \(cpu\)", log)
    assert re.search(r"proposer\s+draft_model: told from the drafter's checkpoint", log)
    assert re.search(r"K\s+3: asked for", log)
    assert re.search(r"host\s+preloaded .*libiomp5", log)
    assert re.search(r"runner\s+V1 model runner: ", log)
    assert re.search(r"scheduler\s+slipstream\.engine\.core\.scheduler\.Scheduler, synchronous: ", log)
    assert "use_v2_block_manager is ignored" in log


def test_completions(client: openai.OpenAI, model: str) -> None:
    answer = client.completions.create(model=model, prompt=PROMPT, max_tokens=16, temperature=0)
    assert "Wednesday" in answer.choices[0].text
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 16


def test_streaming_gives_the_same_text(client: openai.OpenAI, model: str) -> None:
    whole = client.completions.create(model=model, prompt=PROMPT, max_tokens=32, temperature=0)
    parts = client.completions.create(model=model, prompt=PROMPT, max_tokens=32, temperature=0, stream=True)
    assert "".join(part.choices[0].text for part in parts) == whole.choices[0].text


def test_chat_and_its_stream(client: openai.OpenAI, model: str) -> None:
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    request = {"model": model, "messages": messages, "max_tokens": 24, "temperature": 0}
    whole = client.chat.completions.create(**request)
    text = whole.choices[0].message.content
    assert "Paris" in text
    parts = client.chat.completions.create(**request, stream=True)
    assert "".join(part.choices[0].delta.content or "" for part in parts) == text


def test_metrics_count_what_was_drafted(server: Server, client: openai.OpenAI, model: str) -> None:
    def counters() -> dict[str, float]:
        families = text_string_to_metric_families(server.get("/metrics"))
        return {s.name: s.value for f in families for s in f.samples if s.name.startswith("vllm:spec_decode")}

    before = counters()
    client.completions.create(model=model, prompt=PROMPT, max_tokens=16, temperature=0)
    after = counters()
    drafts, tokens = (
        after[name] - before[name]
        for name in ("vllm:spec_decode_num_drafts_total", "vllm:spec_decode_num_draft_tokens_total")
    )
    assert drafts > 0
    assert 2 * drafts < tokens <= 3 * drafts


def test_min_p_and_logit_bias_are_served(client: openai.OpenAI, model: str) -> None:
    """vLLM refuses them while it speculates; Slipstream serves them, without drafts."""
    request = {"model": model, "prompt": PROMPT, "max_tokens": 8}
    greedy = client.completions.create(**request, temperature=0)
    one = client.completions.create(**request, temperature=0.5, extra_body={"min_p": 1.0})
    assert one.choices[0].text == greedy.choices[0].text
    biased = client.completions.create(**request, temperature=0, logit_bias={"28": 100})
    assert biased.choices[0].text == biased.choices[0].text[0] * 8
