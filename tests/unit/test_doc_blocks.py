"""What README and docs tell people to type runs, here or in the test that is named, and its options exist."""

import contextlib
import io
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from typer.testing import CliRunner

from doc_blocks import BLOCKS, FILES, ROOT, RUNNABLE, VLLM, Block, exit_code
from slipstream.cli import app
from slipstream.config import SPECULATION_ARGUMENTS, SpeculationConfig
from slipstream.config.parse import CLASSIC_IGNORED
from slipstream.drafting import Proposer
from slipstream.serving.arms import read_arms
from slipstream.testing.proposers import check_proposer
from unit.folders import WORDS, write_model

NEED_NO_ENGINE = ("doctor", "pair", "predict", "report")
MOST_NOT_RUN = 9
HERE = [block for block in RUNNABLE if not block.runs and not block.not_run]

SERVE = {"--shadow", "--trace", "--host", "--help"} | {
    spelling
    for name in SPECULATION_ARGUMENTS | set(CLASSIC_IGNORED)
    for spelling in (f"--{name}", f"--{name.replace('_', '-')}")
}
OF_OTHERS = {
    "--build", "--count", "--dataset-name", "--dataset-path", "--examples", "--from-literal", "--gpus",
    "--hypothesis-profile", "--ipc", "--minutes", "--model", "--no-deps", "--schemathesis", "--seed",
    "--strict", "--wheel",
}  # fmt: skip
"""Of Docker, kubectl, vllm bench serve, pytest, pip, mkdocs, vLLM's server as a module and our scripts."""


def options() -> dict[str, set[str]]:
    """Return the options of each command; those of a command that passes on have `slipstream serve`'s too."""
    group: Any = typer.main.get_command(app)
    found = {}
    for name, command in group.commands.items():
        own = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
        passes_on = command.context_settings.get("ignore_unknown_options", False)
        found[name] = {"--help", *own, *(SERVE | VLLM if passes_on else ())}
    return found


OPTIONS = options()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What the blocks name: models, a drafter, results, a tuning."""
    write_model(tmp_path / "model", parameters=100_000)
    write_model(tmp_path / "drafter", parameters=2_000)
    write_model(tmp_path / "stranger", words=(*WORDS[:-1], "z"), parameters=2_000)
    (tmp_path / "benchmarks").symlink_to(ROOT / "benchmarks")
    (tmp_path / "tune-model").symlink_to(ROOT / "benchmarks" / "results" / "tune-edit")
    for name in ("MODEL", "$MODEL", "my-model"):
        (tmp_path / name).symlink_to(tmp_path / "model")
    (tmp_path / "train-model-eagle").mkdir()
    (tmp_path / "train-model-eagle" / "drafter").symlink_to(tmp_path / "drafter")
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    "block", [block for block in HERE if block.language == "bash"], ids=lambda block: block.name
)
@pytest.mark.usefixtures("folder")
def test_commands_run(block: Block) -> None:
    for line in block.text.splitlines():
        program, command, *arguments = shlex.split(line, comments=True)
        assert program == "slipstream"
        assert command in NEED_NO_ENGINE, "say above the block who runs it"
        done = CliRunner().invoke(app, [command, *arguments])
        assert done.exit_code == exit_code(line), (line, done.output, done.exception)


@pytest.mark.parametrize(
    "block",
    [block for block in RUNNABLE if any(command[0] == "serve" for command in block.commands)],
    ids=lambda block: block.name,
)
@pytest.mark.usefixtures("folder")
def test_servers_would_start(block: Block) -> None:
    """Whoever starts them: `slipstream doctor` accepts the same command line."""
    for command, *arguments in block.commands:
        if command == "serve":
            done = CliRunner().invoke(app, ["doctor", *arguments])
            assert done.exit_code == 0, (arguments, done.output, done.exception)


@pytest.mark.parametrize(
    "block", [block for block in HERE if block.language == "python"], ids=lambda block: block.name
)
def test_python_runs(block: Block) -> None:
    printed = io.StringIO()
    names: dict[str, Any] = {"__name__": "example"}
    with contextlib.redirect_stdout(printed):
        exec(compile(block.text, block.name, "exec"), names)
    assert printed.getvalue().rstrip("\n") == block.output
    for made in names.values():
        if isinstance(made, type) and issubclass(made, Proposer) and made is not Proposer:
            check_proposer(made)


@pytest.mark.parametrize("block", [b for b in RUNNABLE if b.runs], ids=lambda block: block.name)
def test_who_runs_it_is_there(block: Block) -> None:
    if block.runs == ("server",):
        return
    texts = [(ROOT / file).read_text() for file in block.runs]
    for command in block.commands:
        assert any(command[0] in text for text in texts), f"no test of {block.runs} runs {command[0]}"


def test_few_are_not_run() -> None:
    reasons = {block.name: block.not_run for block in RUNNABLE if block.not_run}
    assert all(reasons.values())
    assert len(reasons) <= MOST_NOT_RUN, reasons


@pytest.mark.parametrize("block", [b for b in RUNNABLE if b.commands], ids=lambda block: block.name)
def test_options_of_commands_exist(block: Block) -> None:
    for command, *arguments in block.commands:
        assert command in OPTIONS
        allowed = SERVE | VLLM if command == "serve" else OPTIONS[command]
        given = {word.partition("=")[0] for word in arguments if word.startswith("--")}
        assert given <= allowed, (block.name, given - allowed)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.relative_to(ROOT).as_posix())
def test_options_in_the_text_exist(file: Path) -> None:
    if file.name == "results.md":
        pytest.skip("commands as they were given then")
    known = SERVE | VLLM | OF_OTHERS | set().union(*OPTIONS.values())
    found = set(re.findall(r"(?<![\w-])--[A-Za-z][\w-]*", re.sub(r"<!--.*?-->", "", file.read_text())))
    assert found <= known, found - known


@pytest.mark.parametrize(
    "block", [block for block in BLOCKS if block.language == "yaml"], ids=lambda block: block.name
)
def test_configurations_are_valid(block: Block, tmp_path: Path) -> None:
    content = yaml.safe_load(block.text)
    if isinstance(content, list):
        (tmp_path / "arms.yaml").write_text(block.text)
        assert len(read_arms([], tmp_path / "arms.yaml")) == len(content)
    else:
        SpeculationConfig.build(content)


def test_an_option_that_is_gone_is_found() -> None:
    assert "--speculate" in SERVE
    assert "--arm" in OPTIONS["bench"]
    assert "--arm" not in OPTIONS["predict"]
    assert "--enforce-eager" not in OPTIONS["predict"]
