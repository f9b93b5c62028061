"""What the engine accepts of trained drafters, beside what was measured in training: greedy answers to the
held-out prompts, by vLLM's own counters.

    python benchmarks/training_acceptance.py MODEL DATA OUT DRAFTER...

DATA and DRAFTER are those of `slipstream train`. One process per drafter: vLLM gives its memory back then.
"""

import json
import multiprocessing
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any


def main() -> None:
    from slipstream.reporting.run_metadata import about_this_run
    from slipstream.training.card import length_of

    model, data, out, *drafters = sys.argv[1:]
    rows = []
    for drafter in drafters:
        offline = length_of(json.loads((Path(drafter) / "training.json").read_text()), "greedy")
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
            engine = process.submit(accepted, model, data, drafter).result()
        rows.append({"drafter": drafter, "offline": offline, "engine": engine, "ratio": engine / offline})
        sys.stdout.write(f"{drafter}: offline {offline:.3f}, engine {engine:.3f}\n")
        sys.stdout.flush()
    Path(out).write_text(json.dumps({"about": about_this_run(), "greedy": rows}, indent=1) + "\n")


def accepted(model: str, data: str, drafter: str) -> float:
    """Tokens per step."""
    import slipstream
    from slipstream.training.responses import read_responses

    recipe = json.loads((Path(data) / "data.json").read_text())
    texts = [t for texts in read_responses(Path(data)) for t in texts if t.held_out and t.temperature == 0]
    llm = slipstream.LLM(
        model, drafter=drafter, speculate="fixed:3", enforce_eager=True, max_num_seqs=16,
        max_model_len=recipe["max_prompt_tokens"] + recipe["max_tokens"],
    )  # fmt: skip
    prompts: list[Any] = [{"prompt_token_ids": text.tokens[: text.prompt_length]} for text in texts]
    sampling = slipstream.SamplingParams(temperature=0, max_tokens=recipe["max_tokens"])
    llm.generate(prompts, sampling, use_tqdm=False)
    counters: dict[str, Any] = {m.name: getattr(m, "value", None) for m in llm.get_metrics()}
    kept, steps = counters["vllm:spec_decode_num_accepted_tokens"], counters["vllm:spec_decode_num_drafts"]
    return float(1 + kept / steps)


if __name__ == "__main__":
    main()
