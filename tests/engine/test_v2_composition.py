"""Proposers composed on vLLM's V2 model runner with asynchronous scheduling: the text is bare V2's, and what
is sampled follows the target's distribution, also where the drafter samples its drafts.

V2 needs Triton, whose kernels are compiled for the CPU (`slipstream.testing.v2`).
"""

import json
import os
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.runs import run_program
from engine.test_composition import MODEL_LEN, SCHEMA, features
from engine.test_sampled_distribution import PROMPT, SIGNIFICANT, TOP_K, law, p_value
from slipstream.testing import models
from slipstream.testing import v2 as v2_on_cpu

HERE = Path(__file__).parent
K = 3
RANDOM = np.random.default_rng(2)
REQUESTS: list[tuple[list[int], dict[str, Any]]] = [
    (RANDOM.integers(0, 256, n).tolist(), {}) for n in (33, 41, 60, 36, 47, 39, 34, 52)
]
"""Lengths have one power of two above them: for each, kernels are compiled."""
BARE = {"bare": {"speculate": "off"}}
DRAWS = 1_500
SAMPLED = {"draft_sample_method": "probabilistic"}
Job = dict[str, Any]


def job(
    model: Path, requests: Sequence[tuple[Any, Any]], arms: dict[str, Any], texts: Path | None = None
) -> Job:
    """Return arms that write to these prompts, sampled so; `texts` keeps what bare vLLM writes."""
    return {"model": str(model), "requests": requests, "arms": arms, "texts": str(texts) if texts else None}


def run(jobs: dict[str, Job]) -> dict[str, Any]:
    """Return what the arms of each job did, by its name."""
    environment = v2_on_cpu.environment({**os.environ, "VLLM_ENABLE_V1_MULTIPROCESSING": "0"})
    results: dict[str, Any] = run_program(HERE / "v2" / "compose.py", environment, told=json.dumps(jobs))
    return results


def prophet(texts: Path) -> dict[str, Any]:
    """Return the speculation of a proposer that knows what bare vLLM has written, and is often right."""
    plugins = {"engine.planted.Prophet": {"texts": str(texts)}}
    return {"mode": "fixed", "num_draft_tokens": K, "plugins": plugins}


def composed(texts: Path) -> Job:
    fixed = prophet(texts)
    planned = {"plugins": fixed["plugins"]}
    draft_model = {"drafter": str(models.noisy_llama())}
    arms: dict[str, dict[str, Any]] = {
        "lookup": {"speculate": fixed},
        "lookup, planned": {"speculate": planned},
        "draft model": {"speculate": fixed, **draft_model},
        "draft model, planned": {"speculate": planned, **draft_model},
        "eagle": {"speculate": fixed, "drafter": str(models.eagle_head(models.varied_llama()))},
        "eagle3": {"speculate": fixed, "drafter": str(models.eagle3_head(models.varied_llama()))},
        "dflash": {"speculate": fixed, "drafter": str(models.dflash_head(models.varied_llama()))},
        "dspark": {"speculate": fixed, "drafter": str(models.dspark_head(models.varied_llama()))},
        "dspark, planned": {
            "speculate": {**planned, "vllm": SAMPLED},
            "drafter": str(models.dspark_head(models.varied_llama())),
        },
        "one at once": {"speculate": fixed, **draft_model, "max_num_seqs": 1},
        "chunks": {"speculate": fixed, **draft_model, "max_num_batched_tokens": 32},
        "cached": {"speculate": fixed, **draft_model, "rounds": 2},
        "preempted": {"speculate": fixed, **draft_model, "num_gpu_blocks_override": 6, "block_size": 32},
        "sampled drafts": {"speculate": {**fixed, "vllm": SAMPLED}, **draft_model},
        "sampled drafts, planned": {"speculate": {**planned, "vllm": SAMPLED}, **draft_model},
        "draft model, left out in turn": {"speculate": fixed, **draft_model, "reads": 5},
        "eagle, left out in turn": {
            "speculate": fixed, "drafter": str(models.eagle_head(models.varied_llama())), "reads": 5,
        },
        "sampled drafts, eagle": {
            "speculate": {**fixed, "vllm": SAMPLED}, "drafter": str(models.eagle_head(models.varied_llama())),
        },
    }  # fmt: skip
    return job(models.varied_llama(), REQUESTS, BARE | arms, texts)


