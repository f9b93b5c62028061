"""`slipstream train` on the tiny Llama, from prompts to a drafter that vLLM loads: one test per method, and
the guide's commands."""

import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import slipstream
from e2e.server import QUICK, SMALL
from slipstream.cli import app
from slipstream.training.card import length_of
from slipstream.training.recipe import METHODS
from slipstream.training.responses import read_responses

GUIDE = Path(__file__).parents[2] / "docs" / "training.md"
RECIPE: dict[str, dict[str, Any]] = {
    "data": {"texts": 24, "max_tokens": 24, "portion": 8, "held_out": 0.2, "prompts": ["chat"]},
    "training": {"epochs": 40, "evaluations": 2, "batch_tokens": 512},
    "drafter": {"vocabulary": 1024, "layers": 1},
}

pytestmark = pytest.mark.usefixtures("quick_starts")


@pytest.fixture(scope="module", autouse=True)
def small() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in SMALL.items():
            patch.setenv(name, value)
        yield


def run(arguments: Sequence[str], folder: Path) -> str:
    """Run a command in this process, which has imported what it needs, and return what it prints."""
    with contextlib.chdir(folder):
        done = CliRunner().invoke(app, [*arguments])
    assert done.exit_code == 0, (arguments, done.output[-3000:], done.exception)
    return done.stdout


@pytest.fixture(scope="module")
def folder(tiny_llama: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With the recipe, and the data of a run that was killed while the target answered."""
    folder = tmp_path_factory.mktemp("training")
    (folder / "recipe.json").write_text(json.dumps(RECIPE))
    (folder / "model").symlink_to(tiny_llama)
    with (folder / "killed.log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "slipstream", *arguments("mlp")],
            cwd=folder, env={**os.environ, **QUICK}, stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip
    deadline = time.monotonic() + 900
    while not (folder / "data" / "texts-00000.jsonl").exists():
        assert process.poll() is None, (folder / "killed.log").read_text()[-3000:]
        assert time.monotonic() < deadline
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    return folder


def arguments(method: str) -> list[str]:
    return shlex.split(
        f"train ./model --method {method} --recipe recipe.json --out {method} --data data --enforce-eager "
        "--dtype float32 --json"
    )


def accepted_by_the_engine(folder: Path, method: str) -> float:
    """Tokens per step over the held-out texts that are greedy, by vLLM's own counters."""
    texts = [
        t for texts in read_responses(folder / "data") for t in texts if t.held_out and t.temperature == 0
    ]
    llm = slipstream.LLM(
        str(folder / "model"), drafter=folder / method / "drafter", speculate="fixed:3", dtype="float32",
        enforce_eager=True, max_model_len=512, kv_cache_memory_bytes=64 * 1024**2,
    )  # fmt: skip
    prompts: list[Any] = [{"prompt_token_ids": text.tokens[: text.prompt_length]} for text in texts]
    sampling = slipstream.SamplingParams(temperature=0, max_tokens=RECIPE["data"]["max_tokens"])
    answers = llm.generate(prompts, sampling, use_tqdm=False)
    assert [list(a.outputs[0].token_ids) for a in answers] == [t.tokens[t.prompt_length :] for t in texts]
    counters: dict[str, Any] = {m.name: getattr(m, "value", None) for m in llm.get_metrics()}
    drafts = counters["vllm:spec_decode_num_drafts"]
    return float(1 + counters["vllm:spec_decode_num_accepted_tokens"] / drafts)


@pytest.mark.parametrize("method", METHODS)
def test_a_drafter_is_made_and_drafts(method: str, folder: Path) -> None:
    result = json.loads(run(arguments(method), folder))
    assert length_of(result, "greedy") > 1.5  # a random head is right about never: 1.0
    out = folder / method / "drafter"
    assert {file.name for file in out.iterdir()} >= {"config.json", "model.safetensors", "README.md"}
    assert accepted_by_the_engine(folder, method) == pytest.approx(length_of(result, "greedy"), rel=0.05)


def write_small_model(folder: Path, target: Path) -> None:
    """One layer of the target, with its tokenizer."""
    import torch
    from transformers import LlamaForCausalLM

    from slipstream.training.draft_model import cut

    cut(LlamaForCausalLM.from_pretrained(target, dtype=torch.float32), 1).save_pretrained(folder)
    for file in target.iterdir():
        if file.name.startswith(("tokenizer", "special_tokens", "chat_template")):
            shutil.copy(file, folder)


def test_the_guide(tiny_llama: str, tmp_path: Path) -> None:
    """Its commands in order, with fewer texts; those that stay running are only read by `doctor`."""
    commands = [
        line for block in re.findall(r"```bash\n(.*?)```", GUIDE.read_text(), re.DOTALL)
        for line in block.replace("\\\n", " ").splitlines() if line.startswith("slipstream")
    ]  # fmt: skip
    assert len(commands) >= 4
    (tmp_path / "recipe.json").write_text(json.dumps(RECIPE))
    (tmp_path / "traffic.jsonl").write_text("".join(f'{{"prompt": "Count to {i}."}}\n' for i in range(8)))
    for name in ("model", "fine-tuned"):
        (tmp_path / name).symlink_to(tiny_llama)
    write_small_model(tmp_path / "small-model", Path(tiny_llama))
    (tmp_path / "domain.txt").write_text("Every clause of this contract binds both parties.\n" * 100)
    for command in commands:
        _, name, *options = shlex.split(command, comments=True)
        if name == "serve":
            name = "doctor"
        elif name == "train":
            options += shlex.split(
                "--texts 8 --max-tokens 16 --epochs 2 --recipe recipe.json --enforce-eager"
            )
        elif name in ("bench", "verify"):  # run by test_bench.py and test_verify.py
            continue
        run([name, *options], tmp_path)
