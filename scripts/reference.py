#!/usr/bin/env python3
"""Write the pages of the documentation that are made from the code.

    scripts/reference.py            # writes them
    scripts/reference.py --check    # says which are not what the code gives; exit code 1 if any

`tests/unit/test_reference.py` does the latter. Starts no engine and imports neither vllm nor torch.
"""

import ast
import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "slipstream"
RESULTS = ROOT / "benchmarks" / "results"


# ---- the words above the tables ----

CLI = """\
`slipstream COMMAND --help` shows the same. Where a command takes *any option of `slipstream serve`*, what it
does not know goes on to `slipstream serve`, and from there to `vllm serve`."""
CONFIGURATION = """\
What the fields are for, and how they are written in today's vLLM and in older guides:
[options](../options.md). An unknown field is an error that names the nearest known one."""
METHODS_TABLE = """\
What `drafter.method` may say, and vLLM's `method`. A checkpoint's method is told from its files.
*Composes*: the method can be asked for a draft, or not, at each step, beside n-gram lookup and suffix
decoding. `ngram` and `suffix` are vLLM's own implementations, which run alone (`native`); Slipstream's own
proposers of those names always compose."""
PATCHES_PAGE = """\
What Slipstream replaces in vLLM 0.32, and why. `slipstream doctor --patches` says for the installed vLLM
whether each fits. A patch whose symbol has another signature stays off, with a warning; if the patch is
*required*, the engine does not start. What is extended by subclasses and official hooks instead:
[vLLM's seams](../vllm.md)."""
THRESHOLDS_PAGE = """\
Every number that the planner's decisions depend on: where it comes from, and what doubling it changes.
*Chosen* means chosen by judgement and kept because simulated engines and the committed results held with it;
no search over its values was made. They are not options. What doubling and halving each does to recorded
runs: [planning](../planning.md#what-the-thresholds-contribute)."""
RESULTS_PAGE = """\
Every committed result that holds the command which made it, with the date and the commit. `dirty`: with
changes that were not committed yet. Run a command from a folder that holds the models and the folder
`benchmarks/arms`. What the results are about, and their caveats: [benchmarks](benchmarks.md)."""


def made_by(source: str) -> str:
    return f"*This page is written by `scripts/reference.py` from {source}; a test compares the two.*\n"


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def one_line(text: str) -> str:
    return " ".join(text.split())


def plain(text: str) -> str:
    """Turn the markup of the commands' help into Markdown."""
    text = re.sub(r"\[bold\](slipstream [a-z]+|\S+\.\w+)\[/\]", r"`\1`", text)
    return re.sub(r"\[bold\](.*?)\[/\]", r"**\1**", text)


# ---- commands ----


def cli() -> str:
    import typer

    from slipstream.cli import app
    from slipstream.cli.serve import HELP

    group: Any = typer.main.get_command(app)
    parts = [
        "# Command line",
        "",
        made_by("the commands themselves"),
        CLI,
        "",
    ]
    for name, command in group.commands.items():
        parts += [f"## slipstream {name}", ""]
        if name == "serve":
            parts += ["```text", HELP.rstrip(), "```", ""]
            continue
        parts += [_described(command.help or ""), "", _usage(name, command), ""]
        rows = [_parameter(parameter) for parameter in command.params]
        parts += [table(("argument or option", "value", "default", "meaning"), rows)]
    return "\n".join(parts)


def _described(text: str) -> str:
    paragraphs = [one_line(paragraph) for paragraph in text.split("\n\n")]
    examples = [p for p in paragraphs if p.startswith("[dim]")]
    said = [plain(p) for p in paragraphs if p not in examples]
    commands = re.findall(r"\[dim\](.*?)\[/\]", " ".join(examples))
    if commands:
        said += ["For example:", "```text\n" + "\n".join(commands) + "\n```"]
    return "\n\n".join(said)


def _usage(name: str, command: Any) -> str:
    passes_on = command.context_settings.get("ignore_unknown_options")
    arguments = [p.name.upper() for p in command.params if p.param_type_name == "argument"]
    shown = arguments or (["MODEL"] if passes_on else [])
    ending = " [any option of slipstream serve]" if passes_on else ""
    return f"Usage: `slipstream {name} {''.join(f'{a} ' for a in shown)}[OPTIONS]{ending}`"


