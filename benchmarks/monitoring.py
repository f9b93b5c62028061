"""Watch a server under three kinds of traffic, with `slipstream top` and a Prometheus: pictures for the docs.

    python benchmarks/monitoring.py MODEL --out FOLDER

It starts `slipstream serve` and a Prometheus (Debian's package `prometheus`) that scrapes it, runs
`examples/traffic.py`, and looks at the server every two seconds. FOLDER gets what `slipstream top` showed in
the middle of each kind of traffic (`top-edit.svg`, ...), the dashboard's queries over the whole run
(`queries.json`), and one panel drawn (`tokens.svg`).
"""

import argparse
import json
import re
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any

from figure import write_figure
from rich.console import Console

from slipstream.ops.top import Top
from slipstream.reporting.charts import Point, Series, line_chart
from slipstream.reporting.run_metadata import about_this_run
from slipstream.serving.arms import Arm
from slipstream.serving.servers import free_port, running

ROOT = Path(__file__).parents[1]
DASHBOARD = json.loads((ROOT / "deploy" / "grafana" / "slipstream.json").read_text())
KINDS = ("edit", "chat", "tool_call")
LOOK_SECONDS = 2
RATE_SECONDS = 10
"""Rates are taken over so long."""
WIDTH, HEIGHT = 80, 24
DRAWN = "Tokens/s: generated, drafted, accepted"


@contextmanager
def prometheus(folder: Path, target: int) -> Iterator[str]:
    """Run a Prometheus that scrapes a port of this machine every second; give its address."""
    port = free_port()
    job = {"job_name": "vllm", "static_configs": [{"targets": [f"127.0.0.1:{target}"]}]}
    config = folder / "prometheus.json"
    config.write_text(json.dumps({"global": {"scrape_interval": "1s"}, "scrape_configs": [job]}))
    process = subprocess.Popen(
        ["prometheus", f"--config.file={config}", f"--storage.tsdb.path={folder / 'data'}",
         f"--web.listen-address=127.0.0.1:{port}"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(30)


class Traffic:
    """Runs `examples/traffic.py`, and tells which kind of traffic is under way."""

    def __init__(self, url: str, requests: int) -> None:
        self.found: dict[str, dict[str, Any]] = {}
        self._process = subprocess.Popen(
            [sys.executable, "-u", str(ROOT / "examples" / "traffic.py"), "--url", f"{url}/v1",
             "--requests", str(requests)],
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self._reader = Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            kind, _, found = line.partition(": ")
            self.found[kind] = json.loads(found)

    @property
    def kind(self) -> str | None:
        """Return what is under way; None at the end."""
        if self._process.poll() is not None:
            self._reader.join()
            if self._process.returncode:
                raise SystemExit("examples/traffic.py failed")
            return None
        return next((kind for kind in KINDS if kind not in self.found), KINDS[-1])


def picture(top: Top, title: str) -> str:
    """Return what `slipstream top` shows in a terminal of 80 columns and 24 lines, as SVG."""
    with open("/dev/null", "w") as nowhere:
        console = Console(
            width=WIDTH, height=HEIGHT, record=True, file=nowhere, force_terminal=True, highlight=False
        )
        console.print(top.render(HEIGHT))
    svg = console.export_svg(title=title)
    return re.sub(r"@font-face \{.*?\}", "", svg, flags=re.DOTALL)  # they would be loaded from another host


def queries(address: str, begun: float, ended: float) -> list[dict[str, Any]]:
    """Return the dashboard's queries and what they gave over a time."""
    found, interval = [], f"{RATE_SECONDS}s"
    for panel in DASHBOARD["panels"]:
        for target in panel["targets"]:
            expression = target["expr"].replace("$model", ".*").replace("$__rate_interval", interval)
            asked = {"query": expression, "start": begun, "end": ended, "step": LOOK_SECONDS}
            with urllib.request.urlopen(
                f"{address}/api/v1/query_range?{urllib.parse.urlencode(asked)}", timeout=30
            ) as answer:
                series = json.load(answer)["data"]["result"]
            found.append({
                "panel": panel["title"], "query": expression,
                "series": [{"labels": one["metric"], "values": one["values"]} for one in series],
            })  # fmt: skip
    return found


def draw(path: Path, found: list[dict[str, Any]], begun: float, traffic: dict[str, dict[str, Any]]) -> None:
    """Draw one panel over time, with the kinds of traffic below."""
    (panel,) = (one for one in DASHBOARD["panels"] if one["title"] == DRAWN)
    names = [target["legendFormat"] for target in panel["targets"]]
    lines = [[(float(at), float(value)) for at, value in one["series"][0]["values"]]
             for one in found if one["panel"] == DRAWN]  # fmt: skip
    since = begun + RATE_SECONDS
    times = sorted({at for line in lines for at, _ in line if at >= since})
    labels, end = [""] * len(times), begun
    for kind, ran in traffic.items():
        begin, end = end, end + ran["tokens"] / ran["tokens per second"]
        nearest = min(times, key=lambda at: abs(at - (max(begin, since) + end) / 2))
        labels[times.index(nearest)] = kind.replace("_", " ")
    series = [
        Series(name, number + 1, [Point(times.index(at), value) for at, value in line if at >= since])
        for number, (name, line) in enumerate(zip(names, lines, strict=True))
    ]
    x_title = f"{times[-1] - times[0]:.0f} seconds"
    chart = line_chart(DRAWN, labels, series, x_title=x_title, from_zero=True)
    chart = re.sub(r' r="3.5"', ' r="1.5"', chart)
    write_figure(path, chart, DRAWN, series, 250)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("--requests", type=int, default=16, help="of each kind")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    work = options.out / "work"
    flags = ("--enforce-eager", "--max-model-len", "2048")
    with running(options.model, [Arm("auto", "auto")], flags, work, timed=False) as servers:
        server = servers["auto"]
        with prometheus(work, server.port) as address:
            top, traffic = Top(server.url), Traffic(server.url, options.requests)
            begun, shown = time.time(), defaultdict(list)
            while kind := traffic.kind:
                time.sleep(LOOK_SECONDS)
                top.look()
                if traffic.kind == kind:
                    shown[kind].append(picture(top, f"slipstream top: {kind}"))
            found = queries(address, begun, time.time())
    for kind, pictures in shown.items():
        (options.out / f"top-{kind}.svg").write_text(pictures[len(pictures) // 2])
    draw(options.out / "tokens.svg", found, begun, traffic.found)
    content = {"about": about_this_run(), "traffic": traffic.found, "queries": found}
    (options.out / "queries.json").write_text(json.dumps(content) + "\n")
    sys.stdout.write(json.dumps(traffic.found, indent=1) + "\n")


if __name__ == "__main__":
    main()
