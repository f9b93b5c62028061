"""The features of `slipstream verify` on vLLM's own n-gram speculation, without Slipstream: which of the
reported faults are there in this version. A server that dies is started again for the next feature.

    python benchmarks/known_bad.py MODEL OUT
"""

import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

FLAGS = ["--dtype", "float32", "--enforce-eager", "--max-model-len", "2048"]
NGRAM = '{"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 4, "prompt_lookup_min": 2}'
START_SECONDS = 300


def main() -> None:
    from slipstream.reporting.run_metadata import about_this_run
    from slipstream.serving.client import Served
    from slipstream.verify.checks import FEW, conversations
    from slipstream.verify.known_bad import CASES, TIGHT

    model, out = sys.argv[1], Path(sys.argv[2])
    out.parent.mkdir(parents=True, exist_ok=True)
    found = []
    first = [case for case in CASES if not case.tight]
    first = [*first[1:], first[0]]  # a cache hit: by then the prompts have been read
    for flags, cases in ((FLAGS, first), ([*FLAGS, *TIGHT], [case for case in CASES if case.tight])):
        with serving(model, flags) as bare_url:
            bare = Served(bare_url)
            prompts = conversations(bare, FEW, ["edit", "chat", "code"])
            while cases:
                with serving(model, [*flags, "--speculative-config", NGRAM]) as url:
                    while cases and is_healthy(url):
                        found.append(check(cases.pop(0), bare, Served(url), prompts))
    out.write_text(json.dumps({"about": about_this_run(), "known_bad": found}, indent=1) + "\n")


def check(case, bare, speculative, prompts):  # type: ignore[no-untyped-def]
    from slipstream.verify.known_bad import check_known_bad

    (one,) = check_known_bad(bare, speculative, prompts, 0.0, [case])
    result = one.as_dict()
    if result["verdict"] == "failed" and not is_healthy(speculative.url):
        result["verdict"] = "the engine dies"
    sys.stdout.write(f"{one.name}: {result['verdict']} {one.note[-200:]}\n")
    sys.stdout.flush()
    return result


@contextmanager
def serving(model: str, flags: list[str]) -> Iterator[str]:
    from slipstream.serving.servers import free_port

    port = free_port()
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", model, *flags]
    command += ["--host", "127.0.0.1", "--port", str(port), "--gpu-memory-utilization", "0.3"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"
    try:
        begun = time.monotonic()
        while not is_healthy(url):
            if process.poll() is not None or time.monotonic() > begun + START_SECONDS:
                sys.exit(f"could not start: {' '.join(command)}")
            time.sleep(1)
        yield url
    finally:
        process.terminate()
        process.wait()


def is_healthy(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=10):
            return True
    except OSError:
        return False


if __name__ == "__main__":
    main()