def looked_up_on_the_device(texts: Path) -> Job:
    """The prophet is wrong every other time; what this model writes soon repeats itself."""
    wrong = {"engine.planted.Prophet": {"texts": str(texts), "wrong": 0.5}}
    asked = {"mode": "fixed", "num_draft_tokens": K, "plugins": wrong, "ngram": {}}
    return job(models.stuttering_llama(), REQUESTS, BARE | {"lookup": {"speculate": asked}}, texts)


def drafting_for_itself(**more: Any) -> dict[str, Any]:
    """Return an arm in which the target is its own drafter, with two requests at a time."""
    asked = {"mode": "fixed", "num_draft_tokens": K, "plugins": {"slipstream.testing.proposers.Silent": {}}}
    arm = {"speculate": asked, "drafter": str(models.varied_llama()), "max_num_seqs": 2, "block_size": 32}
    return arm | more


def with_itself(_: Path) -> Job:
    """The target is its own drafter: as long as it has read a text, all its tokens are accepted. Two requests
    at a time, so that some begin while it runs and others while it is left out; twice the same prompts, so
    that prefixes are cached which it has read, and some which it has not."""
    arm = drafting_for_itself(kv_cache_memory_bytes=4 * 1024**2, rounds=3)
    arms = {"always": arm, "in turn": {**arm, "reads": 30}}
    return job(models.varied_llama(), REQUESTS, BARE | arms)


def with_itself_after_a_shared_text(_: Path) -> Job:
    """All begin with a text that was read while the drafter was left out, and that stays in the cache."""
    shared, own = REQUESTS[2][0], np.random.default_rng(3).integers(0, 256, (24, 8)).tolist()
    requests: list[tuple[list[int], dict[str, Any]]] = [(shared + text, {}) for text in own]
    return job(models.varied_llama(), requests, BARE | {"rests": drafting_for_itself(rests=40)})


def with_mtp(texts: Path) -> Job:
    asked = prophet(texts) | {"drafter": {"method": "mtp"}}
    return job(models.with_mtp_layer(), REQUESTS, BARE | {"mtp": {"speculate": asked}}, texts)


WITH_TOKENIZER = {
    "skip_tokenizer_init": False, "max_model_len": MODEL_LEN, "max_num_seqs": 24,
    "max_num_batched_tokens": 256, "kv_cache_memory_bytes": 64 * 1024**2,
    "sampling": {"detokenize": True, "ignore_eos": False},
}  # fmt: skip


def structured(texts: Path) -> Job:
    """Of the prophet's wrong tokens the grammars forbid most, and one batch has requests without grammar."""
    grammars = [{"json": SCHEMA}, {"regex": "([a-z]{3}-[0-9]{2} ){9}"}, None]
    requests = [
        (prompt, {"max_tokens": 32, "structured_outputs": grammar} if grammar else {})
        for (prompt, _), grammar in zip(REQUESTS, grammars * 3, strict=False)
    ]
    model = models.stuttering_llama()
    arms: dict[str, dict[str, Any]] = {
        **BARE,
        "lookup": {"speculate": prophet(texts)},
        "draft model": {"speculate": prophet(texts), "drafter": str(model)},
    }
    return job(model, requests, {name: {**WITH_TOKENIZER, **arm} for name, arm in arms.items()}, texts)


def with_features(_: Path) -> Job:
    """What `test_composition` tests on V1, in one batch, on a model that is small and has a tokenizer."""
    requests = [
        (prompt["prompt_token_ids"] if isinstance(prompt, dict) else prompt, sampling)
        for prompts, sampling in features().values()
        for prompt in prompts
    ]
    model = models.tiny_llama()
    asked = {"speculate": {"mode": "fixed", "num_draft_tokens": K, "ngram": {}}, "drafter": str(model)}
    arms = {"bare": WITH_TOKENIZER | {"speculate": "off"}, "composed": WITH_TOKENIZER | asked}
    return job(model, requests, arms)


