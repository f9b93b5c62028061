"""What is active, said at start: first what was chosen and why, then what vLLM made of it. And, when asked,
what has come of it."""

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from slipstream.config import ResolvedSpeculation
from slipstream.engine.launch.environment import Environment
from slipstream.engine.settings import Settings
from slipstream.ops.findings import Finding
from slipstream.ops.host import installed_vllm
from slipstream.version import __version__

if TYPE_CHECKING:
    from vllm.config import VllmConfig


def report_choice(
    choice: ResolvedSpeculation, warnings: Sequence[Finding], environment: Environment, notes: Sequence[str]
) -> None:
    """Printed before vLLM loads the weights, so that a wrong guess is seen before the wait."""
    version, platform = installed_vllm()
    rows = [
        ("proposer", f"{choice.proposer}: {choice.why}"),
        ("drafter", choice.drafter.model or "in the target's checkpoint" if choice.drafter else "none"),
    ]
    if choice.num_draft_tokens is not None:
        rows.append(("K", f"{choice.num_draft_tokens}: {choice.why_so_many}"))
    if environment.done:
        rows.append(("host", "; ".join(environment.done)))
    rows += [("missing", text) for text in environment.missing]
    rows += [("note", text) for text in notes]
    rows += [("warning", f"{w.reason} ({w.fix})" if w.fix else w.reason) for w in warnings]
    _print(f"Slipstream {__version__} on vLLM {version} ({platform})", rows)


def report_notes(notes: Sequence[str]) -> None:
    """Print how what was asked for is understood."""
    if notes:
        _print("Slipstream", [("note", text) for text in notes])


def report_engine(vllm_config: "VllmConfig") -> None:
    """Printed when vLLM has settled its configuration: the runner and scheduler that really run."""
    scheduler_config = vllm_config.scheduler_config
    speculation = vllm_config.speculative_config
    scheduler = scheduler_config.get_scheduler_cls()
    if scheduler_config.async_scheduling:
        timing = "asynchronous: the next step is scheduled while this one runs"
    elif vllm_config.device_config.device_type == "cpu":
        timing = "synchronous: vLLM does not schedule ahead on CPU"
    elif speculation is not None:
        timing = f"synchronous: {speculation.method} drafts must be back before the next step is scheduled"
    else:
        timing = "synchronous"
    runner = "V2" if vllm_config.use_v2_model_runner else "V1"
    active = "none"
    if speculation:
        settings = Settings.of(vllm_config)
        named = [*settings.free, *([settings.drafter] if settings.drafter else [])] or [speculation.method]
        active = f"{' + '.join(named)}, K={speculation.num_speculative_tokens}"
    rows = [
        ("proposer", active),
        ("runner", f"{runner} model runner: {_why_runner(runner, vllm_config)}"),
        ("scheduler", f"{scheduler.__module__}.{scheduler.__qualname__}, {timing}"),
    ]
    _print("Slipstream is active" if speculation else "Slipstream drafts nothing", rows)


def _why_runner(runner: str, vllm_config: "VllmConfig") -> str:
    import vllm.envs as envs

    if envs.VLLM_USE_V2_MODEL_RUNNER is not None:
        return f"VLLM_USE_V2_MODEL_RUNNER is {int(envs.VLLM_USE_V2_MODEL_RUNNER)}"
    if runner == "V2":
        return "vLLM's default"
    if vllm_config.device_config.device_type == "cpu":
        return "V2 needs Triton, which CPU builds lack"
    return f"V2 does not support {', '.join(vllm_config._get_v2_model_runner_unsupported_features())}"


def _print(title: str, rows: Sequence[tuple[str, str]]) -> None:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, text in rows:
        table.add_row(f"  {name}", text)
    console = Console(file=sys.stderr, highlight=False, soft_wrap=False, markup=False)
    console.print(title, style="bold")
    console.print(table)
