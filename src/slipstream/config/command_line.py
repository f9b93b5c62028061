"""Speculation flags out of a `vllm serve` command line; everything else is left as it stands.

Flags are the argument names of `forms` with dashes or underscores: `--speculate`, `--drafter`,
`--speculative-config` (also dotted, as vLLM has it: `--speculative-config.method ngram`),
`--speculative_model`, and so on.
"""

import argparse
import json
from collections.abc import Sequence
from typing import Any, NoReturn

from slipstream.config.deployment import read_config_file
from slipstream.config.parse import CLASSIC_IGNORED, SPECULATION_ARGUMENTS
from slipstream.errors import ConfigError

INTEGERS = {
    "spec_tokens", "num_speculative_tokens", "ngram_prompt_lookup_max", "ngram_prompt_lookup_min",
    "speculative_draft_tensor_parallel_size", "speculative_max_model_len",
    "speculative_disable_by_batch_size",
}  # fmt: skip
NUMBERS = {"max_tpot_ms", "max_ttft_ms"}
DOTTED = ("--speculative-config.", "--speculative_config.", "-sc.")


def split_flags(flags: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """Return (speculation arguments for `read_speculation`, the flags that are vLLM's)."""
    dotted, plain = _take_dotted(flags)
    namespace, rest = _parser().parse_known_args(plain)
    arguments = {name: value for name, value in vars(namespace).items() if value is not None}
    if dotted:
        if "speculative_config" in arguments:
            raise ConfigError("--speculative-config is given both whole and in parts; keep one")
        arguments["speculative_config"] = dotted
    return _in_config_file(rest) | arguments, rest


def _in_config_file(flags: Sequence[str]) -> dict[str, Any]:
    """Refuse our flags there. vLLM turns every key of its --config file into a flag, so only a key that is
    vLLM's can stand there."""
    found = {k: v for k, v in read_config_file(flags).items() if k in SPECULATION_ARGUMENTS}
    if other := sorted(found.keys() - {"speculative_config"}):
        raise ConfigError(f"{', '.join(other)} cannot stand in the --config file; give it as a flag instead")
    return found


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(message)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(add_help=False, allow_abbrev=False)
    for name in sorted(SPECULATION_ARGUMENTS):
        spellings = [f"--{name.replace('_', '-')}", f"--{name}"]
        if name == "speculative_config":
            spellings.append("-sc")
        spellings = list(dict.fromkeys(spellings))
        if name in CLASSIC_IGNORED:
            parser.add_argument(*spellings, dest=name, action="store_true", default=None)
        else:
            kind = int if name in INTEGERS else float if name in NUMBERS else str
            parser.add_argument(*spellings, dest=name, type=kind)
    return parser


def _take_dotted(flags: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    options: dict[str, Any] = {}
    plain: list[str] = []
    remaining = list(flags)
    while remaining:
        flag = remaining.pop(0)
        prefix = next((p for p in DOTTED if flag.startswith(p)), None)
        if prefix is None:
            plain.append(flag)
            continue
        key, equals, value = flag.removeprefix(prefix).partition("=")
        if not equals:
            if not remaining:
                raise ConfigError(f"{flag}: its value is missing")
            value = remaining.pop(0)
        options[key] = _json_or_text(value)
    return options, plain


def _json_or_text(value: str) -> Any:
    try:
        return json.loads(value)
    except ValueError:
        return value