def drawn(texts: Path, seed: int = 0) -> Job:
    """By drafts that are argmax, by drafts that are sampled, and by both in turn. Lookup always says what is
    most probable, and is verified where the drafter's tokens would have been."""
    expected = law()
    texts.write_text(json.dumps([[*PROMPT, *max(expected, key=lambda text: expected[text])]]))
    plugins = {"engine.planted.Prophet": {"texts": str(texts), "wrong": 0.0}}
    argmax: dict[str, Any] = {"mode": "fixed", "num_draft_tokens": 2, "plugins": plugins}
    sampled = {**argmax, "vllm": SAMPLED}

    def arm(speculate: dict[str, Any], **sampling: Any) -> dict[str, Any]:
        return {
            "speculate": speculate,
            "drafter": str(models.noisy_words()),
            "max_num_seqs": 256,
            "max_model_len": 160,
            "kv_cache_memory_bytes": 512 * 1024**2,
            "sampling": {"temperature": 1.0, "top_k": TOP_K, "max_tokens": 4, **sampling},
            "seed": seed,
        }

    # Only where drafts are planned is it chosen, and what requests ask for themselves is not planned.
    planned = {"num_draft_tokens": 2, "plugins": plugins, "vllm": SAMPLED}
    in_turn = {**arm(planned, extra_args={"speculate": 2}), "alternates": True}
    arms = {"argmax": arm(argmax), "sampled": arm(sampled), "in turn": in_turn}
    return job(models.few_words(), [(PROMPT, {})] * DRAWS, arms)


