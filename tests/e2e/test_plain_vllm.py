"""`vllm serve`, with SLIPSTREAM in its environment and nothing of ours in its command."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families

from e2e.server import PLAIN_VLLM, QUICK, SMALL, Server, running_server
from slipstream.engine.server.metrics import SECONDS
from slipstream.errors import ConfigError
from slipstream.ops.explain import fetch

FLAGS = (
    "--enforce-eager", "--dtype", "float32", "--max-model-len", "256", "--max-num-seqs", "4",
    "--host", "127.0.0.1", "--served-model-name", "m",
)  # fmt: skip
KEY = "none"
COMPOSED = '{"mode": "fixed", "num_draft_tokens": 3, "ngram": {}, "suffix": {}}'
PROMPTS = ["one two one two one", "a b c a b c a", "The quick brown fox"]


@contextmanager
def plain_server(model: str, folder: Path, *flags: str, **variables: str) -> Iterator[Server]:
    # Metrics of several processes are of those that are spawned.
    environment = {**(SMALL if "--api-server-count" in flags else QUICK), **variables}
    with running_server(folder, model, *FLAGS, *flags, program=PLAIN_VLLM, environment=environment) as server:
        yield server


def write(server: Server) -> list[str]:
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key=KEY)
    return [
        client.completions.create(model="m", prompt=prompt, max_tokens=32, temperature=0).choices[0].text
        for prompt in PROMPTS
    ]


def total(server: Server, name: str) -> float:
    """Return the sum of a metric over all its labels."""
    families = text_string_to_metric_families(server.get("/metrics"))
    return sum(sample.value for family in families for sample in family.samples if sample.name == name)


@pytest.fixture(scope="module")
def bare(tiny_llama: str, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    with plain_server(tiny_llama, tmp_path_factory.mktemp("bare")) as server:
        return write(server)


@pytest.mark.parametrize("flags", [(), ("--api-server-count", "2")], ids=["one", "two API servers"])
def test_it_speculates_and_writes_the_same(
    tiny_llama: str, tmp_path: Path, bare: list[str], flags: tuple[str, ...]
) -> None:
    with plain_server(tiny_llama, tmp_path, *flags, SLIPSTREAM=COMPOSED, VLLM_API_KEY=KEY) as server:
        assert write(server) == bare
        assert "ngram" in str(fetch(server.url, KEY))
        with pytest.raises(ConfigError, match="wants a key"):
            fetch(server.url)
        time.sleep(3 * SECONDS)
        ours, theirs = (
            total(server, name)
            for name in ("slipstream_accepted_tokens_total", "vllm:spec_decode_num_accepted_tokens_total")
        )
    assert ours == theirs > 0
    assert server.log.read_text().count("Slipstream is active") == 1
