"""The drafters on a small random Llama: nothing looks ahead, all learn, and what is exported is what was
trained."""

import contextlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn.functional import silu

from slipstream.errors import ConfigError
from slipstream.methods import recognise
from slipstream.testing import models
from slipstream.training import eagle3
from slipstream.training.draft_model import SmallDraftModel
from slipstream.training.drafter import Batch, TrainableDrafter
from slipstream.training.eagle3 import check_layers, layers_in_config, layers_read
from slipstream.training.evaluate import alone, composed, guess
from slipstream.training.features import Example, Target, load_target, states_before
from slipstream.training.pipeline import Watcher, frequent, make_drafter, train
from slipstream.training.pretraining import SEQUENCE, next_token_loss, pretrain, pretrain_once, read_corpus
from slipstream.training.recipe import METHODS, Recipe, SmallModel, Training
from slipstream.training.trainer import Trainer
from unit.folders import write_vllm

PROMPT, LENGTH, TOKENS = 4, 36, 3


@pytest.fixture(scope="module")
def target() -> tuple[Any, Target]:
    model, parts = load_target(str(models.varied_llama()))
    return model.float(), parts


@pytest.fixture(scope="module")
def examples(target: tuple[Any, Target]) -> list[Example]:
    """Greedy texts of the target, the last ones held out."""
    model, _ = target
    chance = torch.Generator().manual_seed(0)
    prompts = torch.randint(0, 12, (96, PROMPT), generator=chance)
    with torch.inference_mode():
        texts = model.generate(
            prompts, attention_mask=torch.ones_like(prompts), do_sample=False, max_new_tokens=LENGTH - PROMPT
        )
        output = model.get_decoder()(input_ids=texts, output_hidden_states=True)
        layers = states_before(layers_read(model.config.num_hidden_layers), output)
    states = zip(texts.clone(), output.last_hidden_state.clone(), layers.clone(), strict=True)
    return [
        Example(text, last, PROMPT, "any", held_out=i >= 80, temperature=0.0, layers=inner)
        for i, (text, last, inner) in enumerate(states)
    ]


def recipe(method: str, **options: Any) -> Recipe:
    return Recipe.build({"target": "any", "method": method, "drafter": {"vocabulary": 200}, **options})


@pytest.fixture(scope="module")
def small_model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A random model of other sizes than the target, with fewer rows in its embedding."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=250, hidden_size=64, intermediate_size=128, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, tie_word_embeddings=False, initializer_range=0.12,
    )  # fmt: skip
    folder = tmp_path_factory.mktemp("small-model")
    LlamaForCausalLM(config).save_pretrained(folder)
    return str(folder)


@pytest.fixture(params=[*METHODS, "from a small model"])
def drafter(
    request: pytest.FixtureRequest, target: tuple[Any, Target], examples: list[Example], small_model: str
) -> TrainableDrafter:
    if request.param in METHODS:
        layers = 1 if request.param == "draft" else 2
        wanted = recipe(request.param, drafter={"vocabulary": 200, "layers": layers})
    else:
        wanted = recipe("draft", small_model={"name": small_model})
    return make_drafter(wanted, target[1], target[0], examples)


def test_nothing_looks_ahead(drafter: TrainableDrafter, examples: list[Example]) -> None:
    batch = Batch.of(examples[:3])
    assert batch.layers is not None
    at = 9
    for number in range(1, TOKENS + 1):
        tokens, hidden, layers = batch.tokens.clone(), batch.hidden.clone(), batch.layers.clone()
        tokens[:, at + number + 1 :] = 7  # those that are to be guessed, and later ones
        hidden[:, at + 1 :] = layers[:, at + 1 :] = 1.0  # what the target thinks of tokens it has not read
        with torch.inference_mode():
            before = drafter.states(batch)[number - 1][:, at]
            changed = replace(batch, tokens=tokens, hidden=hidden, layers=layers)
            after = drafter.states(changed)[number - 1][:, at]
            tokens[:, at + number] = 3
            other = drafter.states(replace(batch, tokens=tokens))[number - 1][:, at]
        torch.testing.assert_close(before, after)
        sees_last_token = drafter.method != "medusa"
        assert torch.allclose(before, other) != sees_last_token