JOBS: dict[str, Callable[[Path], Job]] = {
    "composed": composed,
    "looked up on the device": looked_up_on_the_device,
    "itself": with_itself,
    "itself, after a shared text": with_itself_after_a_shared_text,
    "mtp": with_mtp,
    "structured": structured,
    "features": with_features,
    "drawn": drawn,
}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Of all jobs. One process runs them: it imports vLLM once, and compiles once what kernels share."""
    folder = tmp_path_factory.mktemp("prophets")
    return run({name: make(folder / f"{name}.json") for name, make in JOBS.items()})


def of(results: dict[str, Any], name: str) -> dict[str, Any]:
    """Return the results of a job by arm."""
    found = results[name]
    assert isinstance(found, dict), found
    return found


@pytest.mark.parametrize(
    "name",
    ["lookup", "lookup, planned", "draft model", "draft model, planned", "eagle", "eagle3", "dflash",
     "dspark", "dspark, planned", "one at once", "chunks", "cached", "preempted", "sampled drafts",
     "sampled drafts, planned", "sampled drafts, eagle", "draft model, left out in turn",
     "eagle, left out in turn"],
)  # fmt: skip
def test_the_text_is_bare_v2s(results: dict[str, Any], name: str) -> None:
    bare, found = of(results, "composed")["bare"]["texts"], of(results, "composed")[name]
    assert found["texts"] == bare * (len(found["texts"]) // len(bare))
    assert found["report"]["failures"] == 0
    assert not found["report"]["faults"]
    assert found["accepted_tokens"] > 0


def test_lookup_drafts_are_put_where_the_text_is(results: dict[str, Any]) -> None:
    """The prophet is right four times of five, so of its drafts of three about two thirds are accepted."""
    found = of(results, "composed")["lookup"]
    drafted, accepted = (found["report"][what]["prophet"] for what in ("draft_tokens", "accepted_tokens"))
    assert (drafted, accepted) == (found["draft_tokens"], found["accepted_tokens"])
    assert accepted > 0.4 * drafted


def test_the_drafter_drafts_where_lookup_was_wrong(results: dict[str, Any]) -> None:
    found = of(results, "composed")["draft model"]
    by_proposer = found["report"]["accepted_tokens"]
    assert by_proposer["prophet"] > 0
    assert by_proposer["draft_model"] > 0
    assert sum(by_proposer.values()) == found["accepted_tokens"]
    assert sum(found["report"]["draft_tokens"].values()) == found["draft_tokens"]


@pytest.mark.parametrize("name", ["eagle", "eagle3", "dflash", "dspark"])
def test_a_head_drafts_where_lookup_was_wrong(results: dict[str, Any], name: str) -> None:
    """It is random, so that of its tokens hardly any is accepted."""
    found = of(results, "composed")[name]
    report = found["report"]
    assert report["draft_tokens"][name] > 0
    assert report["draft_tokens"]["prophet"] > report["accepted_tokens"]["prophet"] > 0
    for what in ("draft_tokens", "accepted_tokens"):
        assert sum(report[what].values()) == found[what]


def test_requests_were_preempted(results: dict[str, Any]) -> None:
    assert of(results, "composed")["preempted"]["preemptions"] > 0


def test_lookup_on_the_device_stands_in_where_lookup_was_wrong(results: dict[str, Any]) -> None:
    bare, found = (of(results, "looked up on the device")[name] for name in ("bare", "lookup"))
    assert found["texts"] == bare["texts"]
    assert found["report"]["failures"] == 0
    assert found["report"]["accepted_tokens"]["ngram_gpu"] > 0
    assert sum(found["report"]["accepted_tokens"].values()) == found["accepted_tokens"]
    assert sum(found["report"]["draft_tokens"].values()) == found["draft_tokens"]


@pytest.mark.parametrize(("name", "most"), [("always", 1.0), ("in turn", 0.8)])
def test_a_drafter_that_was_left_out_drafts_only_what_it_has_read(
    results: dict[str, Any], name: str, most: float
) -> None:
    found = of(results, "itself")[name]
    assert found["texts"] == of(results, "itself")["bare"]["texts"] * 3
    assert found["accepted_tokens"] > 0.98 * found["draft_tokens"]
    written = sum(map(len, found["texts"]))
    assert 0.1 < found["accepted_tokens"] / (0.75 * written) <= most


def test_a_shared_text_that_was_not_read_is_read_again(results: dict[str, Any]) -> None:
    """As long as it is cached unread, no request that begins with it has drafts: all do."""
    found = of(results, "itself, after a shared text")["rests"]
    assert found["texts"] == of(results, "itself, after a shared text")["bare"]["texts"]
    assert found["accepted_tokens"] > 0.98 * found["draft_tokens"]
    written = sum(map(len, found["texts"]))
    assert found["accepted_tokens"] > 0.4 * written


def test_the_targets_own_layer_drafts_beside_lookup(results: dict[str, Any]) -> None:
    bare, found = (of(results, "mtp")[name] for name in ("bare", "mtp"))
    assert found["texts"] == bare["texts"]
    assert found["report"]["failures"] == 0
    assert found["report"]["accepted_tokens"]["prophet"] > 0
    assert found["report"]["draft_tokens"]["mtp"] > 0


@pytest.mark.parametrize("name", ["lookup", "draft model"])
def test_structured_output_is_drafted(results: dict[str, Any], name: str) -> None:
    found = of(results, "structured")[name]
    assert found["texts"] == of(results, "structured")["bare"]["texts"]
    assert found["report"]["failures"] == 0
    drafted, accepted = (found["report"][what]["prophet"] for what in ("draft_tokens", "accepted_tokens"))
    assert accepted > 0.4 * drafted
    written = sum(map(len, found["texts"]))
    assert found["accepted_tokens"] > 0.4 * written


def test_features_of_requests(results: dict[str, Any]) -> None:
    bare, ours = (of(results, "features")[name] for name in ("bare", "composed"))
    assert ours["texts"] == bare["texts"]
    assert ours["ends"] == bare["ends"]
    assert ours["report"]["failures"] == 0
    assert all(count > 0 for count in ours["report"]["accepted_tokens"].values())


@pytest.mark.parametrize("drafts", ["argmax", "sampled", "in turn"])
def test_the_distribution_is_the_targets(drafts: str, results: dict[str, Any], tmp_path: Path) -> None:
    """With the drafter's probabilities in place of certainty, lookup would be accepted far too often."""
    found = []
    for seed in (0, 1):  # the second only if the first looks bad, as one in ten thousand does by chance
        drew = results if seed == 0 else run({"drawn": drawn(tmp_path / "texts.json", seed)})
        result = of(drew, "drawn")[drafts]
        assert all(count > DRAWS / 10 for count in result["report"]["draft_tokens"].values())
        assert len(result["report"]["draft_tokens"]) == 2
        if drafts == "in turn":
            assert set(result["report"]["draft_sampling"]["from 0.9"]) == {"argmax", "sampled"}
        found.append(p_value(Counter(tuple(text[:3]) for text in result["texts"]), law()))
        if found[-1] > SIGNIFICANT:
            return
    raise AssertionError(f"twice not the target's distribution: {found}")


def with_two_ranks(texts: Path) -> Job:
    two = {"tensor_parallel_size": 2}
    asked = {"speculate": prophet(texts), "drafter": str(models.tiny_llama()), **two}
    arms = {"bare": {"speculate": "off", **two}, "composed": asked}
    return job(models.tiny_llama(), REQUESTS, arms, texts)


@pytest.mark.alone
def test_two_ranks(tmp_path: Path) -> None:
    results = run({"two ranks": with_two_ranks(tmp_path / "texts.json")})
    bare, found = (of(results, "two ranks")[name] for name in ("bare", "composed"))
    assert found["texts"] == bare["texts"]
    assert found["report"]["failures"] == 0
    assert all(count > 0 for count in found["report"]["accepted_tokens"].values())
