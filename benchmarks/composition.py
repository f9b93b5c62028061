"""Several proposers against each one alone, in counts: tokens per target pass on the same prompts, greedy,
float32 (so that all arms write the same text). No times are taken.

    python benchmarks/composition.py benchmarks/results/composition.json

The drafter is the first 24 of SmolLM2's 30 layers: too dear to serve, but it drafts honestly.
"""

import gc
import json
import sys
from pathlib import Path
from typing import Any

import slipstream
from slipstream.reporting.run_metadata import about_this_run
from slipstream.testing import models
from slipstream.workloads.loading import load_workloads

K, MAX_TOKENS, AT_ONCE = 4, 64, 8
WORKLOADS = ("edit", "code", "chat", "summarise")
DRAFTER = {"model": str(models.drafter())}
ARMS: dict[str, dict[str, Any]] = {
    "ngram": {"ngram": {}},
    "suffix": {"suffix": {}},
    "drafter": {"mode": "fixed", "drafter": DRAFTER},
    "composed": {"ngram": {}, "suffix": {}, "drafter": DRAFTER},
}


def counted(llm: Any, conversations: list[Any]) -> tuple[dict[str, float], list[list[int]]]:
    before = counters(llm)
    sampling = slipstream.SamplingParams(temperature=0.0, max_tokens=MAX_TOKENS)
    outputs = llm.chat(conversations, sampling, use_tqdm=False)
    after = counters(llm)
    texts = [list(output.outputs[0].token_ids) for output in outputs]
    generated = sum(map(len, texts))
    accepted = after["accepted_tokens"] - before["accepted_tokens"]
    figures = {
        "generated": generated,
        "draft_tokens": after["draft_tokens"] - before["draft_tokens"],
        "accepted_tokens": accepted,
        # Every pass gives one token of its own and those it accepts.
        "tokens_per_pass": round(generated / (generated - accepted), 4),
    }
    return figures, texts


def counters(llm: Any) -> dict[str, float]:
    return {
        metric.name.removeprefix("vllm:spec_decode_num_"): getattr(metric, "value", 0)
        for metric in llm.get_metrics()
    }


def main() -> None:
    workloads = load_workloads(WORKLOADS, MAX_TOKENS, str(models.smollm2()))
    prompts = {w.name: [request.messages for request in w.requests] for w in workloads}
    mix = [messages for group in zip(*prompts.values(), strict=True) for messages in group]
    results: dict[str, Any] = {}
    texts: dict[str, Any] = {}
    for arm, speculate in ARMS.items():
        llm = slipstream.LLM(
            str(models.smollm2()),
            dtype="float32",
            enforce_eager=True,
            max_model_len=2048,
            max_num_seqs=AT_ONCE,
            kv_cache_memory_bytes=2 * 1024**3,
            speculate={"num_draft_tokens": K, **speculate},
        )
        runs = {"mix": counted(llm, mix)}  # first, with nothing learnt
        runs |= {workload: counted(llm, conversations) for workload, conversations in prompts.items()}
        results[arm] = {workload: figures for workload, (figures, _) in runs.items()}
        texts[arm] = [written for _, written in runs.values()]
        if speculate.get("mode") != "fixed":
            results[arm]["by_proposer"] = slipstream.drafting_report(llm)
        del llm
        gc.collect()
    result = {
        "about": about_this_run(),
        "num_draft_tokens": K,
        "max_tokens": MAX_TOKENS,
        "all_texts_equal": all(written == texts["ngram"] for written in texts.values()),
        "arms": results,
    }
    Path(sys.argv[1]).write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
