"""Attack a server with hostile inputs, or load it for long: is it up, and is everybody else's text right?

    python benchmarks/reliability.py hostile MODEL --count 10000 --out FOLDER
    python benchmarks/reliability.py soak MODEL --minutes 30 --out FOLDER
    python benchmarks/reliability.py openapi MODEL --examples 50 --out FOLDER

Meanwhile requests whose greedy text is known (the server's own without speculation, float32) are asked again
and again, and compared. The soak has a small KV cache, so that requests are preempted, clients that cancel or
hang up, and the tests' faults (`tests/engine/planted.py`): a proposer that fails in one call of ten, one that
takes half a second in one call of a hundred, and a drafter that fails in one call of ten and dies some
minutes later. After 20 faults a proposer is left out for 1,000 steps, and longer each time. `openapi` sends
what Schemathesis makes of the server's own schema, and what fails to bare vLLM too (`openapi.py`).
"""

import argparse
import asyncio
import contextlib
import json
import os
import random
import re
import shutil
import signal
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import httpx
import openapi
import psutil
from scipy.stats import linregress

from slipstream.reporting.run_metadata import about_this_run
from slipstream.serving.arms import Arm
from slipstream.serving.servers import Server, ServerError, running
from slipstream.testing import models

AT_ONCE = 8
KNOWN_TOKENS = 24
KNOWN = (
    "Monday, Tuesday, Wednesday,",
    "The capital of France is",
    "red, green, blue, red, green, blue, red,",
    "def add(a, b):\n    return",
    "Count: one, two, three, four,",
    '{"name": "Ann", "age": 31}\n{"name": "Bob", "age":',
)
FLAGS = ("--dtype", "float32", "--enforce-eager", "--max-model-len", "2048")
KEY = "a key"
VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1e308, 3.5, 2**63, "", "x", "off", "auto", "\x00", "\ud800", [], [[]], {},
    {"a": 1}, "x" * 10_000, [1] * 1000, "../../etc/passwd",
)  # fmt: skip
FIELDS = (
    "prompt", "messages", "max_tokens", "temperature", "top_p", "top_k", "min_p", "n", "stop", "logit_bias",
    "seed", "logprobs", "stream", "stream_options", "user", "presence_penalty", "repetition_penalty",
    "response_format", "structured_outputs", "vllm_xargs", "cache_salt", "priority", "bad_words",
    "min_tokens", "tools", "tool_choice", "prompt_logprobs", "truncate_prompt_tokens", "allowed_token_ids",
    "kv_transfer_params", "request_id",
)  # fmt: skip
# A thousand times as many `minItems` keep vLLM 0.32's API server busy for minutes (docs/reliability.md).
SCHEMAS: tuple[Any, ...] = (
    {"type": "nothing"}, {"type": "object", "properties": {"a": {"$ref": "#/$defs/none"}}}, {"$ref": "#"},
    {"enum": []}, {"enum": [f"value {i}" for i in range(3000)]}, {"type": "string", "pattern": "(a+)+$"},
    {"type": "string", "pattern": "[" * 50}, {"type": "array", "minItems": 10**6}, "not a schema", 7,
    {"type": "object", "properties": {f"p{i}": {"type": "integer"} for i in range(300)}},
)  # fmt: skip
REGEXES = (
    "(a+)+b", "[", "a{1,100000}", "(?<=x)y", "", ".*" * 50, "\\p{L}+", "(((((((((a?)?)?)?)?)?)?)?)?)",
)  # fmt: skip
SAMPLING: dict[str, tuple[Any, ...]] = {
    "temperature": (-1, 0, 1e-9, 1e9, 2),
    "top_p": (-1, 0, 1e-9, 1, 2),
    "top_k": (-2, 0, 1, 10**9),
    "n": (0, 1, 3, 10**6),
    "logit_bias": ({}, {"-1": 5}, {"99999999": 5}, {"1": 1e9}),
}
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
OUR_PATHS = ("/v1/slipstream/plan", "/v1/slipstream/../plan", "/v1/slipstream/%00", "/metrics?x=")


@dataclass(frozen=True)
class Call:
    body: bytes
    path: str = COMPLETIONS
    method: str = "POST"


def usual(chance: random.Random) -> dict[str, Any]:
    asked: dict[str, Any] = {"model": "m", "max_tokens": 4}
    if chance.random() < 0.5:
        return {**asked, "prompt": "Hello"}
    return {**asked, "messages": [{"role": "user", "content": "Hello"}]}


def call(body: dict[str, Any], **more: Any) -> Call:
    path = CHAT if "messages" in body else COMPLETIONS
    return Call(json.dumps(body).encode("utf-8", "surrogatepass"), **{"path": path, **more})


