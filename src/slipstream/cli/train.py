"""slipstream train"""

import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer


def train(
    model: Annotated[str, typer.Argument(help="The target: a folder or Hugging Face id.")],
    method: Annotated[
        str,
        typer.Option(
            help="mlp (MLP speculator), medusa (heads), eagle (one decoder layer), eagle3 (the same on "
            "the states of three of the target's layers), draft (a small model: of the target's own layers, "
            "or --from).",
            show_default=False,
        ),
    ] = "",
    prompts: Annotated[
        list[str] | None,
        typer.Option(
            help="As a workload of slipstream bench: chat, code, math, ..., a file of JSON lines, or 'vllm: "
            "--dataset-name NAME ...'. Several times for several. Best: prompts of your own traffic.",
            show_default=False,
        ),
    ] = None,
    held_out: Annotated[
        list[str] | None,
        typer.Option(
            help="Prompts to evaluate on alone, in the same forms. Default: one in 17 of --prompts.",
            show_default=False,
        ),
    ] = None,
    texts: Annotated[int | None, typer.Option(min=4, help="Answers to learn from. Default: 2000.")] = None,
    max_tokens: Annotated[int | None, typer.Option(min=8, help="Their length. Default: 160.")] = None,
    temperatures: Annotated[
        str | None, typer.Option(help="Of the sampling that you serve. Default: 0,1.")
    ] = None,
    tokens: Annotated[
        int | None, typer.Option("--draft-tokens", min=1, max=8, help="Per step. Default: 3.")
    ] = None,
    epochs: Annotated[float | None, typer.Option(help="Over the answers. Default: 4.")] = None,
    budget: Annotated[
        str | None, typer.Option(help="Training ends then at the latest. Default: 40m.")
    ] = None,
    start_from: Annotated[
        Path | None,
        typer.Option(
            help="A drafter of the same method, to be trained on: for a target that was fine-tuned.",
            show_default=False,
        ),
    ] = None,
    small_model: Annotated[
        str | None,
        typer.Option(
            "--from",
            help="draft: an existing small model with the target's tokenizer, to be trained in place of "
            "layers of the target.",
            show_default=False,
        ),
    ] = None,
    corpus: Annotated[
        Path | None,
        typer.Option(
            help="With --from: a text file, or JSON lines with a text each, that the small model first "
            "learns to continue, for 10 minutes at most.",
            show_default=False,
        ),
    ] = None,
    trust_remote_code: Annotated[
        bool, typer.Option("--trust-remote-code", help="With --from: run code that comes with that model.")
    ] = False,
    recipe: Annotated[
        Path | None,
        typer.Option(help="All of it in a file, JSON or YAML; options given here win.", show_default=False),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Default: train-MODEL-METHOD.", show_default=False)] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            help="Answers and hidden states; methods can share them. Default: OUT/data.", show_default=False
        ),
    ] = None,
    dtype: Annotated[str, typer.Option(help="In which the target answers.")] = "auto",
    enforce_eager: Annotated[
        bool, typer.Option("--enforce-eager", help="Do not compile the target for its answers.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Make a drafter for MODEL from its own answers to prompts.

    The target answers (through vLLM), its hidden states are kept, the drafter learns to say what the target
    says next. What counts is measured all the while: how many of its draft tokens the target would accept,
    on prompts that were held out. Killed, it goes on where it was when started again.

    [dim]slipstream train ./model --method eagle --prompts traffic.jsonl[/]
    [dim]slipstream train ./model --method draft --from ./small-model --prompts traffic.jsonl[/]
    [dim]slipstream serve ./model --drafter train-model-eagle/drafter[/]
    """
    from slipstream.cli.measuring import seconds
    from slipstream.errors import ConfigError
    from slipstream.ops.host import require_vllm
    from slipstream.training.recipe import METHODS, Recipe

    options: dict[str, Any] = Recipe.load(recipe) if recipe else {}
    options["target"] = model
    options["method"] = method or options.get("method")
    if options["method"] not in METHODS:
        raise ConfigError(f"--method {options['method'] or '(not given)'}: write one of {', '.join(METHODS)}")
    given: dict[str, dict[str, Any]] = {
        "data": {
            "prompts": prompts or None,
            "held_out_prompts": held_out or None,
            "texts": texts,
            "max_tokens": max_tokens,
            "temperatures": None if temperatures is None else _temperatures(temperatures),
        },
        "training": {
            "epochs": epochs,
            "budget_minutes": None if budget is None else seconds("--budget", budget) / 60,
        },
        "drafter": {"tokens": tokens},
    }
    for part, values in given.items():
        chosen = {name: value for name, value in values.items() if value is not None}
        options[part] = {**options.get(part, {}), **chosen}
    if start_from:
        options["start_from"] = str(start_from)
    from_model = {
        "name": small_model,
        "corpus": None if corpus is None else str(corpus),
        "trust_remote_code": trust_remote_code or None,
    }
    if chosen := {name: value for name, value in from_model.items() if value is not None}:
        options["small_model"] = {**(options.get("small_model") or {}), **chosen}
        if "name" not in options["small_model"]:
            raise ConfigError("--corpus and --trust-remote-code are for the model of --from: name one")
    wanted = Recipe.build(options)
    require_vllm()
    folder = out or Path(f"train-{Path(model).name}-{wanted.method}")
    engine = {"dtype": dtype, "enforce_eager": enforce_eager}
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")  # it would write over the progress bar
    os.environ.setdefault("VLLM_LOGGING_STREAM", "ext://sys.stderr")  # standard output is for the result
    try:
        from slipstream.cli.training import show, watched
        from slipstream.training.pipeline import train as run
    except ImportError as error:
        raise ConfigError(
            f"{error.name} is not installed: pip install '.[train]' in a clone of Slipstream"
        ) from None

    with watched() as watcher:
        result = run(wanted, folder, data or folder / "data", engine, watcher)
    if as_json:
        sys.stdout.write(json.dumps(result, indent=2) + "\n")
    else:
        show(result, folder / "drafter")


def _temperatures(text: str) -> list[float]:
    from slipstream.errors import ConfigError

    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(f"--temperatures {text}: write numbers with commas, as 0,1") from None
