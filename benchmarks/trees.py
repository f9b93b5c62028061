"""What verifying a tree of all drafts would bring over verifying the best one, in counts: n-gram lookup and
suffix decoding over greedy texts of a model, followed as the engine follows them. No times are taken.

    python benchmarks/trees.py MODEL benchmarks/results/trees.json

The target writes the texts once, without speculation. Over each text the speculation loop then runs three
times, with calibration as in the engine, and every pass verifies

- `path`: the draft that is expected to bring most, as the engine does;
- `tree_same_budget`: the likeliest tokens of both drafts, prefixes shared, as many as that draft has;
- `tree`: all tokens of both drafts, prefixes shared.

`least` is the survival below which a token is not verified in any of them.
"""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from slipstream.drafting.base import Draft, Proposer
from slipstream.drafting.composer import Composer, Offer
from slipstream.drafting.registry import make_proposer
from slipstream.loop import SpeculationLoop
from slipstream.planning.policy import VerifyAll
from slipstream.planning.step_cost import Step
from slipstream.reporting.run_metadata import about_this_run
from slipstream.training.evaluate import FREE, WrittenRequest
from slipstream.workloads.loading import load_workloads

K, MAX_TOKENS, AT_ONCE = 8, 96, 8
WORKLOADS = ("edit", "code", "chat", "summarise", "math", "json")
LEAST = (0.0, 0.3)
ARMS = ("path", "tree_same_budget", "tree")

Text = tuple[list[int], int]
"""Prompt and answer; how many of them are the prompt's."""
Tree = Mapping[tuple[int, ...], float]
"""By its path from the root, each token's survival."""


class OfferingAll(Composer):
    """Keeps the offers of all proposers, beside the best."""

    def __init__(self, proposers: Sequence[Proposer], vocab_size: int) -> None:
        super().__init__(proposers, vocab_size)
        self.offered: list[Offer] = []
        """For the one request that runs."""

    def ask_free(self, wanted: Mapping[str, int]) -> dict[str, Offer]:
        self.offered = []
        return super().ask_free(wanted)

    def ask(
        self,
        proposer: Proposer,
        wanted: Mapping[str, int],
        offers: dict[str, Offer],
        propose: Callable[[Mapping[str, int]], Mapping[str, Draft]] | None = None,
    ) -> None:
        own: dict[str, Offer] = {}
        super().ask(proposer, wanted, own, propose)
        for request_id, offer in own.items():
            self.offered.append(offer)
            best = offers.get(request_id)
            if best is None or sum(offer.survival) > sum(best.survival):
                offers[request_id] = offer


def tree_of(offers: Sequence[Offer], least: float) -> Tree:
    """Return the tokens of all offers, a shared prefix once, with the highest survival that is offered."""
    tree: dict[tuple[int, ...], float] = {}
    for offer in offers:
        for end, survival in enumerate(offer.survival, start=1):
            path = tuple(offer.tokens[:end])
            if survival >= least:
                tree[path] = max(tree.get(path, 0.0), float(survival))
    return tree


def likeliest(tree: Tree, budget: int) -> Tree:
    """Return so many tokens of the tree, none without those before it: survival falls along every path."""
    paths = sorted(tree, key=lambda path: (-tree[path], len(path)))
    return {path: tree[path] for path in paths[:budget]}


def right_path(tree: Tree, ahead: Sequence[int]) -> Sequence[int]:
    """Return the longest path of the tree that the text goes on with."""
    length = 0
    while length < len(ahead) and tuple(ahead[: length + 1]) in tree:
        length += 1
    return ahead[:length]


def followed(texts: Sequence[Text], arm: str, least: float, vocab_size: int) -> dict[str, Any]:
    """Return the counts of an arm over the texts."""
    proposers = [make_proposer(name, dict(options)) for name, options in FREE.items()]
    composer = OfferingAll(proposers, vocab_size)
    loop = SpeculationLoop(composer, VerifyAll())
    generated = passes = verified = 0
    for number, (text, num_prompt_tokens) in enumerate(texts):
        request = WrittenRequest(str(number), text, num_prompt_tokens, K)
        generated += len(text) - num_prompt_tokens - 1  # the first token is the prompt's pass's
        while not request.is_finished:
            composer.offered = []
            best = loop.draft([request], Step(1)).get(request.id)
            path = tree_of([max(composer.offered, key=lambda o: sum(o.survival))] if best else [], least)
            tree = path
            if arm != "path":
                tree = tree_of(composer.offered, least)
            if arm == "tree_same_budget":
                tree = likeliest(tree, len(path))
            request.write(right_path(tree, text[len(request.tokens) :]))
            verified += len(tree)
            passes += 1
        loop.finish(request)
    return {
        "generated": generated,
        "passes": passes,
        "verified": verified,
        "tokens_per_pass": round(generated / max(passes, 1), 4),
        "verified_per_pass": round(verified / max(passes, 1), 4),
    }


def write_texts(model: str) -> tuple[dict[str, list[Text]], int]:
    """Return what the model answers to the prompts of every workload, and the size of its vocabulary."""
    import slipstream

    llm = slipstream.LLM(
        model, speculate="off", dtype="float32", enforce_eager=True, max_model_len=2048, max_num_seqs=AT_ONCE,
        kv_cache_memory_bytes=2 * 1024**3,
    )  # fmt: skip
    sampling = slipstream.SamplingParams(temperature=0.0, max_tokens=MAX_TOKENS)
    texts: dict[str, list[Text]] = {}
    for workload in load_workloads(WORKLOADS, MAX_TOKENS, model):
        conversations: list[Any] = [request.messages for request in workload.requests]
        outputs = llm.chat(conversations, sampling, use_tqdm=False)
        texts[workload.name] = [
            ([*output.prompt_token_ids, *output.outputs[0].token_ids], len(output.prompt_token_ids))
            for output in outputs
        ]
    return texts, llm.llm_engine.vllm_config.model_config.get_vocab_size()


def compared(texts: Sequence[Text], vocab_size: int, least: float) -> dict[str, Any]:
    """Return the counts of all arms, and what each tree has more than the path."""
    arms = {arm: followed(texts, arm, least, vocab_size) for arm in ARMS}
    path = arms["path"]
    for arm in ARMS[1:]:
        for what in ("tokens_per_pass", "verified_per_pass"):
            if path[what]:
                arms[arm][f"{what}_over_path"] = round(arms[arm][what] / path[what], 4)
    return arms


def main() -> None:
    model, out = sys.argv[1:3]
    texts, vocab_size = write_texts(model)
    texts["all"] = [text for several in texts.values() for text in several]
    result = {
        "about": about_this_run(),
        "num_draft_tokens": K,
        "max_tokens": MAX_TOKENS,
        "texts": {name: len(several) for name, several in texts.items()},
        "least": {
            f"{least:g}": {name: compared(several, vocab_size, least) for name, several in texts.items()}
            for least in LEAST
        },
    }
    Path(out).write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
