"""What the free proposers cost: time per request at a long context in a large batch, and the memory of a
full cache of finished texts.

    python benchmarks/proposers.py > benchmarks/results/proposers.json

Texts are phrases of 8 tokens in random order, so that matches are common: the dear case.
"""

import json
import random
import sys
import time

import numpy as np

from slipstream.drafting import Proposer, RequestInfo
from slipstream.drafting.composer import Composer
from slipstream.drafting.ngram import NgramProposer
from slipstream.drafting.suffix import SharedTexts, SuffixProposer
from slipstream.loop import SpeculationLoop
from slipstream.planning.policy import VerifyAll
from slipstream.reporting.run_metadata import about_this_run

BATCH, CONTEXT, STEPS, K = 256, 8192, 40, 5
CACHE_TOKENS = 10_000_000
VOCABULARY = 50_000


def phrases(source: random.Random, count: int) -> list[list[int]]:
    return [[source.randrange(VOCABULARY) for _ in range(8)] for _ in range(count)]


def text_of(source: random.Random, known: list[list[int]], length: int) -> list[int]:
    text: list[int] = []
    while len(text) < length:
        text += source.choice(known)
    return text[:length]


def full_cache(known: list[list[int]]) -> SharedTexts:
    """Filled twice over, so that half of what was put in has been evicted."""
    source = random.Random(1)
    shared = SharedTexts(CACHE_TOKENS, max_age=1e9)
    for _ in range(2 * CACHE_TOKENS // CONTEXT):
        shared.add("tenant", text_of(source, known, CONTEXT))
    return shared


def per_request(proposers: list[Proposer], known: list[list[int]]) -> dict[str, float]:
    """Microseconds per request and step: of each call, and of all that the scheduler does to draft."""
    source = random.Random(2)
    composer = Composer(proposers, VOCABULARY)
    loop = SpeculationLoop(composer, VerifyAll())
    texts = {}
    for index in range(BATCH):
        name = str(index)
        texts[name] = text_of(source, known, CONTEXT + 8 * STEPS)
        composer.start(RequestInfo(name, CONTEXT, tenant="tenant"))
        composer.observe(name, texts[name][:CONTEXT])
    observing, drafting, found = [], [], 0
    at = CONTEXT
    wanted = dict.fromkeys(texts, K)
    for _ in range(STEPS):
        begun = time.perf_counter()
        drafts, _ = loop.propose(wanted)
        drafted = time.perf_counter()
        for name, text in texts.items():
            composer.observe(name, text[at : at + 2])
        observed = time.perf_counter()
        at += 2
        found += len(drafts)
        drafting.append((drafted - begun) / BATCH * 1e6)
        observing.append((observed - drafted) / BATCH * 1e6)
    alone = {f"{name}_propose": total / STEPS / BATCH for name, total in composer.tally.microseconds.items()}
    return {
        **{name: round(value, 2) for name, value in alone.items()},
        "draft_all_median": round(float(np.median(drafting)), 2),
        "observe_all_median": round(float(np.median(observing)), 2),
        "median": round(float(np.median(np.add(drafting, observing))), 2),
        "worst_step": round(float(np.max(np.add(drafting, observing))), 2),
        "share_with_a_draft": round(found / STEPS / BATCH, 3),
    }


def main() -> None:
    known = phrases(random.Random(0), 2000)
    shared = full_cache(known)
    result = {
        "about": about_this_run(),
        "batch": BATCH,
        "context_tokens": CONTEXT,
        "num_draft_tokens": K,
        "microseconds_per_request_and_step": {
            "ngram": per_request([NgramProposer()], known),
            "suffix, own text": per_request([SuffixProposer()], known),
            "suffix, own and shared text": per_request([SuffixProposer(shared)], known),
            "ngram and suffix, own and shared text": per_request(
                [NgramProposer(), SuffixProposer(shared)], known
            ),
        },
        "shared_cache": {
            "tokens": shared.num_tokens,
            "tokens_put_in": 2 * CACHE_TOKENS // CONTEXT * CONTEXT,
            "mebibytes": round(shared.num_bytes / 2**20, 1),
        },
    }
    json.dump(result, sys.stdout, indent=1)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
