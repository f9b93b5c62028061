"""The blocks of commands and code in README and docs, and who runs them.

A block is run by `tests/unit/test_doc_blocks.py` unless a comment above it says otherwise:

    <!-- runs: server -->                   by `tests/e2e/test_doc_blocks.py`, on a shared server
    <!-- runs: tests/e2e/test_bench.py -->  by that test, with settings of its own
    <!-- not run: why -->                   by none
"""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
FILES = sorted([*(ROOT / name for name in ("README.md", "CONTRIBUTING.md")), *(ROOT / "docs").rglob("*.md")])
MARK = re.compile(r"\s*<!-- (runs|not run): (.+) -->")
FENCE = re.compile(r"(\s*)```(\w*)")

VLLM = {
    "--async-scheduling", "--config", "--dtype", "--enforce-eager", "--gpu-memory-utilization",
    "--kv-cache-memory-bytes", "--logprobs-mode", "--max-model-len", "--max-num-seqs", "--port",
    "--tensor-parallel-size",
}  # fmt: skip
"""Options of `vllm serve` that the docs use; `tests/e2e/test_doc_blocks.py` asks vLLM whether it has them."""


@dataclass(frozen=True)
class Block:
    file: str
    line: int
    language: str
    text: str
    runs: tuple[str, ...] = ()
    """Who runs it, if another test than the default one."""
    not_run: str = ""
    output: str = ""
    """Of the text block that follows directly, what it prints."""

    @property
    def name(self) -> str:
        return f"{self.file}:{self.line}"

    @property
    def commands(self) -> list[list[str]]:
        """Return the arguments of each `slipstream` command in it."""
        lines = self.text.replace("\\\n", " ").splitlines()
        found = [shlex.split(line, comments=True) for line in lines if line.strip().startswith("slipstream ")]
        return [[word for word in words[1:] if word != "&"] for words in found]


def exit_code(line: str) -> int:
    """Return what a command is said to end with: `slipstream doctor ...  # exit code 1`."""
    match = re.search(r"# exit code (\d+)", line)
    return int(match[1]) if match else 0


def blocks_of(file: Path) -> Iterator[Block]:
    lines = file.read_text().splitlines()
    at = 0
    while at < len(lines):
        begun = FENCE.fullmatch(lines[at])
        if begun is None:
            at += 1
            continue
        indent, language = begun.groups()
        end = next(i for i in range(at + 1, len(lines)) if lines[i] == f"{indent}```")
        text = "\n".join(line.removeprefix(indent) for line in lines[at + 1 : end])
        mark = MARK.fullmatch(lines[at - 1]) if at else None
        runs: tuple[str, ...] = ()
        not_run = output = ""
        if mark and mark[1] == "runs":
            runs = tuple(mark[2].split(", "))
        elif mark:
            not_run = mark[2]
        if lines[end + 1 : end + 3] == ["", "```text"]:
            closed = lines.index("```", end + 3)
            output = "\n".join(lines[end + 3 : closed])
        yield Block(file.relative_to(ROOT).as_posix(), at + 1, language, text, runs, not_run, output)
        at = end + 1


BLOCKS = [block for file in FILES for block in blocks_of(file)]
RUNNABLE = [block for block in BLOCKS if block.language in ("bash", "python")]
