"""Kill one of two replicas of a Ray Serve application under load: which requests fail, and when is it back?

    python benchmarks/ray_serve.py MODEL --out FILE.json

Ray is not in our locks. In a copy of the environment of requirements/cpu.lock: pip install 'ray[serve]'.
The application is `deploy/ray-serve/completions.py`, on loopback; SLIPSTREAM in the environment says how it
speculates (auto, if it is not set). A replica is killed with its engine, as by a machine that is gone. All
texts are compared with those of a replica without Slipstream.
"""

import argparse
import asyncio
import json
import os
import signal
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from types import ModuleType
from typing import Any

import httpx
import psutil

from slipstream.engine.plugin import SPECULATE_VARIABLE
from slipstream.reporting.run_metadata import about_this_run
from slipstream.serving.servers import free_port

APPLICATION = Path(__file__).parents[1] / "deploy" / "ray-serve"
ENGINE = {"enforce_eager": True, "dtype": "float32", "max_model_len": 512, "max_num_seqs": 16}
PROMPTS = (
    "one two one two one two",
    "red green blue red green blue",
    "The capital of France is",
    "a b c a b c",
)
FIRST_ANSWER_SECONDS = 900


@dataclass(frozen=True)
class Outcome:
    begun: float
    ended: float
    replica: int | None
    """The process that answered; None if the request failed."""
    text: str = ""
    error: str = ""


def import_ray() -> ModuleType:
    try:
        import ray
        import ray.serve
    except ImportError:
        sys.exit(
            "Ray Serve is not installed. In a copy of the environment of requirements/cpu.lock: "
            "pip install 'ray[serve]', and run this again there"
        )
    return ray


async def ask(client: httpx.AsyncClient, number: int, max_tokens: int) -> Outcome:
    body = {"prompt": PROMPTS[number % len(PROMPTS)], "max_tokens": max_tokens, "temperature": 0}
    begun = time.monotonic()
    try:
        answer = await client.post("/", json=body)
        answer.raise_for_status()
        found = answer.json()
        return Outcome(begun, time.monotonic(), found["replica"], found["text"])
    except (httpx.HTTPError, ValueError, KeyError) as error:
        return Outcome(begun, time.monotonic(), None, error=f"{type(error).__name__}: {error}"[:200])


async def wait_for_replicas(client: httpx.AsyncClient, count: int) -> set[int]:
    """Return the processes of the replicas, once so many of them have answered."""
    seen: set[int] = set()
    deadline = time.monotonic() + FIRST_ANSWER_SECONDS
    while len(seen) < count:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{len(seen)} of {count} replicas answered within {FIRST_ANSWER_SECONDS} s")
        outcomes = await asyncio.gather(*(ask(client, number, 1) for number in range(4 * count)))
        seen |= {outcome.replica for outcome in outcomes if outcome.replica is not None}
        await asyncio.sleep(1)
    return seen


def kill(replica: int) -> None:
    """Kill a replica's process and all that it has started."""
    processes = [psutil.Process(replica), *psutil.Process(replica).children(recursive=True)]
    for process in processes:
        try:
            process.send_signal(signal.SIGKILL)
        except psutil.NoSuchProcess:
            continue


def client_of(address: str) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=address, timeout=300, limits=httpx.Limits(max_connections=None))


async def texts_of(address: str, max_tokens: int) -> list[str]:
    """Return the text of each prompt, asked one after another."""
    async with client_of(address) as client:
        return [(await ask(client, number, max_tokens)).text for number in range(len(PROMPTS))]


async def run(address: str, options: argparse.Namespace, texts: list[str]) -> dict[str, Any]:
    """Load the replicas, kill one, and wait for another; `texts` are what bare vLLM writes."""
    async with client_of(address) as client:
        replicas = await wait_for_replicas(client, options.replicas)
        outcomes: list[Outcome] = []
        wrong = 0
        over = asyncio.Event()

        async def user(first: int) -> None:
            nonlocal wrong
            number = first
            while not over.is_set():
                outcome = await ask(client, number, options.max_tokens)
                outcomes.append(outcome)
                wrong += outcome.replica is not None and outcome.text != texts[number % len(PROMPTS)]
                number += 1
                if outcome.replica is None:
                    await asyncio.sleep(0.2)

        users = [asyncio.create_task(user(number)) for number in range(options.users)]
        await asyncio.sleep(options.before)
        killed = min(replicas)
        at = time.monotonic()
        kill(killed)
        back: float | None = None
        while back is None and time.monotonic() - at < options.at_most:
            await asyncio.sleep(0.5)
            new = [o.ended for o in outcomes if o.replica is not None and o.replica not in replicas]
            back = min(new, default=None)
        await asyncio.sleep(options.before)  # with all of them again
        over.set()
        await asyncio.gather(*users)
    found = {**summarise(outcomes, at), "texts that are not bare vLLM's": wrong}
    return {**found, "seconds until a new replica answered": rounded(back, at)}


def summarise(outcomes: list[Outcome], killed: float) -> dict[str, Any]:
    failed = [outcome for outcome in outcomes if outcome.replica is None]
    in_flight = [outcome for outcome in outcomes if outcome.begun <= killed <= outcome.ended]
    last = max((outcome.ended for outcome in failed), default=None)
    seconds = {
        name: [o.ended - o.begun for o in outcomes if o.replica is not None and (o.begun < killed) == earlier]
        for name, earlier in (("before", True), ("after", False))
    }
    return {
        "requests": len(outcomes),
        "in flight when it was killed": len(in_flight),
        "failed": len(failed),
        "failed of those in flight": sum(outcome.replica is None for outcome in in_flight),
        "failed of those begun later": sum(outcome.begun > killed for outcome in failed),
        "seconds until the last failure": rounded(last, killed),
        "errors": Counter(outcome.error for outcome in failed),
        "median seconds of a request": {
            name: round(median(s), 3) if s else None for name, s in seconds.items()
        },
    }


def rounded(moment: float | None, since: float) -> float | None:
    return None if moment is None else round(moment - since, 2)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--users", type=int, default=8, help="each sends one request after another")
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--before", type=float, default=20, help="seconds of load before and after")
    parser.add_argument("--at-most", type=float, default=300, help="seconds to wait for a new replica")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    ray = import_ray()
    speculate = os.environ.pop(SPECULATE_VARIABLE, "auto")
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(APPLICATION), os.environ.get("PYTHONPATH")]))
    sys.path.insert(0, str(APPLICATION))
    from completions import build

    port = free_port()
    # As many places as there are replicas, on however few cores: it is not speed that is measured.
    ray.init(
        num_cpus=2 * options.replicas + 2, include_dashboard=False, configure_logging=False,
        _node_ip_address="127.0.0.1",
    )  # fmt: skip
    try:
        ray.serve.start(http_options={"host": "127.0.0.1", "port": port})
        model = str(Path(options.model).resolve()) if Path(options.model).exists() else options.model
        arguments = {"model": model, "cores": 1, **ENGINE}
        address = f"http://127.0.0.1:{port}"
        ray.serve.run(build(arguments), blocking=False)
        texts = asyncio.run(texts_of(address, options.max_tokens))
        ray.serve.delete("default")
        os.environ[SPECULATE_VARIABLE] = speculate
        ray.serve.run(build({**arguments, "replicas": options.replicas}), blocking=False)
        found = asyncio.run(run(address, options, texts))
    finally:
        ray.serve.shutdown()
        ray.shutdown()
    content = {"about": about_this_run(), "ray": ray.__version__, **found}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(content, indent=1) + "\n")
    sys.stdout.write(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
