"""What the planner of a running engine believes, and why its last plans are what they are: for reading."""

import json
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from slipstream.errors import ConfigError

PATH = "/v1/slipstream/plan"
BAR = 30
LEVELS = " ▁▂▃▄▅▆▇█"


def fetch(url: str, api_key: str | None = None) -> dict[str, Any]:
    """Return the report of the server at `url`."""
    address = url.rstrip("/").removesuffix("/v1") + PATH
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    try:
        with urllib.request.urlopen(urllib.request.Request(address, headers=headers), timeout=10) as answer:
            report: dict[str, Any] = json.load(answer)
    except urllib.error.HTTPError as error:
        if error.code == 401:
            raise ConfigError(f"{address} wants a key: --api-key") from None
        raise ConfigError(
            f"{address} answers {error.code}: it is no server that composes proposers or plans a drafter "
            "(start it with: slipstream serve MODEL)"
        ) from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{address}: {error}; is the server running? Write its address: --url") from None
    return report


def render(report: Mapping[str, Any]) -> Group:
    planner = report.get("planner")
    if planner is None:
        note = "\nno planner: the number of draft tokens is fixed, or nothing was generated yet"
        return Group(_proposers(report), Text(note, "dim"))
    return Group(
        _state(planner),
        Text(),
        _proposers(report),
        Text(),
        _cost(planner),
        Text(),
        plans_table(planner["plans"]),
    )


def _state(planner: Mapping[str, Any]) -> Text:
    gain = -planner["loss"]  # in bare steps, of each step with drafts
    text = Text()
    if planner["paused"]:
        text.append("speculation is paused: it was losing. It will be tried again.", "bold yellow")
    else:
        won = "wins" if gain >= 0 else "loses"
        text.append(f"speculating; a step with drafts {won} {abs(gain):.2f} steps of bare vLLM", "bold")
    text.append(
        f"\nplanned for {planner['objective']}; {planner['steps']} steps, "
        f"{planner['tokens_per_second']:.0f} tokens/s recently, "
        f"{planner['pauses']} pauses, {planner['tried_share']:.1%} of the time spent on trying out",
        "dim",
    )
    return text


def _proposers(report: Mapping[str, Any]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("proposer")
    for column in ("drafts", "tokens", "accepted"):
        table.add_column(column, justify="right")
    table.add_column("if all before were: 1st 2nd ...", no_wrap=True)
    names = sorted({*report["draft_tokens"], *report["acceptance"]})
    for name in names:
        tokens = report["draft_tokens"].get(name, 0)
        accepted = report["accepted_tokens"].get(name, 0)
        by_position = report["acceptance"].get(name, [])
        off = " (off: faults)" if name in report["off"] else ""
        table.add_row(
            name + off,
            str(report["drafts"].get(name, 0)),
            str(tokens),
            f"{accepted / tokens:.0%}" if tokens else "-",
            sparkline(by_position) + "  " + " ".join(f"{p:.2f}" for p in by_position[:4]),
        )
    if not names:
        table.add_row("none has offered anything yet", "", "", "", "")
    return table


def sparkline(shares: Sequence[float]) -> str:
    """Return a character for each share, from empty to full."""
    return "".join(LEVELS[round(share * (len(LEVELS) - 1))] for share in shares)


def _cost(planner: Mapping[str, Any]) -> Group:
    """Return what a step takes by draft tokens in it, as bars."""
    points = planner["step_seconds"]
    most = max((seconds for _, seconds in points), default=1.0)
    title = f"a step with {max(planner['requests'], 1)} requests, by draft tokens verified in it"
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(justify="right")
    table.add_column(justify="right")
    table.add_column(no_wrap=True)
    for drafts, seconds in points:
        bar = "█" * max(round(BAR * seconds / most), 1)
        table.add_row(f"{drafts}", f"{seconds * 1000:.1f} ms", Text(bar, "blue"))
    return Group(Text(title), table)


def plans_table(plans: Sequence[Mapping[str, Any]], lines: int | None = None) -> Table:
    """Return the last plans; several in a row that say the same in one line. At most so many `lines`."""
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("steps", no_wrap=True)
    for column in ("req", "prompt", "offered", "verified", "tokens", "ms", "bare", "promise"):
        table.add_column(column, justify="right")
    table.add_column("why", overflow="fold")
    runs = [
        list(run)
        for _, run in groupby(plans, key=lambda plan: (plan["requests"], plan["verified"] > 0, plan["why"]))
    ]
    for same in runs if lines is None else runs[-lines:]:
        first, last = same[0]["step"], same[-1]["step"]

        def mean(key: str, same: Sequence[Mapping[str, Any]] = same) -> float:
            return float(sum(plan[key] for plan in same) / len(same))

        table.add_row(
            f"{first}" if first == last else f"{first}-{last}",
            f"{same[0]['requests']}",
            f"{mean('prefill'):.0f}",
            f"{mean('offered'):.1f}",
            f"{mean('verified'):.1f}",
            f"{mean('expected_tokens'):.1f}",
            f"{mean('seconds') * 1000:.1f}",
            f"{mean('bare_seconds') * 1000:.1f}",
            f"{mean('promise'):.2f}x",
            same[-1]["why"],
        )
    return table
