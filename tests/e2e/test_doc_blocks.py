"""Blocks of the docs that ask a running server, and options of vLLM's that the docs use."""

import os
import subprocess
import sys
import time

import openai
import pytest

from doc_blocks import RUNNABLE, VLLM, Block
from e2e.server import Server

ADDRESS = "http://127.0.0.1:8000"
TRIES = 10  # the first counts are exported a second after the server has started


def run(line: str, url: str) -> "subprocess.CompletedProcess[str]":
    """Run a line of a block, with the address of the server in place of the one in the docs."""
    program, _, rest = line.partition(" ")
    if program == "slipstream":
        line = f"{sys.executable} -m slipstream {rest.partition('#')[0]} --url {url}"
    return subprocess.run(
        line.replace(ADDRESS, url), shell=True, capture_output=True, text=True, timeout=120,
        env={**os.environ, "COLUMNS": "120", "NO_COLOR": "1"},
    )  # fmt: skip


@pytest.mark.parametrize(
    "block", [block for block in RUNNABLE if block.runs == ("server",)], ids=lambda block: block.name
)
def test_blocks_that_ask_a_server(block: Block, auto_server: Server) -> None:
    client = openai.OpenAI(api_key="EMPTY", base_url=f"{auto_server.url}/v1")
    model = client.models.list().data[0].id
    client.completions.create(model=model, prompt="one two one two one two", max_tokens=16, temperature=0)
    for line in block.text.splitlines():
        for _ in range(TRIES):
            done = run(line, auto_server.url)
            if done.returncode == 0:
                break
            time.sleep(1)
        assert done.returncode == 0, (line, done.stdout, done.stderr)
        assert done.stdout.strip()


def test_vllm_has_the_options() -> None:
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    known = make_arg_parser(FlexibleArgumentParser())._option_string_actions
    assert not VLLM - set(known)
