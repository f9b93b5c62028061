"""What going on behind a token that differs brings to lookup, in counts: n-gram lookup and suffix decoding
over greedy texts of a model, with `ngram.resume` and without. No times are taken.

    python benchmarks/resume.py MODEL benchmarks/results/resume.json

The target writes the texts once, without speculation. Over each text the speculation loop then runs with
calibration as in the engine, and every pass verifies the tokens of the best draft whose survival is at least
`least`.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trees import MAX_TOKENS, K, Text, write_texts

from slipstream.drafting.composer import Composer
from slipstream.drafting.registry import make_proposer
from slipstream.loop import SpeculationLoop
from slipstream.planning.policy import VerifyAll
from slipstream.planning.step_cost import Step
from slipstream.reporting.run_metadata import about_this_run
from slipstream.training.evaluate import FREE, WrittenRequest

LEAST = (0.1, 0.3)
ARMS = {"matches": False, "resumed": True}


def followed(texts: Sequence[Text], resume: bool, least: float, vocab_size: int) -> dict[str, Any]:
    """Return the counts over the texts."""
    options = {**FREE, "ngram": {**FREE["ngram"], "resume": resume}}
    proposers = [make_proposer(name, dict(of)) for name, of in options.items()]
    loop = SpeculationLoop(Composer(proposers, vocab_size), VerifyAll())
    generated = passes = verified = 0
    for number, (text, num_prompt_tokens) in enumerate(texts):
        request = WrittenRequest(str(number), text, num_prompt_tokens, K)
        generated += len(text) - num_prompt_tokens - 1  # the first token is the prompt's pass's
        while not request.is_finished:
            offer = loop.draft([request], Step(1)).get(request.id)
            draft = (
                [t for t, s in zip(offer.tokens, offer.survival, strict=True) if s >= least] if offer else []
            )
            ahead = text[len(request.tokens) :]
            right = 0
            while right < len(draft) and right < len(ahead) and draft[right] == ahead[right]:
                right += 1
            request.write(draft[:right])
            verified += len(draft)
            passes += 1
        loop.finish(request)
    return {"generated": generated, "passes": passes, "verified": verified}


def compared(texts: Sequence[Text], vocab_size: int, least: float) -> dict[str, Any]:
    """Return the counts of both arms, and how many passes the second needs for each of the first."""
    found: dict[str, Any] = {arm: followed(texts, resume, least, vocab_size) for arm, resume in ARMS.items()}
    found["passes_resumed_over_matches"] = round(found["resumed"]["passes"] / found["matches"]["passes"], 4)
    return found


def main() -> None:
    model, out = sys.argv[1:3]
    texts, vocab_size = write_texts(model)
    result = {
        "about": about_this_run(),
        "num_draft_tokens": K,
        "max_tokens": MAX_TOKENS,
        "least": {
            f"{least:g}": {name: compared(several, vocab_size, least) for name, several in texts.items()}
            for least in LEAST
        },
    }
    Path(out).write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
