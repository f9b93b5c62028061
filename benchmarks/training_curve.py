"""What limits a drafter: acceptance over the number of texts that it learns from, and over the time.

    python benchmarks/training_curve.py TARGET DATA OUT METHOD TEXTS:MINUTES...

DATA is what `slipstream train --data` left. A drafter that is no worse with few texts, read often, than with
many lacks time, not texts; one that guesses the texts it has learnt from much better than others lacks texts.
"""

import json
import sys
import tempfile
from pathlib import Path

from slipstream.reporting.run_metadata import about_this_run
from slipstream.training.evaluate import alone, guess
from slipstream.training.features import Example, load_target, read_examples
from slipstream.training.pipeline import EVALUATED, make_drafter
from slipstream.training.recipe import Recipe
from slipstream.training.trainer import Trainer


def main() -> None:
    target_name, data, out, method = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4]
    examples = list(read_examples(data))
    model, target = load_target(target_name)
    points = []
    for texts, minutes in (pair.split(":") for pair in sys.argv[5:]):
        training = {"epochs": 1000, "budget_minutes": float(minutes), "evaluations": 1}
        recipe = Recipe.build({"target": target_name, "method": method, "training": training})
        learnt_from = [example for example in examples if not example.held_out][: int(texts)]
        drafter = make_drafter(recipe, target, model, learnt_from)
        with tempfile.TemporaryDirectory() as folder:
            trainer = Trainer(drafter, learnt_from, greedy(examples, True), recipe.training, Path(folder))
            state = trainer.run()
        drafter.eval()
        known = greedy(learnt_from, False)
        point = {
            "method": method,
            "texts": len(learnt_from),
            "answer_tokens": sum(len(e.tokens) - e.prompt_length for e in learnt_from),
            "minutes": state.seconds / 60,
            "times_read": trainer.epochs,
            "held_out": state.history[-1].length,
            "learnt_from": alone(known, guess(drafter, known)).tokens,
        }
        points.append(point)
        out.write_text(json.dumps({"about": about_this_run(), "points": points}, indent=1) + "\n")


def greedy(examples: list[Example], held_out: bool) -> list[Example]:
    return [e for e in examples if e.held_out == held_out and e.temperature == 0][:EVALUATED]


if __name__ == "__main__":
    main()
