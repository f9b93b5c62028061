"""What Slipstream's drafting and planning were tested with, and what they stay out of.

One table: `choose` and the checks of `slipstream doctor` go by it, and docs/support.md is printed from it
(`as_markdown`).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from slipstream.checkpoints import Checkpoint
from slipstream.config.deployment import Deployment

EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
RECURRENT = ("mamba", "linear_attention", "recurrent", "conv")


class Support(StrEnum):
    TESTED = "tested"
    OFF = "off"
    UNTESTED = "untested"


@dataclass(frozen=True)
class Situation:
    """A deployment, its target, and whether a drafter is asked for: what decides whether a case applies."""

    deployment: Deployment
    target: Checkpoint | None
    """None if it cannot be looked into."""
    has_drafter: bool

    @property
    def has_experts(self) -> bool:
        """Return whether the target is a mixture of experts, or may be one."""
        return self.target is None or any(self.target.text_config.get(key) for key in EXPERTS)

    @property
    def is_recurrent(self) -> bool:
        config = self.target.text_config if self.target else {}
        kinds = [*config.get("layer_types", ()), *config.get("layers_block_type", ())]
        return any(word in str(kind) for kind in kinds for word in RECURRENT)


def _never(situation: Situation) -> bool:
    return False


@dataclass(frozen=True)
class Case:
    """Something that vLLM can be asked for beside speculation."""

    title: str
    support: Support
    reason: str
    """Why Slipstream stays off, which `doctor` says; of other cases what was tested, or is to be expected."""
    test: str = ""
    """The file that shows it."""
    applies: Callable[[Situation], bool] = _never
    """Whether the deployment asks for it; never for what single requests ask for."""
    fix: str = ""
    ahead_works: bool = False
    """If off: whether a drafter of vLLM's own can be planned a step ahead all the same."""


