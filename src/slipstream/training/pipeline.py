"""From a target and prompts to a drafter in a folder: data, training, evaluation, export."""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from transformers import AutoConfig

from slipstream.errors import ConfigError
from slipstream.planning.prediction import Acceptance
from slipstream.reporting.run_metadata import about_this_run
from slipstream.training.card import write_card
from slipstream.training.draft_model import DraftModel, SmallDraftModel, check_code, cut
from slipstream.training.drafter import Seen, TrainableDrafter, read_weights
from slipstream.training.eagle import Eagle
from slipstream.training.eagle3 import Eagle3, check_layers, layers_read
from slipstream.training.evaluate import Comparison, alone, compare, guess
from slipstream.training.features import Example, Target, load_target, read_examples, write_features
from slipstream.training.heads import MLP, Medusa
from slipstream.training.pretraining import pretrain_once
from slipstream.training.recipe import Recipe
from slipstream.training.responses import read_prompts, write_texts
from slipstream.training.small_model import check_small_model
from slipstream.training.trainer import State, Trainer

LAYERS = 4  # of a Medusa head and of a draft model, unless said otherwise
COMMON = 3072  # tokens that are learnt from in every batch
SAMPLED = 65536  # hidden states that tell what they are like
EVALUATED = 72  # texts that each evaluation in training looks at


class Watcher:
    """Told what is going on."""

    def doing(self, what: str, steps: float) -> None: ...

    def advanced(self, steps: float) -> None: ...

    def trained(self, state: State, progress: float) -> None: ...


def train(
    recipe: Recipe, folder: Path, data: Path, engine: dict[str, Any], watcher: Watcher
) -> dict[str, Any]:
    """Train a drafter by the recipe; what is done already is not done again."""
    several = PartialState()
    small = recipe.small_model
    if small is not None:  # before the target answers, which takes long
        check_small_model(recipe.target, small)
        check_code(small)
    if layers := layers_of(recipe):
        check_layers(recipe.target, recipe.start_from, layers)
    with several.main_process_first():  # what the first has done is done for all
        folder.mkdir(parents=True, exist_ok=True)
        _same(folder / "recipe.json", recipe.model_dump(), "--out")
        load = cache(partial(load_target, recipe.target))  # after vLLM has ended, and once
        collect(recipe, data, engine, load, watcher)
    examples = list(read_examples(data, layers_of(recipe)))
    model, target = load()
    drafter = make_drafter(recipe, target, model, examples)
    held_out = [example for example in examples if example.held_out]
    learnt_from = [example for example in examples if not example.held_out]
    pretraining = None
    if small is not None and small.corpus is not None and isinstance(drafter, DraftModel):
        watcher.doing("pre-training", 0)
        with several.main_process_first():
            pretraining = pretrain_once(drafter, small, recipe.training, folder)
    watcher.doing("training", 1.0)
    trainer = Trainer(drafter, learnt_from, held_out[:EVALUATED], recipe.training, folder, watcher.trained)
    state = trainer.run()
    watcher.doing("evaluating", 0)
    compared = compare(drafter.eval(), held_out)
    known = learnt_from[:EVALUATED]
    by_heart = alone(known, guess(drafter, known))
    result = _result(recipe, learnt_from, held_out, state, compared, by_heart, drafter)
    result["pretraining"] = pretraining
    if several.is_main_process:
        out = folder / "drafter"
        drafter.export(out, target.embedding.dtype)
        (out / "training.json").write_text(json.dumps(result, indent=1) + "\n")
        write_card(result, out)
    return result


def collect(
    recipe: Recipe,
    data: Path,
    engine: dict[str, Any],
    load: Callable[[], tuple[Any, Target]],
    watcher: Watcher,
) -> None:
    """Collect texts and hidden states, as far as they are not there."""
    data.mkdir(parents=True, exist_ok=True)
    made_of = {"target": recipe.target, "seed": recipe.training.seed, **recipe.data.model_dump()}
    _same(data / "data.json", made_of, "--data")
    prompts = read_prompts(recipe.data, recipe.target, recipe.training.seed)
    watcher.doing("the target answers", len(prompts))
    write_texts(data, prompts, recipe.data, recipe.target, engine, watcher.advanced)
    watcher.doing("the target's hidden states", len(prompts))
    write_features(data, lambda: load()[0], recipe.data.max_gib, watcher.advanced, layers_of(recipe))


def layers_of(recipe: Recipe) -> tuple[int, ...]:
    """Return the layers before which the method reads the target's states, beside its last state."""
    if recipe.method != Eagle3.method:
        return ()
    return layers_read(AutoConfig.from_pretrained(recipe.target).get_text_config().num_hidden_layers)