def test_every_place_of_an_answer_is_guessed_at(drafter: TrainableDrafter, examples: list[Example]) -> None:
    """In texts of several lengths, from the last token of the prompt on."""
    some = [shortened(*cut) for cut in zip(examples, (36, 30, 24), (4, 7, 5), strict=False)]
    for example, guesses in zip(some, guess(drafter, some), strict=True):
        with torch.inference_mode():
            states = drafter.states(Batch.of([example]))
            expected = torch.stack([drafter.guesses(s[0]) for s in states], dim=-1).numpy()
        answer = slice(example.prompt_length - 1, len(example.tokens) - 2)
        np.testing.assert_array_equal(guesses[answer], expected[answer])


def shortened(example: Example, length: int, prompt_length: int) -> Example:
    assert example.layers is not None
    return replace(
        example, tokens=example.tokens[:length], hidden=example.hidden[:length],
        layers=example.layers[:length], prompt_length=prompt_length,
    )  # fmt: skip


def test_it_learns(drafter: TrainableDrafter, examples: list[Example], tmp_path: Path) -> None:
    """What a random model says can be learnt by heart, but not guessed."""
    few = examples[:12]
    untrained = alone(few, guess(drafter, few)).tokens
    training = Training(epochs=200, batch_tokens=1024, evaluations=2, learning_rate=3e-3)
    state = Trainer(drafter, few, few, training, tmp_path).run()
    best = max(point.length for point in state.history)
    assert best > untrained + 0.5
    assert alone(few, guess(drafter, few)).tokens == pytest.approx(best, abs=0.1)


def test_a_killed_run_goes_on_where_it_was(
    target: tuple[Any, Target], examples: list[Example], tmp_path: Path
) -> None:
    training = Training(epochs=12, batch_tokens=1024, evaluations=4)
    learnt, held_out = [e for e in examples if not e.held_out], [e for e in examples if e.held_out]

    def trained(folder: str, kill_after: int | None) -> tuple[int, dict[str, torch.Tensor]]:
        (tmp_path / folder).mkdir(exist_ok=True)
        drafter = make_drafter(recipe("mlp"), target[1], target[0], examples)

        class Killed(Exception): ...

        def told(state: Any, progress: float) -> None:
            if state.step == kill_after:
                raise Killed

        trainer = Trainer(drafter, learnt, held_out, training, tmp_path / folder, told)
        begun = trainer.state.step
        with contextlib.suppress(Killed):
            trainer.run()
        return begun, drafter.state_dict()

    _, whole = trained("whole", None)
    trained("killed", 25)
    begun, resumed = trained("killed", None)
    assert 0 < begun <= 25
    for name, weight in whole.items():
        torch.testing.assert_close(resumed[name], weight)


def test_acceptance_is_what_agrees_with_the_text() -> None:
    text = torch.tensor([5, 5, 1, 2, 3, 4, 5, 6])
    example = Example(text, torch.zeros(8, 4), 2, "any", True, 0.0)
    guesses = np.full((8, 2), 99)
    guesses[1] = [2, 3]  # after token 1: both right, so the next step is after token 4
    guesses[4] = [5, 0]  # the first right: the next is after token 6, the last one
    acceptance = alone([example], [guesses])
    assert acceptance.survival == (1.0, 0.5)
    assert acceptance.tokens == 2.5
    again = composed([example], [guesses], acceptance.survival, [], 100)
    assert again.survival == acceptance.survival


def test_frequent_tokens_are_of_answers_that_are_learnt_from() -> None:
    def text(tokens: list[int], held_out: bool) -> Example:
        return Example(torch.tensor(tokens), torch.zeros(len(tokens), 1), 1, "any", held_out, 0.0)

    examples = [text([9, 3, 3, 7], False), text([9, 8, 8, 8], True)]
    assert frequent(examples, 2, 10).tolist() == [3, 7]
    assert frequent(examples, 4, 10).tolist() == [0, 1, 3, 7]
    assert len(frequent(examples, 99, 10)) == 10


def test_training_goes_on_from_what_was_exported(
    drafter: TrainableDrafter, target: tuple[Any, Target], examples: list[Example], tmp_path: Path
) -> None:
    perturb(drafter, 0.01)
    drafter.export(tmp_path, torch.float32)
    method = {"mlp_speculator": "mlp", "draft_model": "draft"}.get(drafter.method, drafter.method)
    shape = {"vocabulary": 200, "layers": 1 if method == "draft" else 2}
    exported: dict[str, Any] = {"start_from": str(tmp_path)}
    if isinstance(drafter, SmallDraftModel):
        exported = {"small_model": {"name": str(tmp_path)}}
    again = make_drafter(recipe(method, drafter=shape, **exported), target[1], target[0], examples)
    for name, weight in drafter.state_dict().items():
        torch.testing.assert_close(again.state_dict()[name], weight)
    other = recipe("eagle" if method == "mlp" else "mlp", start_from=str(tmp_path))
    with pytest.raises(ConfigError, match="not a drafter of method"):
        make_drafter(other, target[1], target[0], examples)