CASES = (
    Case(
        "Tensor parallelism",
        Support.TESTED,
        "two ranks, all kinds of drafters",
        "tests/engine/test_tensor_parallel.py",
        lambda s: s.deployment.tensor_parallel_size > 1,
    ),
    Case(
        "Pipeline parallelism",
        Support.OFF,
        "with pipeline parallelism several batches are in flight, so there is no moment after a step at "
        "which to draft, and no time that is one step's",
        "tests/engine/test_scheduling.py",
        lambda s: s.deployment.pipeline_parallel_size > 1,
        "use tensor parallelism, or one proposer in vLLM's own form (speculative_config)",
    ),
    Case(
        "Data parallelism, dense target",
        Support.UNTESTED,
        "vLLM runs an engine for each rank; each drafts and plans for itself",
        applies=lambda s: s.deployment.data_parallel_size > 1 and not s.has_experts,
    ),
    Case(
        "Data parallelism, mixture of experts",
        Support.UNTESTED,
        "lookup only: the ranks agree on the size of a step in vLLM",
        applies=lambda s: s.deployment.data_parallel_size > 1 and s.has_experts and not s.has_drafter,
    ),
    Case(
        "Data parallelism, mixture of experts, with a drafter",
        Support.OFF,
        "with data parallelism the passes of a mixture of experts are collective, and a drafter that one "
        "rank runs and another does not would hang",
        "tests/unit/config/test_support.py",
        lambda s: s.deployment.data_parallel_size > 1 and s.has_experts and s.has_drafter,
        "use lookup only, or the drafter in vLLM's own form (speculative_config)",
    ),
    Case(
        "External launcher (torchrun)",
        Support.OFF,
        "with distributed_executor_backend=external_launcher every rank schedules for itself and all must "
        "decide the same, but the planner goes by the clock",
        "tests/unit/config/test_support.py",
        lambda s: s.deployment.distributed_executor_backend == "external_launcher",
        "use another distributed_executor_backend, or one proposer in vLLM's own form (speculative_config)",
    ),
    Case(
        "Prefill context parallelism",
        Support.OFF,
        "with prefill context parallelism vLLM 0.32 takes the drafts of DSpark or of a single MTP layer only",
        "tests/unit/config/test_support.py",
        lambda s: s.deployment.prefill_context_parallel_size > 1,
        "leave prefill_context_parallel_size out, or write dspark or mtp in vLLM's own form",
    ),
    Case(
        "Asynchronous scheduling, composed proposers, on the V1 model runner",
        Support.OFF,
        "n-gram and suffix drafts are not ready when async_scheduling wants them",
        "tests/unit/ops/test_doctor.py",
        lambda s: s.deployment.async_scheduling and not s.deployment.v2,
        "remove async_scheduling, or run on V2 (CUDA)",
        ahead_works=True,
    ),
    Case(
        "Asynchronous scheduling, composed proposers, on the V2 model runner",
        Support.TESTED,
        "lookup alone and with a draft model, EAGLE, EAGLE-3, MTP, DFlash or DSpark; drafted a step ahead",
        "tests/engine/test_v2_composition.py",
    ),
    Case(
        "Asynchronous scheduling, a drafter planned a step ahead (`native: true`)",
        Support.TESTED,
        "draft models and EAGLE, on the V1 and V2 model runners",
        "tests/engine/test_v2_runner.py",
    ),
    Case(
        "Dual batch overlap",
        Support.OFF,
        "with enable_dbo vLLM leaves its V2 model runner, on which drafts are made a step ahead",
        "tests/unit/config/test_support.py",
        lambda s: s.deployment.enable_dbo and s.deployment.v2,
        "leave enable_dbo out, or set VLLM_USE_V2_MODEL_RUNNER=0",
    ),
    Case(
        "Another `scheduler_cls`",
        Support.OFF,
        "another scheduler_cls is given; Slipstream's own is where drafts are chosen",
        "tests/unit/ops/test_doctor.py",
        lambda s: bool(s.deployment.scheduler_cls),
        "remove it, or write one proposer in vLLM's own form (speculative_config)",
    ),
    Case(
        "Watermarking",
        Support.OFF,
        "vLLM refuses to start with watermarking and n-gram or suffix drafts, or drafts by argmax",
        "tests/unit/config/test_support.py",
        lambda s: bool(s.deployment.watermark_config),
        "leave watermark_config out, or write an EAGLE or MTP drafter in vLLM's own form",
    ),
    Case(
        "XPU, ROCm, TPU and other platforms",
        Support.OFF,
        "Slipstream's workers are made for vLLM's CPU and CUDA builds",
        "tests/unit/config/test_support.py",
        lambda s: s.deployment.platform not in ("", "cpu", "cuda"),
        "write one proposer in vLLM's own form (speculative_config)",
    ),
    Case("CPU", Support.TESTED, "vLLM's V1 model runner", "tests/engine/test_lossless.py"),
    Case(
        "CUDA",
        Support.UNTESTED,
        "no GPU was at hand; the V2 model runner was run on CPU, its kernels compiled for that",
        applies=lambda s: s.deployment.platform == "cuda",
    ),
    Case(
        "Custom logits processors",
        Support.OFF,
        "vLLM does not run custom logits processors with speculation",
        "tests/unit/ops/test_doctor.py",
        lambda s: bool(s.deployment.logits_processors),
        "remove them, or speculate off",
        ahead_works=True,
    ),
    Case(
        "Pooling models",
        Support.OFF,
        "the model is run for pooling, not for generating",
        "tests/unit/ops/test_doctor.py",
        lambda s: s.deployment.runner == "pooling" or s.deployment.convert not in ("auto", "none"),
        "speculate off",
    ),
    Case(
        "LoRA, on the V1 model runner",
        Support.TESTED,
        "adapters of the target; tenants are kept apart by adapter",
        "tests/engine/test_composition.py",
        lambda s: s.deployment.enable_lora and not s.deployment.v2,
    ),
    Case(
        "LoRA, on the V2 model runner",
        Support.OFF,
        "with enable_lora vLLM 0.32's V2 model runner counts one row of logits for each request, and with "
        "drafts there are several",
        "tests/unit/config/test_support.py",
        lambda s: s.deployment.enable_lora and s.deployment.v2,
        "leave enable_lora out, or set VLLM_USE_V2_MODEL_RUNNER=0",
    ),
    Case(
        "Structured output",
        Support.TESTED,
        "the grammar drafts what it forces (xgrammar, guidance); drafts that leave it are cut off",
        "tests/engine/test_grammar_drafts.py",
    ),
    Case(
        "Streaming input",
        Support.TESTED,
        "each turn has its own sampling parameters",
        "tests/engine/test_scheduling.py",
    ),
    Case(
        "min_p and logit_bias",
        Support.TESTED,
        "such requests are served without drafts",
        "tests/engine/test_composition.py",
    ),
    Case(
        "Penalties, bad words, log-probabilities, stop strings, `n`, seeds",
        Support.TESTED,
        "as without speculation",
        "tests/engine/test_composition.py",
    ),
    Case(
        "Preemption, chunked prefill, prefix caching",
        Support.TESTED,
        "as without speculation",
        "tests/engine/test_composition.py",
    ),
    Case(
        "Multimodal models",
        Support.UNTESTED,
        "lookup reads the text only",
        applies=lambda s: s.target is not None and "vision_config" in s.target.config,
    ),
    Case(
        "Hybrid and recurrent models",
        Support.UNTESTED,
        "vLLM itself takes back states after rejected drafts",
        applies=lambda s: s.is_recurrent,
    ),
    Case(
        "KV connectors",
        Support.UNTESTED,
        "requests whose KV is still on its way are not drafted for",
        applies=lambda s: bool(s.deployment.kv_transfer_config),
    ),
    Case(
        "Sleep mode",
        Support.UNTESTED,
        "vLLM has none on CPU",
        applies=lambda s: s.deployment.enable_sleep_mode,
    ),
    Case(
        "Priority scheduling",
        Support.UNTESTED,
        "preempted requests are drafted for again once they run",
        applies=lambda s: s.deployment.scheduling_policy == "priority",
    ),
)  # fmt: skip