def random_bytes(chance: random.Random) -> Call:
    begun = chance.choice((b"", b'{"model": "m", "prompt": "'))
    return Call(begun + chance.randbytes(chance.randrange(200)))


def wrong_types(chance: random.Random) -> Call:
    fields = chance.sample(FIELDS, chance.randrange(1, 4))
    return call(usual(chance) | {field: chance.choice(VALUES) for field in fields})


def repetition(chance: random.Random) -> Call:
    unit = [chance.randrange(1000) for _ in range(chance.choice((1, 2, 3, 7, 50)))]
    return call({"model": "m", "prompt": (unit * 2000)[: chance.choice((100, 1900))], "max_tokens": 8})


def too_long(chance: random.Random) -> Call:
    return call({"model": "m", "prompt": [1] * chance.choice((4096, 4096, 131_072)), "max_tokens": 4})


def grammar(chance: random.Random) -> Call:
    wanted = chance.choice(({"regex": chance.choice(REGEXES)}, {"json": chance.choice(SCHEMAS)}))
    return call(usual(chance) | {"structured_outputs": wanted})


def our_argument(chance: random.Random) -> Call:
    name = chance.choice(("speculate", "speculate", "other", ""))
    return call(usual(chance) | {"vllm_xargs": {name: chance.choice(VALUES)}})


def names(chance: random.Random) -> Call:
    model = chance.choice(("m", "../m", "m/../../x", "lora:x", "", "x" * 5000, "\x00"))
    return call(usual(chance) | {"model": model, "cache_salt": chance.choice(VALUES)})


def sampling(chance: random.Random) -> Call:
    return call(usual(chance) | {field: chance.choice(values) for field, values in SAMPLING.items()})


def paths(chance: random.Random) -> Call:
    method = chance.choice(("GET", "PUT", "DELETE", "POST", "PATCH"))
    return call(usual(chance), path=chance.choice(OUR_PATHS), method=method)


KINDS: tuple[Callable[[random.Random], Call], ...] = (
    random_bytes, wrong_types, repetition, too_long, grammar, our_argument, names, sampling, paths,
)  # fmt: skip


class KnownTexts:
    """Asks for texts that are known, and counts those that are not as they should be."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client = client
        self._texts: dict[str, str] = {}
        self.asked, self.wrong, self.failed = 0, 0, 0
        self._asked_again: Counter[str] = Counter()

    async def learn(self) -> None:
        for prompt in KNOWN:
            self._texts[prompt] = await self._write(prompt, {"vllm_xargs": {"speculate": "off"}})

    async def check(self) -> None:
        prompt = KNOWN[self.asked % len(KNOWN)]
        self.asked += 1
        try:
            self.wrong += await self._ask(prompt) != self._texts[prompt]
        except (httpx.HTTPError, ValueError, LookupError, TypeError):
            self.failed += 1

    async def _ask(self, prompt: str) -> str:
        """Return the text. If the connection is closed without an answer, ask once more, as OpenAI's client
        does: vLLM closes one that was idle for five seconds, also when it could not read meanwhile."""
        try:
            return await self._write(prompt, {})
        except httpx.TransportError as error:
            self._asked_again[type(error).__name__] += 1
            return await self._write(prompt, {})

    async def _write(self, prompt: str, more: dict[str, Any]) -> str:
        body = {"model": "m", "prompt": prompt, "max_tokens": KNOWN_TOKENS, "temperature": 0, **more}
        answer = await self._client.post("/v1/completions", json=body)
        return str(answer.json()["choices"][0]["text"])

    def as_dict(self) -> dict[str, Any]:
        counts = {"asked": self.asked, "wrong": self.wrong, "failed": self.failed}
        return counts | {"asked again": dict(self._asked_again)}


def client_of(server: Server) -> httpx.AsyncClient:
    headers = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}
    return httpx.AsyncClient(base_url=server.url, timeout=300, headers=headers)


def is_up(server: Server) -> bool:
    try:
        return server.is_healthy()
    except ServerError:  # its process has ended
        return False


async def attack(server: Server, count: int, seed: int) -> dict[str, Any]:
    """Send hostile requests, some at once, and known ones between them; fewer if SIGTERM comes."""
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    answered: defaultdict[str, Counter[str]] = defaultdict(Counter)
    chance = random.Random(seed)
    source = ((kind.__name__, kind(chance)) for kind in islice(cycle(KINDS), count))
    async with client_of(server) as client:
        known = KnownTexts(client)
        await known.learn()

        async def send() -> None:
            for kind, asked in source:
                if stopped.is_set():
                    return
                try:
                    answer = await client.request(asked.method, asked.path, content=asked.body)
                    answered[kind][str(answer.status_code)] += 1
                except httpx.HTTPError as error:
                    answered[kind][type(error).__name__] += 1

        attacks = [asyncio.create_task(send()) for _ in range(AT_ONCE)]
        while not all(task.done() for task in attacks):
            await known.check()
        await asyncio.gather(*attacks)
    return {
        "requests": sum(sum(kinds.values()) for kinds in answered.values()),
        "answered": answered,
        "known texts": known.as_dict(),
        "up": is_up(server),
        "open without the key": await without_key(server.url) if is_up(server) else None,
    }


async def without_key(url: str) -> list[str]:
    """Return our paths, and vLLM's that write text, which answer without the key."""
    async with httpx.AsyncClient(base_url=url, timeout=30) as client:
        asked = {
            "/v1/slipstream/plan": await client.get("/v1/slipstream/plan"),
            "/v1/completions": await client.post("/v1/completions", json={"model": "m", "prompt": "x"}),
        }
    return [path for path, answer in asked.items() if answer.status_code != 401]


