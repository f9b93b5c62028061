"""The examples, run as they stand but for the names of models and the port.

The two classic snippets are those of guides written for vLLM before 0.9, which today's vLLM rejects.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from e2e.server import QUICK, SMALL, Server
from slipstream.config import SpeculationConfig

EXAMPLES = Path(__file__).parents[2] / "examples"


def run_example(
    tmp_path: Path, name: str, replacements: Mapping[str, str], *arguments: str,
    environment: Mapping[str, str] = SMALL,
) -> subprocess.CompletedProcess[str]:  # fmt: skip
    text = (EXAMPLES / name).read_text()
    for old, new in replacements.items():
        assert old in text
        text = text.replace(old, new)
    script = tmp_path / name
    script.write_text(text)
    result = subprocess.run(
        [sys.executable, str(script), *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        timeout=2000,
    )
    assert result.returncode == 0, result.stderr[-3000:]
    return result


def test_classic_draft_model(tmp_path: Path, smollm2: str, drafter: str) -> None:
    names = {"facebook/opt-6.7b": smollm2, "facebook/opt-125m": drafter}
    result = run_example(tmp_path, "classic_draft_model.py", names, environment=QUICK)
    assert re.search(r"Prompt: 'The future of AI is', Generated text: '.+'", result.stdout)
    assert re.search(r"proposer\s+draft_model, K=5", result.stderr)
    assert "use_v2_block_manager is ignored" in result.stderr


def test_classic_ngram(tmp_path: Path, smollm2: str) -> None:
    result = run_example(tmp_path, "classic_ngram.py", {"facebook/opt-6.7b": smollm2}, environment=QUICK)
    assert re.search(r"Prompt: 'The future of AI is', Generated text: '.+'", result.stdout)
    assert re.search(r"proposer\s+ngram, K=5", result.stderr)


def test_quickstart(tmp_path: Path, smollm2: str) -> None:
    result = run_example(tmp_path, "quickstart.py", {}, smollm2)
    accepted, drafted = re.search(r"(\d+) of (\d+) draft tokens", result.stdout).groups()  # type: ignore[union-attr]
    assert 0 < int(accepted) <= int(drafted)


def test_client(tmp_path: Path, server: Server) -> None:
    result = run_example(tmp_path, "client.py", {"localhost:8000": f"127.0.0.1:{server.port}"})
    parts = re.fullmatch(r"Completion:(.+)Chat:(.+)Stream:(.+)", result.stdout, re.DOTALL)
    assert parts is not None
    _, chat, stream = (part.strip() for part in parts.groups())
    assert "Paris" in chat
    assert chat == stream


def test_traffic(tmp_path: Path, server: Server) -> None:
    arguments = ("--url", f"{server.url}/v1", "--requests", "2", "--at-once", "2", "--max-tokens", "24")
    result = run_example(tmp_path, "traffic.py", {}, *arguments)
    counted = {
        kind: json.loads(found)
        for kind, found in re.findall(r"^(\w+): (\{.+\})$", result.stdout, re.MULTILINE)
    }
    assert counted.keys() == {"edit", "chat", "tool_call"}
    for found in counted.values():
        assert found["requests"] == 2
        assert 0 < found["tokens"] <= 2 * 24
        assert 0 <= found["accepted"] <= found["draft tokens"]
    assert counted["edit"]["draft tokens"] > 0


def test_the_config_file_is_valid() -> None:
    assert SpeculationConfig.load(EXAMPLES / "speculate.yaml").num_draft_tokens == 4


def test_the_readme_shows_the_quickstart() -> None:
    readme = (EXAMPLES.parent / "README.md").read_text()
    assert (EXAMPLES / "quickstart.py").read_text() in readme
