"""What limits a drafter: acceptance over the number of texts that it learns from, and over the time; and
which method makes the most of the same texts and time.

    python benchmarks/training_curve.py TARGET DATA OUT METHOD[,METHOD...] TEXTS:MINUTES...

DATA is what `slipstream train --data` left; the states that EAGLE-3 reads are added if they are missing. A
drafter that is no worse with few texts, read often, than with many lacks time, not texts; one that guesses
the texts it has learnt from much better than others lacks texts.
"""

import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from slipstream.reporting.run_metadata import about_this_run
from slipstream.training.evaluate import alone, guess
from slipstream.training.features import Example, Target, load_target, read_examples, write_features
from slipstream.training.pipeline import EVALUATED, layers_of, make_drafter
from slipstream.training.recipe import Recipe
from slipstream.training.trainer import Trainer


def main() -> None:
    target_name, data, out = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    methods = sys.argv[4].split(",")
    wanted = [(int(texts), float(minutes)) for texts, minutes in (pair.split(":") for pair in sys.argv[5:])]
    model, target = load_target(target_name)
    recipes = {method: recipe_of(target_name, method, 1.0) for method in methods}
    layers = max((layers_of(recipe) for recipe in recipes.values()), key=len)
    write_features(data, lambda: model, recipes[methods[0]].data.max_gib, lambda texts: None, layers)
    examples = list(read_examples(data, layers))
    points = []
    for texts, minutes in wanted:
        for method in methods:
            read = examples if layers_of(recipes[method]) else [replace(e, layers=None) for e in examples]
            points.append(trained(recipe_of(target_name, method, minutes), target, model, read, texts))
            out.write_text(json.dumps({"about": about_this_run(), "points": points}, indent=1) + "\n")


def recipe_of(target: str, method: str, minutes: float) -> Recipe:
    training = {"epochs": 1000, "budget_minutes": minutes, "evaluations": 1}
    return Recipe.build({"target": target, "method": method, "training": training})


def trained(
    recipe: Recipe, target: Target, model: Any, examples: Sequence[Example], texts: int
) -> dict[str, Any]:
    """Train on the first texts, and return what is accepted of the drafter."""
    learnt_from = [example for example in examples if not example.held_out][:texts]
    drafter = make_drafter(recipe, target, model, learnt_from)
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(drafter, learnt_from, greedy(examples, True), recipe.training, Path(folder))
        state = trainer.run()
    drafter.eval()
    known = greedy(learnt_from, False)
    return {
        "method": recipe.method,
        "texts": len(learnt_from),
        "answer_tokens": sum(len(e.tokens) - e.prompt_length for e in learnt_from),
        "minutes": state.seconds / 60,
        "times_read": trainer.epochs,
        "held_out": state.history[-1].length,
        "learnt_from": alone(known, guess(drafter, known)).tokens,
    }


def greedy(examples: Sequence[Example], held_out: bool) -> list[Example]:
    return [e for e in examples if e.held_out == held_out and e.temperature == 0][:EVALUATED]


if __name__ == "__main__":
    main()