def _parameter(parameter: Any) -> tuple[str, str, str, str]:
    is_argument = parameter.param_type_name == "argument"
    names = [parameter.name.upper()] if is_argument else [*parameter.opts, *parameter.secondary_opts]
    is_flag = getattr(parameter, "is_flag", False)
    kind = getattr(parameter.type_descriptor.annotation, "__name__", "text")
    value = "" if is_flag else {"list": "text", "str": "text", "int": "whole number", "float": "number"}.get(
        kind, "path" if kind == "Path" else kind
    )  # fmt: skip
    if parameter.multiple:
        value += ", may be repeated"
    limits = [f"{word} {limit:g}" for word, limit in (("from", parameter.min), ("to", parameter.max))
              if limit is not None]  # fmt: skip
    value += f" ({' '.join(limits)})" if limits else ""
    shown = parameter.show_default
    default = shown if isinstance(shown, str) else "" if shown is False or is_flag else parameter.default
    default = "" if default in (None, "") else f"`{default}`"
    if parameter.required:
        default = "required"
    meaning = one_line(plain(parameter.help or ""))
    if parameter.envvar:
        meaning += f" Environment: `{parameter.envvar}`."
    return ", ".join(f"`{name}`" for name in names), value, default, meaning


# ---- options ----


def attribute_docs(file: Path, name: str) -> Iterator[tuple[str, str, str]]:
    """Yield name, annotation and documentation of each attribute of a class, in order."""
    classes = {node.name: node for node in ast.parse(file.read_text()).body if isinstance(node, ast.ClassDef)}
    body = classes[name].body
    for node, after in zip(body, [*body[1:], ast.Pass()], strict=True):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            text = ""
            if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
                text = one_line(str(after.value.value))
            yield node.target.id, ast.unparse(node.annotation), text


def configuration() -> str:
    from slipstream.config.speculation import VLLM_OPTIONS, Drafter, Ngram, SpeculationConfig, Suffix
    from slipstream.methods import DRAFTERS

    sections: list[tuple[str, str, Any]] = [
        (
            "SpeculationConfig",
            "The top level of a file, of `speculate={...}` and of JSON.",
            SpeculationConfig,
        ),
        ("Drafter", "Written as `drafter: {...}`.", Drafter),
        ("Ngram", "Written as `ngram: {...}`.", Ngram),
        ("Suffix", "Written as `suffix: {...}`, or `suffix: true`.", Suffix),
    ]
    parts = [
        "# Configuration",
        "",
        made_by("`slipstream.SpeculationConfig`"),
        CONFIGURATION,
        "",
    ]
    for name, where, model in sections:
        parts += [f"## {name}", "", one_line(model.__doc__ or ""), "", where, ""]
        rows = []
        for field, annotation, text in attribute_docs(SOURCE / "config" / "speculation.py", name):
            if annotation.startswith("DrafterMethod"):
                annotation = f"Literal[{', '.join(map(repr, DRAFTERS))}] | None"
            info = model.model_fields[field]
            default = info.get_default(call_default_factory=True)
            limits = [f"{word} {getattr(limit, key):g}" for limit in info.metadata
                      for key, word in (("ge", "from"), ("gt", "above"), ("le", "to"))
                      if hasattr(limit, key)]  # fmt: skip
            value = _value(annotation) + (f" ({', '.join(limits)})" if limits else "")
            rows.append((f"`{field}`", value, "" if default is None else f"`{default}`", text))
        parts += [table(("field", "value", "default", "meaning"), rows)]
    parts += [
        "## Keys of vLLM that pass through",
        "",
        "Under `vllm: {...}` these keys of vLLM's `speculative_config` go to vLLM unchanged:",
        "",
        ", ".join(f"`{key}`" for key in sorted(VLLM_OPTIONS)) + ".",
        "",
    ]
    return "\n".join(parts)


def _value(annotation: str) -> str:
    annotation = annotation.removesuffix(" | None")
    if annotation.startswith("Literal["):
        return ", ".join(f"`{value}`" for value in re.findall(r"'([^']*)'", annotation))
    names = {"int": "whole number", "float": "number", "str": "text", "bool": "true or false"}
    if annotation in names:
        return names[annotation]
    return "mapping" if annotation.startswith("dict") else f"[{annotation}](#{annotation.lower()})"


# ---- tables of the engine ----


def methods() -> str:
    from slipstream.methods import METHODS

    def yes(value: bool) -> str:
        return "yes" if value else ""

    rows = [
        (
            f"`{method.name}`", str(method.kind), yes(method.composable), yes(method.overlaid),
            yes(method.plans_ahead), yes(method.one_pass), method.runner,
            "Slipstream" if method.implementation else "vLLM",
        )
        for method in METHODS.values()
    ]  # fmt: skip
    columns = ("method", "kind", "composes", "composes on V2", "planned a step ahead (`native`)",
               "one pass for all tokens", "model runner", "run by")  # fmt: skip
    return "\n".join([
        "# Methods",
        "",
        made_by("`slipstream/methods.py`"),
        METHODS_TABLE,
        "",
        table(columns, rows),
    ])  # fmt: skip