@pytest.mark.parametrize(
    "named",
    [
        {"eagle_aux_hidden_state_layer_ids": [0, 2]},
        {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 2]}},
        {"eagle_config": {"layer_ids": [0, 2]}},
    ],
)
def test_an_eagle3_head_that_reads_other_layers_is_refused(named: dict[str, Any], tmp_path: Path) -> None:
    """Before the target answers, which takes long."""
    (tmp_path / "config.json").write_text(json.dumps(named))
    other = recipe("eagle3", target=str(models.varied_llama()), start_from=str(tmp_path))
    with pytest.raises(ConfigError, match=r"before layers 0, 2, and here those before 0, 1 are stored"):
        train(other, tmp_path / "out", tmp_path / "data", {}, Watcher())


def test_an_eagle3_head_that_reads_the_same_layers_or_names_none_is_taken(tmp_path: Path) -> None:
    target = str(models.varied_llama())
    for config in (layers_in_config((0, 1)), {"eagle_aux_hidden_state_layer_ids": [1, 0]}, {"any": 1}):
        (tmp_path / "config.json").write_text(json.dumps(config))
        check_layers(target, str(tmp_path), (0, 1))


def test_eagle3_is_not_trained_for_a_target_whose_layers_vllm_keeps_to_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vllm = write_vllm(
        tmp_path,
        registry='MODELS = {"LlamaForCausalLM": ("llama", "LlamaForCausalLM")}',
        llama="class LlamaForCausalLM: ...",
    )
    monkeypatch.setattr(eagle3, "vllm_folder", lambda: vllm)
    with pytest.raises(ConfigError, match=r"LlamaForCausalLM .*--method eagle"):
        check_layers(str(models.varied_llama()), None, (0, 1))


@pytest.mark.parametrize(("begun", "wanted"), [("eagle", "draft"), ("draft", "draft"), ("eagle3", "eagle3")])
def test_weights_are_not_dropped_in_silence(
    begun: str, wanted: str, target: tuple[Any, Target], examples: list[Example], tmp_path: Path
) -> None:
    """Of a head given as a draft model, of a draft model with more layers, of a head with a matrix of its own
    for the output."""
    first = make_drafter(recipe(begun, drafter={"layers": 2}), target[1], target[0], examples)
    first.export(tmp_path, torch.float32)
    if begun == "eagle3":
        file = tmp_path / "model.safetensors"
        weights = {name: weight.clone() for name, weight in load_file(file).items()}
        save_file({**weights, "lm_head.weight": torch.zeros(4, target[1].hidden_size)}, file)
    again = recipe(wanted, start_from=str(tmp_path), drafter={"layers": 1})
    with pytest.raises(ConfigError, match=r"not a drafter of method .*unknown weights"):
        make_drafter(again, target[1], target[0], examples)


def perturb(drafter: TrainableDrafter, size: float) -> None:
    """Change all weights, so that none is what an absent one would be taken for."""
    with torch.no_grad():
        for weight in drafter.parameters():
            if weight.requires_grad:
                weight.add_(size * torch.randn_like(weight))


def test_an_exported_mlp_speculator_drafts_the_same(
    target: tuple[Any, Target], examples: list[Example], tmp_path: Path
) -> None:
    from slipstream.engine.worker.mlp_speculator import load_mlp_speculator

    drafter = make_drafter(recipe("mlp"), target[1], target[0], examples)
    drafter.export(tmp_path, torch.float32)
    served = load_mlp_speculator(str(tmp_path), torch.float32, torch.device("cpu"))
    example = examples[0]
    with torch.inference_mode():
        drafts = served(example.hidden[:-1], example.tokens[1:], TOKENS)
        states = drafter.states(Batch.of([example]))
        assert torch.equal(drafts[:, 0], drafter.guesses(states[0])[0, : len(example.tokens) - 1])
    assert set(drafts.unique().tolist()) <= set(drafter.vocabulary.tolist())


