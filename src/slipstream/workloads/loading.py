"""Workloads: where the requests of a benchmark come from."""

import gzip
import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from itertools import pairwise
from pathlib import Path
from typing import Any

from slipstream.engine.load_generator import Request, load_dataset
from slipstream.errors import ConfigError
from slipstream.fingerprint import fingerprint

SHIPPED = ("chat", "code", "math", "summarise", "edit", "rag", "json", "tools")
BODY = ("response_format",)  # keys of a row that go into the request as they are
VLLM_PROMPTS = 64  # taken from a dataset loader of vLLM

GOLDEN = 0.618034  # its multiples fill the unit interval evenly, however many there are
COMPLETE = "Complete the following Python function. Return the whole function.\n\n```python\n{}\n```"


@dataclass(frozen=True)
class Workload:
    name: str
    requests: tuple[Request, ...]

    @property
    def fingerprint(self) -> str:
        """Tells whether a resumed run has the same requests; the text itself is not written anywhere."""
        return fingerprint([[r.messages, r.prompt, r.max_tokens, dict(r.body)] for r in self.requests])

    def spread(self, share: float) -> "Workload":
        """Return the same requests with limits of their answers spread evenly over +- `share`. With one limit
        for all, requests that start together end together."""
        requests = []
        for number, request in enumerate(self.requests):
            longer = share * (2 * (number * GOLDEN % 1) - 1)  # from -share to share
            requests.append(replace(request, max_tokens=max(round(request.max_tokens * (1 + longer)), 2)))
        return replace(self, requests=tuple(requests))

    def take(self, start: int, count: int) -> list[Request]:
        """Return `count` requests from `start` on, beginning again at the end."""
        return [self.requests[(start + i) % len(self.requests)] for i in range(count)]


def load_workloads(texts: Sequence[str], max_tokens: int, tokenizer: str) -> list[Workload]:
    workloads = [load_workload(text, max_tokens, tokenizer) for text in texts]
    names = [workload.name for workload in workloads]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigError(f"two workloads are named {twice[0]!r}; rename a file, they are told apart by name")
    return workloads


def load_workload(text: str, max_tokens: int, tokenizer: str) -> Workload:
    """Return one of `SHIPPED`; a file of JSON lines, `FILE#CATEGORY` for a part of it; or `vllm: FLAGS`, a
    dataset loader of `vllm bench serve` with its own flags."""
    if text.startswith("vllm:"):
        flags = shlex.split(text.removeprefix("vllm:"))
        name = next((b for a, b in pairwise(flags) if a == "--dataset-name"), "dataset")
        return Workload(name, tuple(load_dataset(flags, tokenizer, VLLM_PROMPTS, max_tokens)))
    if text in SHIPPED:
        content = resources.files("slipstream.workloads").joinpath("prompts", f"{text}.jsonl").read_text()
        return Workload(text, _requests(text, content, None, max_tokens))
    path, _, category = text.partition("#")
    file = Path(path)
    if not file.is_file():
        raise ConfigError(
            f"workload {text!r}: no such file, and not one of ours ({', '.join(SHIPPED)}); "
            "for a dataset of vLLM write 'vllm: --dataset-name NAME ...'"
        )
    data = file.read_bytes()
    content = (gzip.decompress(data) if file.suffix == ".gz" else data).decode()
    name = file.name.removesuffix(".gz").rpartition(".")[0] + (f"-{category}" if category else "")
    return Workload(name, _requests(text, content, category or None, max_tokens))


def _requests(where: str, content: str, category: str | None, max_tokens: int) -> tuple[Request, ...]:
    try:
        rows = json.loads(content) if content.lstrip().startswith("[") else _lines(content)
    except ValueError as error:
        raise ConfigError(f"workload {where}: not JSON: {error}") from None
    if category is not None:
        known = sorted({str(row.get("category")) for row in rows})
        rows = [row for row in rows if row.get("category") == category]
        if not rows:
            raise ConfigError(f"workload {where}: no category {category!r}; there are {', '.join(known)}")
    requests = [
        Request(messages, None, max_tokens, {key: row[key] for key in BODY if key in row})
        for row in rows
        if (messages := _messages(row))
    ]
    if not requests:
        raise ConfigError(
            f"workload {where}: no layout that is known. A line needs messages, turns (Spec-Bench, "
            "MT-Bench), conversations (ShareGPT), question (GSM8K) or prompt (HumanEval)"
        )
    return tuple(requests)


def _lines(content: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in content.splitlines() if line.strip()]


def _messages(row: Mapping[str, Any]) -> list[dict[str, Any]] | None:
    """Return the conversation up to the first answer: later turns would need that answer."""
    if messages := row.get("messages"):
        return _until_answer([(m["role"], m["content"]) for m in messages])
    if turns := row.get("turns"):
        return _user(turns[0])
    if conversation := row.get("conversations"):
        roles = {"human": "user", "gpt": "assistant"}
        return _until_answer([(roles.get(t["from"], t["from"]), t["value"]) for t in conversation])
    if question := row.get("question"):
        return _user(question)
    if prompt := row.get("prompt"):
        return _user(COMPLETE.format(prompt) if "task_id" in row else prompt)
    return None


def _until_answer(turns: Sequence[tuple[str, str]]) -> list[dict[str, Any]] | None:
    messages: list[dict[str, Any]] = []
    for role, content in turns:
        if role == "assistant" and messages:
            break
        messages.append({"role": role, "content": content})
    return messages if any(m["role"] == "user" for m in messages) else None


def _user(text: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text}]