def _same(file: Path, content: dict[str, Any], option: str) -> None:
    """Write the content down the first time; refuse another one later."""
    written = json.dumps(content, indent=2) + "\n"
    if file.exists():
        if file.read_text() == written:
            return
        before, now = json.loads(file.read_text()), json.loads(written)
        # A setting that is new since then, and not used, is no change.
        if changed := sorted(key for key in {*before, *now} if before.get(key) != now.get(key)):
            raise ConfigError(
                f"{file.parent} was begun with other settings ({', '.join(changed)}); give another {option}, "
                "or the same settings to go on"
            )
    draft = file.with_suffix(".part")
    draft.write_text(written)
    draft.rename(file)


def make_drafter(recipe: Recipe, target: Target, model: Any, examples: Sequence[Example]) -> TrainableDrafter:
    torch.manual_seed(recipe.training.seed)
    weights = read_weights(recipe.start_from) if recipe.start_from else {}
    known = next((w for name, w in weights.items() if name.endswith("token_map")), None)
    wanted, num_tokens = recipe.drafter, recipe.drafter.tokens
    size = len(target.head)
    common = frequent(examples, min(COMMON, wanted.vocabulary), size)
    learnt_from = [e for e in examples if not e.held_out]
    hidden = _first(SAMPLED, (e.hidden[e.prompt_length - 1 :] for e in learnt_from))
    layers = [e.layers[e.prompt_length - 1 :] for e in learnt_from if e.layers is not None]
    seen_layers = _first(SAMPLED, layers) if layers else None
    everything = Seen(torch.arange(size), common, hidden, seen_layers)
    often = everything._replace(
        vocabulary=known.long() if known is not None else frequent(examples, wanted.vocabulary, size)
    )
    drafter: TrainableDrafter
    if recipe.method == "mlp":
        drafter = MLP(target, often, num_tokens, wanted.width or 2 * target.hidden_size)
    elif recipe.method == "medusa":
        drafter = Medusa(target, everything, num_tokens, wanted.layers or LAYERS)
    elif recipe.method == "eagle":
        drafter = Eagle(target, everything, num_tokens)
    elif recipe.method == "eagle3":
        drafter = Eagle3(target, everything, num_tokens)
    elif recipe.small_model is not None:
        drafter = SmallDraftModel(target, everything, num_tokens, recipe.small_model)
    else:
        drafter = DraftModel(target, everything, num_tokens, cut(model, wanted.layers or LAYERS))
    if weights:
        try:
            drafter.start_from(weights)
        except (KeyError, RuntimeError) as error:
            raise ConfigError(
                f"{recipe.start_from}: not a drafter of method {recipe.method} and the same sizes ({error})"
            ) from None
    return drafter


def _first(count: int, parts: Iterable[torch.Tensor]) -> torch.Tensor:
    """Return the first rows of these parts behind each other, without a copy of all of them."""
    chosen, rows = [], 0
    for part in parts:
        if rows >= count:
            break
        chosen.append(part)
        rows += len(part)
    return torch.cat(chosen)[:count]


def frequent(examples: Sequence[Example], size: int, vocab_size: int) -> torch.Tensor:
    """Return the most frequent tokens of the answers, in rising order; filled up with the first of the
    others."""
    counts: Counter[int] = Counter()
    for example in examples:
        if not example.held_out:
            counts.update(example.tokens[example.prompt_length :].tolist())
    chosen = [token for token, _ in counts.most_common(size)]
    there = set(chosen)
    rest = (token for token in range(vocab_size) if token not in there)
    chosen += [token for token, _ in zip(rest, range(min(size, vocab_size) - len(chosen)), strict=False)]
    return torch.tensor(sorted(chosen))


def _result(
    recipe: Recipe,
    learnt_from: Sequence[Example],
    held_out: Sequence[Example],
    state: State,
    compared: Sequence[Comparison],
    by_heart: Acceptance,
    drafter: TrainableDrafter,
) -> dict[str, Any]:
    return {
        "about": about_this_run(),
        "recipe": recipe.model_dump(),
        "texts": len(learnt_from),
        "answer_tokens": sum(len(e.tokens) - e.prompt_length for e in learnt_from),
        "held_out_texts": len(held_out),
        "parameters": drafter.num_learnt,
        "weights_read": drafter.weights_read,
        "target_parameters": drafter.target_size,
        "minutes": state.seconds / 60,
        "history": [asdict(point) for point in state.history],
        "held_out": [one.as_dict() for one in compared],
        "length_learnt_from": by_heart.tokens,
    }
