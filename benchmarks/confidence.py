"""How often a draft model's tokens are accepted, by how sure it is of them. In counts: no times are taken.

    python benchmarks/confidence.py MODEL DRAFTER --out FILE

All draft tokens are verified. Of every token that was judged (those before it were accepted) two statements
are scored: the drafter's own probability of it, and how often tokens at its position are accepted.
"""

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

from slipstream.reporting.run_metadata import about_this_run
from slipstream.workloads.loading import load_workloads

DRAFT_TOKENS, MAX_TOKENS, AT_ONCE = 4, 48, 8
WORKLOADS = ("chat", "code", "math")
EDGES = (0.0, 0.2, 0.4, 0.6, 0.8, 0.95, 1.0)
LOSSES = (0.0, 0.05, 0.1)
"""Shares of the accepted tokens that are given up by cutting drafts where the drafter is unsure."""


def judged_tokens(model: str, drafter: str, requests: int) -> np.ndarray[Any, Any]:
    """Return [tokens, 3]: position, the drafter's probability, and whether it was accepted."""
    import slipstream

    speculate = {
        "mode": "fixed", "num_draft_tokens": DRAFT_TOKENS, "drafter": {"model": drafter},
        "plugins": {"slipstream.testing.proposers.Silent": {}},
    }  # fmt: skip
    llm = slipstream.LLM(
        model, speculate=speculate, dtype="float32", enforce_eager=True, max_model_len=2048,
        max_num_seqs=AT_ONCE, kv_cache_memory_bytes=512 << 20,
    )  # fmt: skip
    calibration = llm.llm_engine.engine_core.engine_core.scheduler._loop.composer.calibration
    learn = calibration.learn_all
    rows: list[tuple[int, float, int]] = []

    def seen(proposer: str, stated: Any, accepted: Any, judged: Any) -> None:
        if proposer == "draft_model":
            for survival, right, known in zip(stated, accepted, judged, strict=True):
                conditional = survival / np.concatenate([[1.0], survival[:-1]])
                rows.extend((at, float(conditional[at]), int(at < right)) for at in range(known))
        learn(proposer, stated, accepted, judged)

    calibration.learn_all = seen
    workloads = load_workloads(WORKLOADS, MAX_TOKENS, model)
    conversations = [list(r.messages or []) for w in workloads for r in w.take(0, requests)]
    llm.chat(conversations, slipstream.SamplingParams(temperature=0, max_tokens=MAX_TOKENS), use_tqdm=False)
    return np.array(rows)


def log_loss(stated: Any, accepted: Any) -> float:
    stated = np.clip(stated, 0.01, 0.99)
    return float(-np.mean(np.where(accepted, np.log(stated), np.log(1 - stated))))


def summary(tokens: np.ndarray[Any, Any]) -> dict[str, Any]:
    position, stated, accepted = tokens[:, 0].astype(int), tokens[:, 1], tokens[:, 2].astype(bool)
    rates = np.array([accepted[position == at].mean() for at in range(DRAFT_TOKENS)])
    bins = np.clip(np.digitize(stated, EDGES) - 1, 0, len(EDGES) - 2)
    table = [
        {
            "stated": [EDGES[b], EDGES[b + 1]], "tokens": int((bins == b).sum()),
            "accepted": round(float(accepted[bins == b].mean()), 3) if (bins == b).any() else None,
        }
        for b in range(len(EDGES) - 1)
    ]  # fmt: skip
    least = np.quantile(stated[accepted], LOSSES)
    return {
        "tokens": len(tokens),
        "accepted by position": rates.round(3).tolist(),
        "accepted by stated probability": table,
        "log loss": {
            "by position": round(log_loss(rates[position], accepted), 4),
            "by stated probability": round(log_loss(stated, accepted), 4),
            "by stated probability, calibrated": round(
                log_loss(np.array([row["accepted"] or 0.0 for row in table])[bins], accepted), 4
            ),
        },
        "rejected tokens left out": {
            f"where {share:.0%} of the accepted are given up": round(
                float((stated[~accepted] < limit).mean()), 3
            )
            for share, limit in zip(LOSSES, least, strict=True)
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("drafter")
    parser.add_argument("--requests", type=int, default=8, help="of each workload")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    found = summary(judged_tokens(options.model, options.drafter, options.requests))
    options.out.write_text(json.dumps({"about": about_this_run(), **found}, indent=1) + "\n")
    sys.stderr.write(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