async def soak(server: Server, minutes: float) -> dict[str, Any]:
    """Send all kinds of requests for so long; some are cancelled while they are written."""
    ends = time.monotonic() + 60 * minutes
    counts: Counter[str] = Counter()
    memory: list[tuple[float, float]] = []
    async with client_of(server) as client:
        known = KnownTexts(client)
        await known.learn()

        async def until_the_end(do: Callable[[random.Random], Awaitable[None]], seed: int) -> None:
            chance = random.Random(seed)
            while time.monotonic() < ends:
                await do(chance)

        async def ask_something(chance: random.Random) -> None:
            body = a_request(chance)
            kind = chance.choice(("whole", "whole", "stream", "hang up"))
            counts[kind] += 1
            try:
                if kind == "whole":
                    answer = await client.post("/v1/completions", json=body)
                    counts[f"status {answer.status_code}"] += 1
                    return
                async with client.stream("POST", "/v1/completions", json={**body, "stream": True}) as answer:
                    left = chance.randrange(1, 8) if kind == "hang up" else 10**6
                    async for _ in answer.aiter_lines():
                        left -= 1
                        if left == 0:
                            return
                counts[f"status {answer.status_code}"] += 1
            except httpx.HTTPError as error:
                counts[type(error).__name__] += 1

        async def ask_known(chance: random.Random) -> None:
            await known.check()

        async def weigh(chance: random.Random) -> None:
            memory.append((time.monotonic(), megabytes(server.process.pid)))
            await asyncio.sleep(5)

        tasks = [until_the_end(ask_something, seed) for seed in range(2 * AT_ONCE)]
        await asyncio.gather(*tasks, until_the_end(ask_known, 0), until_the_end(weigh, 0))
        await asyncio.sleep(5)
        metrics = (await client.get("/metrics")).text if is_up(server) else ""
    running_now = [line for line in metrics.splitlines() if line.startswith("vllm:num_requests_running")]
    return {
        "minutes": minutes, "requests": dict(counts), "known texts": known.as_dict(),
        "up": is_up(server),
        "still running": sum(float(line.rpartition(" ")[2]) for line in running_now),
        "memory": slope(memory), "counters": counters(metrics),
    }  # fmt: skip


async def try_openapi(
    server: Server, bare: Server, schemathesis: Path, examples: int, folder: Path
) -> dict[str, Any]:
    """Send what Schemathesis makes of the server's schema, and known requests between; repeat what failed."""
    folder.mkdir(parents=True, exist_ok=True)
    report, log = folder / "report.ndjson", folder / "log.txt"
    command = openapi.command(schemathesis.absolute(), server.url, KEY, examples, report)
    async with client_of(server) as client:
        known = KnownTexts(client)
        await known.learn()
        with log.open("w") as output:
            process = await asyncio.create_subprocess_exec(*command, cwd=folder, stdout=output, stderr=output)
        ended = asyncio.create_task(process.wait())
        while not ended.done():
            await known.check()
    lines = report.read_text(encoding="utf-8").splitlines() if report.exists() else []
    events = [json.loads(line) for line in lines]
    sent = list(openapi.read_sent(events, server.url))
    if not sent:
        raise SystemExit(f"Schemathesis sent nothing; its output is in {log}")
    answered: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for request in sent:
        answered[request.operation][request.answer.split()[0]] += 1
    failed = [request for request in sent if request.failed]
    only_ours = await openapi.fails_only_here(failed, server.url, bare.url)
    return {
        "schemathesis": events[0]["Initialize"]["schemathesis_version"],
        "checks": openapi.CHECKS, "left out": openapi.ALTERING,
        "stopped": [event["EngineFinished"]["stop_reason"] for event in events if "EngineFinished" in event],
        "requests": len(sent), "answered": answered, "errors": openapi.errors_of(events),
        "failed": Counter(check for request in failed for check in request.failed),
        "fail on bare vLLM too": len(failed) - len(only_ours), "fail only here": only_ours,
        "known texts": known.as_dict(),
        "up": is_up(server),
        "open without the key": await openapi.open_operations(server.url) if is_up(server) else None,
    }  # fmt: skip