@pytest.mark.parametrize("from_small_model", [False, True])
def test_an_exported_draft_model_is_a_model(
    target: tuple[Any, Target],
    examples: list[Example],
    small_model: str,
    from_small_model: bool,
    tmp_path: Path,
) -> None:
    from transformers import AutoModelForCausalLM

    begun = {"small_model": {"name": small_model}} if from_small_model else {}
    wanted = recipe("draft", drafter={"layers": 1, "vocabulary": 200}, **begun)
    drafter = make_drafter(wanted, target[1], target[0], examples)
    drafter.export(tmp_path, torch.float32)
    served = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    assert served.config.vocab_size == len(target[1].head)  # vLLM takes no other
    example = examples[0]
    with torch.inference_mode():
        logits = served(input_ids=example.tokens[None]).logits[0]
        states = drafter.states(Batch.of([example]))
    assert torch.equal(logits[1:].argmax(-1), drafter.guesses(states[0])[0, : len(example.tokens) - 1])


def test_eagle_sees_what_the_engine_will_show_it(target: tuple[Any, Target], examples: list[Example]) -> None:
    """Against the drafting of one place by itself: keys of the target's states up to it, then its own."""
    drafter = make_drafter(recipe("eagle"), target[1], target[0], examples)
    example, at = examples[0], 11
    with torch.inference_mode():
        states = drafter.states(Batch.of([example]))
        hidden = example.hidden.clone()
        for number in range(1, TOKENS + 1):
            # One plain causal pass, in which the states after `at` are the drafter's own.
            own = drafter.states(Batch.of([replace(example, hidden=hidden)]))[0][0, at + number - 1]
            torch.testing.assert_close(states[number - 1][0, at], own, rtol=1e-4, atol=1e-4)
            hidden[at + number] = own


@pytest.mark.parametrize("num_layers", range(2, 40))
def test_layers_that_are_read(num_layers: int) -> None:
    """vLLM sorts them and gives each state once; transformers norms the state after the last layer."""
    layers = layers_read(num_layers)
    assert list(layers) == sorted(set(layers))
    assert len(layers) == min(num_layers, 3)
    assert layers[0] >= 0
    assert layers[-1] < num_layers


def test_an_exported_three_layer_head_drafts_in_vllm_what_was_trained(
    target: tuple[Any, Target], examples: list[Example], tmp_path: Path
) -> None:
    """vLLM's computation, written out from the files, against the head that was trained."""
    torch.manual_seed(0)
    drafter = make_drafter(recipe("eagle3"), target[1], target[0], examples)
    perturb(drafter, 0.1)
    drafter.export(tmp_path, torch.float32)
    example, at = examples[0], 11
    with torch.inference_mode():
        states = drafter.states(Batch.of([example]))
        served = served_eagle3(tmp_path, target[1], example, at)
    assert len(served) == TOKENS
    for ours, theirs in zip(states, served, strict=True):
        torch.testing.assert_close(ours[0, at], theirs, rtol=1e-3, atol=1e-3)


def test_the_files_of_a_three_layer_head(
    target: tuple[Any, Target], examples: list[Example], tmp_path: Path
) -> None:
    make_drafter(recipe("eagle3"), target[1], target[0], examples).export(tmp_path, torch.float32)
    config = json.loads((tmp_path / "config.json").read_text())
    assert recognise("any", config["architectures"], config) == "eagle3"
    layers = layers_read(target[0].config.num_hidden_layers)
    assert layers_in_config(layers).items() <= config.items()
    weights = load_file(tmp_path / "model.safetensors")
    assert weights["fc.weight"].shape == (target[1].hidden_size, len(layers) * target[1].hidden_size)
    assert weights["midlayer.self_attn.q_proj.weight"].shape[1] == 2 * target[1].hidden_size
    shared = ("embed_tokens", "lm_head", "d2t", "t2d")  # vLLM takes the target's if these are absent
    assert not [name for name in weights if name.startswith(shared)]