def patches() -> str:
    from slipstream.engine.patches import PATCHES

    functions = {
        node.name: ast.get_docstring(node) or ""
        for node in ast.parse((SOURCE / "engine" / "patches.py").read_text()).body
        if isinstance(node, ast.FunctionDef)
    }
    parts = [
        "# Patches of vLLM",
        "",
        made_by("`slipstream/engine/patches.py`"),
        PATCHES_PAGE,
        "",
    ]
    for patch in PATCHES:
        purpose, _, reason = functions[patch.name].partition("\n\n")
        parts += [
            f"## {patch.name}",
            "",
            f"Replaces `{patch.symbol.replace(':', '.')}`{' (required)' if patch.required else ''}.",
            "",
            one_line(purpose),
            "",
            *([one_line(reason), ""] if reason else []),
        ]
    return "\n".join(parts)


def thresholds() -> str:
    from slipstream.planning.thresholds import THRESHOLDS, Thresholds

    file = SOURCE / "planning" / "thresholds.py"
    headings: dict[str, str] = {}
    heading = ""
    for line in file.read_text().splitlines():
        if match := re.match(r"    # ---- (.*) ----", line):
            heading = match[1]
        elif match := re.match(r"    (\w+): (?:float|int) = ", line):
            headings[match[1]] = heading
    docs = {name: text for name, _, text in attribute_docs(file, "Thresholds")}
    parts = [
        "# Thresholds",
        "",
        made_by("`slipstream/planning/thresholds.py`"),
        THRESHOLDS_PAGE,
        "",
    ]
    for group in dict.fromkeys(headings.values()):
        rows = [
            (f"`{field.name}`", f"{getattr(THRESHOLDS, field.name):.4g}", docs[field.name])
            for field in fields(Thresholds)
            if headings[field.name] == group
        ]
        title = re.sub(r" \(`(\w+)`\)$", "", group)
        parts += [f"## {title[0].upper()}{title[1:]}", "", table(("threshold", "value", "meaning"), rows)]
    return "\n".join(parts)


def support() -> str:
    from slipstream.config.support import as_markdown

    return as_markdown()


def metrics() -> str:
    """Return the page with its table written anew; the text above the table is written by hand."""
    from slipstream.engine.server.metrics import reference

    page = (ROOT / "docs" / "metrics.md").read_text()
    return page[: page.index("| metric |")] + reference()


# ---- results ----


def results() -> str:
    parts = [
        "# Results and their commands",
        "",
        made_by("the files under `benchmarks/results`"),
        RESULTS_PAGE,
        "",
    ]
    for file in sorted(RESULTS.rglob("*.json")):
        content = json.loads(file.read_text())
        if not isinstance(content, dict):
            continue
        sessions = content.get("sessions") or [content.get("about")]
        made = [about for about in sessions if isinstance(about, dict) and about.get("command")]
        if not made:
            continue
        parts += [f"## {file.relative_to(RESULTS).as_posix().removesuffix('/results.json')}", ""]
        for about in made:
            date, commit = about.get("date", "")[:10], about.get("git") or "unknown"
            cores = f", {about['cores']} cores" if about.get("cores") else ""
            parts += [
                f"{date}, commit {commit}, vLLM {about.get('vllm')}{cores}:",
                "",
                "```text",
                about["command"],
                "```",
                "",
            ]
    return "\n".join(parts)


PAGES: dict[str, Callable[[], str]] = {
    "reference/cli.md": cli,
    "reference/configuration.md": configuration,
    "reference/methods.md": methods,
    "reference/patches.md": patches,
    "reference/thresholds.md": thresholds,
    "support.md": support,
    "metrics.md": metrics,
    "results.md": results,
}


def stale() -> list[str]:
    """Return the pages that are not what the code gives."""
    return [page for page, make in PAGES.items() if not _is(ROOT / "docs" / page, _ended(make()))]


def _is(file: Path, text: str) -> bool:
    return file.exists() and file.read_text() == text


def _ended(text: str) -> str:
    return text.rstrip("\n") + "\n"


def main() -> int:
    if "--check" in sys.argv[1:]:
        found = stale()
        sys.stdout.write("".join(f"docs/{page} is not what the code gives\n" for page in found))
        return 1 if found else 0
    for page, make in PAGES.items():
        (ROOT / "docs" / page).write_text(_ended(make()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
