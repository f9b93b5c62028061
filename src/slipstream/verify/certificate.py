"""A certificate for reading: one HTML file that needs nothing else, and tables for the terminal."""

import json
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from rich.table import Table

from slipstream.reporting.page import STYLE, page, verdict_box
from slipstream.verify.greedy import NUM_REPLAYED

Certificate = Mapping[str, Any]
VERDICTS = {
    "same": "Speculation changes nothing that these checks could find.",
    "differs": "Speculation changes the output.",
    "incomplete": "No difference was found, but not all that was asked for was shown.",
}
LEGEND = (
    "'TV at most': with 95% confidence. 'Finds TV': what such a check finds in 9 of 10 cases, whatever its "
    "direction."
)
GOOD = {"equal", "same", "ties"}


def write(certificate: Certificate, folder: Path) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    files = {
        "certificate.json": json.dumps(certificate, indent=1) + "\n",
        "certificate.html": html(certificate),
    }
    for name, content in files.items():
        (folder / name).write_text(content, encoding="utf-8")
    return [folder / name for name in files]


def sentences(certificate: Certificate) -> list[str]:
    """Return what was found, in words; the first is the verdict."""
    return [
        VERDICTS[certificate["verdict"]],
        *(f"Not shown: {what}." for what in certificate["missing"]),
        *_greedy(certificate["greedy"]),
        _logprobs(certificate["logprobs"]),
    ]


def _greedy(greedy: Mapping[str, Any]) -> list[str]:
    differing = greedy["differences"]
    said = [
        f"Greedy: {greedy['compared'] - len(differing)} of {greedy['compared']} texts are bare vLLM's, token "
        f"for token ({greedy['tokens']} tokens; {greedy['drafted']:.0f} were drafted, "
        f"{greedy['accepted']:.0f} of them accepted)."
    ]
    if differing:
        largest = max(one["gap"] for one in differing)
        ties = "numerical ties" if greedy["verdict"] == "ties" else "more than numerical ties"
        said.append(
            f"The others are {ties}: where they part, bare vLLM's two best tokens are at most "
            f"{largest:.2g} apart (log-probability), and another batch moves them by up to "
            f"{greedy['noise']:.2g}. In other batches bare vLLM differs from itself in "
            f"{greedy['bare_differences']} of {min(NUM_REPLAYED, greedy['compared'])} texts."
        )
    return said


def _logprobs(logprobs: Mapping[str, Any]) -> str:
    return (
        f"Log-probabilities of {logprobs['compared']} tokens are off by at most {logprobs['largest']:.2g}; "
        f"bare vLLM's own by {logprobs['noise']:.2g} in other batches."
    )


DISTRIBUTION = (
    "sampling",
    "verdict",
    "draws",
    "p",
    "TV seen",
    "TV at most",
    "TV of batches",
    "finds TV",
    "drafted",
    "kept",
)
KNOWN_BAD = ("feature", "verdict", "texts", "differing", "drafted", "upstream", "note")


def distribution_rows(cells: Iterable[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    return [
        (
            cell["name"], cell["verdict"], str(cell["judgement"]["draws"]),
            f"{cell['judgement']['p_value']:.2g}", f"{cell['judgement']['variation']:.3f}",
            f"{cell['judgement']['bound']:.3f}", f"{cell['judgement'].get('noise', 0):.1g}",
            f"{cell['finds']:.3f}",
            f"{cell['draft_tokens']:.0f}", f"{cell['accepted_tokens']:.0f}",
        )
        for cell in cells
    ]  # fmt: skip


def known_bad_rows(found: Iterable[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    return [
        (
            one["name"], one["verdict"], str(one["compared"]), str(one["differing"]),
            f"{one['draft_tokens']:.0f}", one["reported"], one["note"],
        )
        for one in found
    ]  # fmt: skip


def tables(certificate: Certificate) -> list[Table]:
    shown = []
    for columns, rows in _parts(certificate):
        table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
        for at, column in enumerate(columns):
            table.add_column(column, justify="left" if at < 2 else "right", no_wrap=at < 2, overflow="fold")
        for row in rows:
            table.add_row(
                *row, style={"differs": "red", "failed": "red", "refused": "yellow"}.get(row[1], "")
            )
        shown.append(table)
    return shown


def _parts(certificate: Certificate) -> list[tuple[Sequence[str], list[tuple[str, ...]]]]:
    parts = [
        (DISTRIBUTION, distribution_rows(certificate["distribution"])),
        (KNOWN_BAD, known_bad_rows(certificate["known_bad"])),
    ]
    return [(columns, rows) for columns, rows in parts if rows]


def html(certificate: Certificate) -> str:
    first, *rest = sentences(certificate)
    about = certificate["about"]
    facts = {
        "command": about["command"], "date": about["date"], "slipstream": about["slipstream"],
        "git": about["git"], "vLLM": about["vllm"], "processor": about["processor"],
        "speculation": certificate["speculate"], "flags": " ".join(certificate["flags"]),
        "took": f"{certificate['seconds']} s", **certificate["files"],
    }  # fmt: skip
    body = [
        f"<h1>Is speculation lossless here? {escape(Path(certificate['model']).name)}</h1>",
        verdict_box(first, rest),
    ]
    titles = {
        DISTRIBUTION: (
            "Sampled texts",
            "Many texts of five tokens against the law that bare vLLM states. TV, total variation, is the "
            "largest difference in the probability of any event. 'same': it is below the bound that was "
            "asked for; 'unclear': no difference was seen, but more draws are needed to rule it out. What "
            "other batches change in bare vLLM itself, by rounding, is allowed for. " + LEGEND,
        ),
        KNOWN_BAD: (
            "Features that were reported broken",
            "Greedy texts against bare vLLM's, with the feature in use. Numbers are issues of "
            "vllm-project/vllm, not all of them about this version.",
        ),
    }
    for columns, rows in _parts(certificate):
        title, text = titles[tuple(columns)]
        body += [f"<h2>{title}</h2>", f'<p class="soft">{text}</p>', _table(columns, rows)]
    body += ["<h2>What was checked</h2>", "<dl>"]
    body += [f"<dt>{escape(name)}</dt><dd>{escape(str(value))}</dd>" for name, value in facts.items()]
    body.append("</dl>")
    return page("slipstream verify", STYLE, body)


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(column)}</th>" for column in columns)
    lines = "".join(
        f'<tr class="{"bad" if row[1] in ("differs", "failed") else ""}">'
        + "".join(
            f'<td class="good">{escape(cell)}</td>'
            if at == 1 and cell in GOOD
            else f"<td>{escape(cell)}</td>"
            for at, cell in enumerate(row)
        )
        + "</tr>"
        for row in rows
    )
    return f'<div class="scroll"><table><tr>{head}</tr>{lines}</table></div>'