def served_eagle3(folder: Path, target: Target, example: Example, at: int) -> list[torch.Tensor]:
    """Return the states of the draft tokens after place `at` as `llama_eagle3.py` of vLLM 0.32 computes them:
    one pass over the text up to there, then one pass per draft token, with a cache of keys and values."""
    assert example.layers is not None
    config = json.loads((folder / "config.json").read_text())
    weights = load_file(folder / "model.safetensors")
    heads, kv_heads, size = (
        config[key] for key in ("num_attention_heads", "num_key_value_heads", "head_dim")
    )
    frequencies = config["rope_theta"] ** -(torch.arange(0, size, 2) / size)
    keys, values = torch.zeros(0, heads, size), torch.zeros(0, heads, size)

    def times(x: torch.Tensor, name: str) -> torch.Tensor:
        return x @ weights[f"{name}.weight"].T

    def normed(x: torch.Tensor, name: str) -> torch.Tensor:
        return x * (x.pow(2).mean(-1, keepdim=True) + config["rms_norm_eps"]).rsqrt() * weights[name]

    def rotated(x: torch.Tensor, begin: int) -> torch.Tensor:
        angles = torch.arange(begin, begin + len(x))[:, None, None] * frequencies
        low, high = x.chunk(2, dim=-1)
        cos, sin = angles.cos(), angles.sin()
        return torch.cat([low * cos - high * sin, high * cos + low * sin], dim=-1)

    def ran(tokens: torch.Tensor, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Run the layer on the tokens that come next; return its output, normed and as it is."""
        nonlocal keys, values
        begin = len(keys)
        embedded = normed(target.embedding.float()[tokens], "midlayer.input_layernorm.weight")
        x = torch.cat([embedded, normed(hidden, "midlayer.hidden_norm.weight")], dim=-1)
        query, key, value = (
            times(x, f"midlayer.self_attn.{part}_proj").unflatten(-1, (-1, size)) for part in "qkv"
        )
        key, value = (part.repeat_interleave(heads // kv_heads, dim=1) for part in (key, value))
        keys, values = torch.cat([keys, rotated(key, begin)]), torch.cat([values, value])
        scores = torch.einsum("qhd,khd->hqk", rotated(query, begin), keys) * size**-0.5
        seen = torch.ones(len(tokens), len(keys), dtype=torch.bool).tril(begin)
        attention = scores.masked_fill(~seen, -torch.inf).softmax(-1)
        attended = torch.einsum("hqk,khd->qhd", attention, values).flatten(1)
        x = hidden + times(attended, "midlayer.self_attn.o_proj")
        inner = normed(x, "midlayer.post_attention_layernorm.weight")
        inner = silu(times(inner, "midlayer.mlp.gate_proj")) * times(inner, "midlayer.mlp.up_proj")
        x = x + times(inner, "midlayer.mlp.down_proj")
        return normed(x, "norm.weight"), x

    tokens = example.tokens[1:]  # beside each state stands the token after it
    states, before = ran(tokens[: at + 1], times(example.layers[: at + 1].float(), "fc"))
    served = [states[-1]]
    for place in range(at + 1, at + TOKENS):  # the drafts are right, so they are the text
        states, before = ran(tokens[place : place + 1], before[-1:])
        served.append(states[-1])
    return served


def test_pre_training_learns_the_corpus_once(
    target: tuple[Any, Target], examples: list[Example], small_model: str, tmp_path: Path
) -> None:
    wanted = recipe("draft", small_model={"name": small_model})
    drafter = make_drafter(wanted, target[1], target[0], examples)
    assert isinstance(drafter, SmallDraftModel)
    corpus = (torch.arange(32 * SEQUENCE) % 7).view(32, SEQUENCE)
    with torch.no_grad():
        before = float(next_token_loss(drafter, corpus[:4], 0))
    training = Training(batch_tokens=SEQUENCE, learning_rate=3e-3)
    about = pretrain(drafter, corpus, 10.0, training)
    with torch.no_grad():
        assert float(next_token_loss(drafter, corpus[:4], 0)) < before - 1.0
    assert about["tokens"] == corpus.numel()
    saved = {"about": about, "model": drafter.state_dict()}
    torch.save(saved, tmp_path / "pretrained.pt")
    again = make_drafter(wanted, target[1], target[0], examples)
    assert isinstance(again, SmallDraftModel)
    small = SmallModel(name=small_model, corpus="it is not read again")
    assert pretrain_once(again, small, training, tmp_path) == about
    for name, weight in drafter.state_dict().items():
        torch.testing.assert_close(again.state_dict()[name], weight)


def test_a_corpus_is_text_or_json_lines(tmp_path: Path) -> None:
    def tokenize(text: str) -> list[int]:
        return [ord(letter) for letter in text]

    plain, lines = tmp_path / "corpus.txt", tmp_path / "corpus.jsonl"
    plain.write_text("abc\n" * SEQUENCE)
    lines.write_text('{"text": "abcd"}\n' * SEQUENCE)
    assert read_corpus(plain, tokenize).shape == (4, SEQUENCE)
    assert read_corpus(lines, tokenize)[0, :5].tolist() == [97, 98, 99, 100, 97]
    lines.write_text('{"prompt": "abc"}\n')
    with pytest.raises(ConfigError, match="line 1 is not a JSON object with a text"):
        read_corpus(lines, tokenize)
    plain.write_text("too short")
    with pytest.raises(ConfigError, match="it has 9 tokens"):
        read_corpus(plain, tokenize)