def a_request(chance: random.Random) -> dict[str, Any]:
    words = chance.choices(
        ("red", "green", "blue", "one", "two", "the", "of", "stone"), k=chance.randrange(4, 200)
    )
    body: dict[str, Any] = {
        "model": "m", "prompt": " ".join(words), "max_tokens": chance.randrange(4, 120),
        "temperature": chance.choice((0, 0, 0.7, 1.0)),
    }  # fmt: skip
    match chance.randrange(8):
        case 0:
            body["structured_outputs"] = {"regex": "(red|green|blue) (one|two)"}
        case 1:
            body["vllm_xargs"] = {"speculate": chance.choice(("off", "auto", 4))}
        case 2:
            body["n"] = 2
        case 3:
            body["cache_salt"] = chance.choice(("a", "b"))
    return body


def megabytes(pid: int) -> float:
    """Return the anonymous memory of the server and all its processes, resident or swapped out: pages of
    files come and go as the machine likes."""
    size = 0
    for process in (psutil.Process(pid), *psutil.Process(pid).children(recursive=True)):
        with contextlib.suppress(OSError):
            status = Path(f"/proc/{process.pid}/status").read_text()
            size += sum(int(kib) for kib in re.findall(r"^(?:RssAnon|VmSwap):\s+(\d+) kB", status, re.M))
    return size / 2**10


def slope(memory: list[tuple[float, float]]) -> dict[str, float]:
    """Return by how much it grows, after the first third, in MiB an hour, with its interval."""
    kept = memory[len(memory) // 3 :]
    fit = linregress([at / 3600 for at, _ in kept], [size for _, size in kept])
    return {
        "MiB": round(kept[-1][1], 1), "MiB an hour": round(fit.slope, 1),
        "low": round(fit.slope - 2 * fit.stderr, 1),
        "high": round(fit.slope + 2 * fit.stderr, 1),
    }  # fmt: skip


def counters(metrics: str) -> dict[str, float]:
    wanted = ("slipstream_faults", "vllm:num_preemptions", "slipstream_drafts", "slipstream_pause")
    return {
        name: float(value)
        for name, _, value in (line.rpartition(" ") for line in metrics.splitlines())
        if name.startswith(wanted) and "_created" not in name
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=("hostile", "soak", "openapi"))
    parser.add_argument("model")
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0, help="hostile: for other inputs")
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument(
        "--bare", action="store_true", help="soak, hostile: without speculation, for comparison"
    )
    parser.add_argument("--examples", type=int, default=50, help="for each operation")
    parser.add_argument(
        "--schemathesis", type=Path, default=shutil.which("schemathesis"), help="its executable"
    )
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    if options.what == "openapi" and not options.schemathesis:
        parser.error("schemathesis is not on the PATH: give its executable by --schemathesis")
    speculate: Any = {"ngram": {}, "suffix": {"share": "salt"}}
    if options.what == "soak":
        speculate["plugins"] = {"engine.planted.FaultyNgram": {}, "engine.planted.StallingNgram": {}}
        speculate["drafter"] = {"model": str(models.drafter())}
    path = [str(Path(__file__).parents[1] / "tests"), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {"VLLM_API_KEY": KEY, "PYTHONPATH": os.pathsep.join(path)}
    memory = 192 if options.what == "soak" else 1024
    flags = [*FLAGS, "--served-model-name", "m", "--kv-cache-memory-bytes", str(memory << 20)]
    if options.what == "soak":
        flags += ["--max-num-seqs", "16"]
        flags += [] if options.bare else ["--worker-cls", "engine.planted.DyingDrafterWorker"]
    if options.what == "openapi":
        environment["VLLM_MAX_N_SEQUENCES"] = "8"
        flags += ["--override-generation-config", json.dumps({"max_new_tokens": KNOWN_TOKENS})]
    arms = [Arm("auto", "off" if options.bare else json.dumps(speculate), environment)]
    if options.what == "openapi":
        arms.append(Arm("bare", environment=environment))
    with running(options.model, arms, flags, options.out / "servers", timed=False) as servers:
        server = servers["auto"]
        match options.what:
            case "hostile":
                work = attack(server, options.count, options.seed)
            case "soak":
                work = soak(server, options.minutes)
            case _:
                folder = (options.out / "schemathesis").resolve()
                work = try_openapi(server, servers["bare"], options.schemathesis, options.examples, folder)
        found = asyncio.run(work)
    found = {"about": about_this_run(), **found}
    name = f"{options.what}-bare" if options.bare else options.what
    (options.out / f"{name}.json").write_text(json.dumps(found, indent=1) + "\n")
    sys.stdout.write(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