def cases_of(situation: Situation, support: Support) -> Iterator[Case]:
    """Yield the cases of this kind that the deployment asks for."""
    return (case for case in CASES if case.support is support and case.applies(situation))


def unsupported_reason(
    deployment: Deployment, target: Checkpoint | None, has_drafter: bool = False, ahead: bool = False
) -> str:
    """Return why proposers are not composed in this deployment, or a drafter not planned a step ahead; empty
    if they are."""
    off = cases_of(Situation(deployment, target, has_drafter), Support.OFF)
    return next((case.reason for case in off if not (ahead and case.ahead_works)), "")


def as_markdown() -> str:
    """Return docs/support.md."""
    lines = [
        "# What Slipstream works with",
        "",
        "*Tested*: a test runs it, in the file named. *Off*: `auto` leaves it to vLLM without Slipstream's",
        "drafts, and proposers asked for by name are refused before start, for the reason given. *Untested*:",
        "it should work, nobody has seen it; `slipstream doctor` says so, and `slipstream verify` shows it.",
        "",
        "It goes by what the deployment does, not by the family of the model: lookup drafts with any text-",
        "generating model of vLLM's unless a row below says *off*. Which drafter fits which model:",
        "[choose a method](choosing.md#which-drafter).",
        "",
        "This page is printed from the table that the checks use (`slipstream/config/support.py`). Tests are",
        "named below `tests`.",
        "",
        "| feature | status | details | shown by |",
        "|---|---|---|---|",
    ]
    for case in CASES:
        shown = f"`{case.test.removeprefix('tests/')}`" if case.test else ""
        lines.append(f"| {case.title} | {case.support} | {case.reason} | {shown} |")
    return "\n".join(lines) + "\n"
