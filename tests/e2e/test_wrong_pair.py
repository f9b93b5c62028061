"""A wrong pair of real models is refused before anything heavy is imported."""

import os
import subprocess
import sys
from pathlib import Path

from tokenizers import Tokenizer

SECONDS = 60


def test_the_server_refuses(smollm2: str, other_tokenizer: str, tmp_path: Path) -> None:
    """Both models have the same `vocab_size`, which is all that vLLM itself compares."""
    for heavy in ("vllm", "torch"):  # importing either is an error
        (tmp_path / f"{heavy}.py").write_text("raise ImportError(__name__)")
    command = [sys.executable, "-m", "slipstream", "serve", smollm2, "--drafter", other_tokenizer]
    environ = {**os.environ, "PYTHONPATH": str(tmp_path)}
    result = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, env=environ)
    assert result.returncode == 2
    said = "".join(result.stderr.split())
    assert smollm2 in said
    assert other_tokenizer in said
    assert "id0is'<|endoftext|>'insmollm2-135mand'<s>'intiny-other-tokenizer" in said


def test_the_offline_api_refuses(smollm2: str, other_tokenizer: str) -> None:
    code = f"""
import sys
sys.modules.update(vllm=None, torch=None)  # importing either is an error from here on
import slipstream
try:
    slipstream.LLM({smollm2!r}, speculative_model={other_tokenizer!r}, num_speculative_tokens=3)
except slipstream.errors.SetupError as error:
    print(error)
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=SECONDS)
    ours, theirs = (
        {i: token for token, i in Tokenizer.from_file(str(Path(m) / "tokenizer.json")).get_vocab().items()}
        for m in (smollm2, other_tokenizer)
    )
    count = sum(ours.get(i) != theirs.get(i) for i in {*ours, *theirs})
    assert f"differ at {count} ids" in result.stdout, result.stdout + result.stderr
