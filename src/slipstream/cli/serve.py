"""slipstream serve"""

import argparse
import sys
from collections.abc import Sequence

import typer

HELP = """\
Usage: slipstream serve MODEL [OPTIONS] [any option of vllm serve]

Start vLLM's OpenAI-compatible server with speculation. The set-up is checked first
(slipstream doctor says what is looked at), then everything else goes to vllm serve.

Options:
  --speculate auto|off|fixed:K|FILE   How to speculate (default: auto). FILE is JSON or YAML with the
                                      fields of SpeculationConfig; JSON may also be given inline.
  --drafter DIR_OR_ID                 A draft model, or Medusa or EAGLE heads.
  --objective throughput|latency|makespan
                                      What auto plans for (default: throughput); docs/objective.md.
  --max-tpot-ms MS, --max-ttft-ms MS  Bounds that drafts keep where the engine without drafts keeps them.
  --host HOST                         Where to listen (default here: 127.0.0.1).
  --shadow RATE                       Write this share of the greedy requests again without speculation, while
                                      nobody waits, and export how many differ (default: 0).
  --trace FILE                        Record the run, as numbers only, for slipstream replay.
  --help                              This text.  --help=all: every option of vllm serve.

Also understood: --speculative-config and --spec-method/--spec-model/--spec-tokens (today's vLLM), and
--speculative-model, --num-speculative-tokens, --ngram-prompt-lookup-max/-min,
--speculative-draft-tensor-parallel-size (older guides; with dashes or underscores).

Examples:
  slipstream serve Qwen/Qwen2.5-7B-Instruct
  slipstream serve Qwen/Qwen2.5-7B-Instruct --drafter Qwen/Qwen2.5-0.5B-Instruct
  slipstream serve ./model --speculate off --port 8001
"""


def serve(context: typer.Context) -> None:
    """Start vLLM's OpenAI-compatible server with speculation."""
    from slipstream.cli.command import read_command
    from slipstream.ops.host import require_vllm

    shadow, trace, flags = take_own_flags(context.args)
    if "--help" in flags or "-h" in flags or not flags:
        sys.stdout.write(HELP)
        return
    require_vllm()
    from slipstream.engine.launch.start import ask_vllm, show_vllm_help, start_server

    if any(flag.startswith("--help=") for flag in flags):
        show_vllm_help(flags)
        return
    command = read_command(flags, ask_vllm)
    start_server(command.deployment, command.speculation, command.vllm_flags, command.notes, shadow, trace)


def take_own_flags(flags: Sequence[str]) -> tuple[float, str, list[str]]:
    """Return (what --shadow says, what --trace says, the other flags)."""
    from slipstream.engine.settings import read_share

    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--shadow", default="0")
    parser.add_argument("--trace", default="")
    given, rest = parser.parse_known_args(flags)
    return read_share("--shadow", given.shadow), given.trace, rest
