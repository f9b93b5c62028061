"""`slipstream.LLM`: what `vllm.LLM` takes and gives, with speculation."""

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from slipstream.config import (
    SPECULATION_ARGUMENTS,
    Deployment,
    SpeculationConfig,
    read_speculation,
)
from slipstream.ops.host import require_vllm

if TYPE_CHECKING:
    import vllm


def LLM(
    model: str | os.PathLike[str],
    *,
    speculate: str | os.PathLike[str] | Mapping[str, Any] | SpeculationConfig | None = None,
    drafter: str | os.PathLike[str] | None = None,
    objective: str | None = None,
    **arguments: Any,
) -> "vllm.LLM":
    """Return a running `vllm.LLM` that speculates.

    A function rather than a subclass, because the set-up is checked before vLLM is imported: a wrong
    pair of models is refused in seconds. What it returns is vLLM's own class, with `generate`, `chat`,
    `get_metrics` and all else.

    speculate: auto (default), off, fixed:K, a JSON or YAML file, a mapping, or a SpeculationConfig
    drafter: folder or Hugging Face id of a draft model or head
    objective: makespan (default: a batch is done as early as it can be), throughput or latency
    arguments: anything that `vllm.LLM` takes, `speculative_config` included, and the options of older
        guides (`speculative_model`, `num_speculative_tokens`, ...)
    """
    require_vllm()
    asked = {name: arguments.pop(name) for name in SPECULATION_ARGUMENTS & arguments.keys()}
    config, notes = read_speculation(
        {"speculate": speculate, "drafter": drafter, "objective": objective, **asked}
    )
    deployment = Deployment.from_arguments(os.fspath(model), arguments)

    from slipstream.engine.launch.start import start_llm

    return start_llm(deployment, config, arguments, notes)


def drafting_report(llm: Any) -> dict[str, Any]:
    """Counts by proposer of a `slipstream.LLM` that composes: what was drafted, accepted, and went wrong."""
    client = llm.llm_engine.engine_core
    inside = getattr(client, "engine_core", None)  # the engine, where it runs in this process
    report: dict[str, Any] = inside.drafting_report() if inside else client.call_utility("drafting_report")
    return report
