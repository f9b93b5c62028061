"""The model card of a trained drafter, and its curve as a page."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from slipstream.reporting.charts import Point, Series, line_chart
from slipstream.reporting.page import STYLE, page, series_style, verdict_box

BY_HEART = 1.5
"""Gain on the training texts over that on held-out texts from which it overfits the training texts."""
ARMS = ("drafter", "ngram", "suffix", "composed")


def write_card(result: Mapping[str, Any], folder: Path) -> None:
    (folder / "README.md").write_text(_card(result))
    (folder / "training.html").write_text(_page(result))


def length_of(result: Mapping[str, Any], texts: str, arm: str = "drafter") -> float:
    """Return tokens per step on these held-out texts."""
    one = next(row for row in result["held_out"] if row["texts"] == texts)
    return float(one["acceptance"][arm]["length"])


def _best_length(result: Mapping[str, Any]) -> float:
    """Return tokens per step at the best of the evaluations, at all temperatures."""
    return max((point["length"] for point in result["history"]), default=1.0)


def what_it_lacks(result: Mapping[str, Any]) -> str:
    """Return whether it lacks time or texts, judged by what is accepted on texts that it has learnt from."""
    held_out, learnt_from = _best_length(result), result["length_learnt_from"]
    by_heart = learnt_from - 1 > BY_HEART * (held_out - 1)
    advice = "more prompts will help more than more time" if by_heart else "more time (--budget) may help"
    return f"{held_out:.2f} tokens per step held out, {learnt_from:.2f} on texts learnt from: {advice}"


def where_it_began(result: Mapping[str, Any]) -> list[str]:
    """Return lines on the small model that a drafter was made of, if it was one."""
    small = result["recipe"].get("small_model")
    if small is None:
        return []
    name = Path(small["name"]).name if Path(small["name"]).is_dir() else small["name"]
    lines = [f"- the model {name}, whose weights were trained further; its licence applies to them"]
    if made := result.get("pretraining"):
        lines.append(
            f"- {made['tokens']:,} tokens of {Path(small['corpus']).name}, read before that "
            f"({made['minutes']:.0f} minutes, loss {made['loss']:.2f})"
        )
    return lines


def _card(result: Mapping[str, Any]) -> str:
    recipe, about = result["recipe"], result["about"]
    target = Path(recipe["target"]).name
    rows = [
        f"| {row['texts']} | " + " | ".join(f"{row['acceptance'][arm]['length']:.2f}" for arm in ARMS) + " |"
        for row in result["held_out"]
    ]
    lines = [
        "---", "library_name: slipstream", f"base_model: {target}", "tags: [speculative-decoding, vllm]",
        "---", "",
        f"# A drafter for {target} ({recipe['method']})", "",
        f"    slipstream serve {target} --drafter FOLDER", "",
        "Speculation with it changes nothing in what the target says; `slipstream verify` shows it.", "",
        "## What the target accepts", "",
        f"Tokens per step on {result['held_out_texts']} held-out texts, {recipe['drafter']['tokens']} draft "
        "tokens at most; 1 is no speculation. Beside it what needs no training, and all together.", "",
        "| texts | " + " | ".join(ARMS) + " |", "|---|" + "---:|" * len(ARMS), *rows, "",
        "## What it was made of", "",
        *where_it_began(result),
        f"- {result['texts']:,} answers of the target ({result['answer_tokens']:,} tokens) to prompts of "
        f"{', '.join(recipe['data']['prompts'])}, at temperatures "
        f"{', '.join(f'{t:g}' for t in recipe['data']['temperatures'])}",
        f"- {what_it_lacks(result)}",
        f"- {result['parameters']:,} trained parameters, {result['minutes']:.0f} minutes of training",
        f"- Slipstream {about['slipstream']}, vLLM {about['vllm']}, torch {about['torch']}, "
        f"{about['date'][:10]}", "",
        f"    {about['command']}", "",
        "`training.json` has everything, `training.html` the curve; `recipe.json` of the run is in it.", "",
    ]  # fmt: skip
    return "\n".join(lines)


def _page(result: Mapping[str, Any]) -> str:
    history = result["history"]
    depth = result["recipe"]["drafter"]["tokens"]
    labels = [f"{point['minutes']:.0f}" for point in history]
    lengths = Series("tokens per step", 1, [Point(i, p["length"]) for i, p in enumerate(history)])
    speedups = Series("predicted speedup", 1, [Point(i, p["speedup"]) for i, p in enumerate(history)])
    survival = [
        Series(f"draft token {j + 1}", j + 1, [Point(i, p["survival"][j]) for i, p in enumerate(history)])
        for j in range(depth)
    ]
    target = Path(result["recipe"]["target"]).name
    title = f"A drafter for {target} ({result['recipe']['method']})"
    legend = ", ".join(f"line {j + 1} from above: draft token {j + 1}" for j in range(depth))
    body = [
        f"<h1>{title}</h1>",
        verdict_box(f"{_best_length(result):.2f} tokens per step on held-out texts", []),
        '<div class="charts">',
        _chart("Tokens per step, held out", line_chart("length", labels, [lengths], x_title="minutes")),
        _chart(
            "Predicted speedup, one request at a time",
            line_chart("speedup", labels, [speedups], x_title="minutes"),
        ),
        _chart(
            f"Accepted with all before it ({legend})",
            line_chart("survival", labels, survival, x_title="minutes", from_zero=True),
        ),
        "</div>",
    ]
    return page(title, STYLE + series_style(), body)


def _chart(title: str, chart: str) -> str:
    return f'<div class="card"><h3>{title}</h3>{chart}</div>'
