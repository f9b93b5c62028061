"""Checks of a set-up before anything is loaded: each passes, warns or fails, with reason and fix.

`examine` is what `slipstream doctor` prints and what `LLM` and `slipstream serve` run first.
"""

from dataclasses import asdict, dataclass, replace
from typing import Any

from slipstream.checkpoints import Checkpoint, open_checkpoint
from slipstream.config import Deployment, ResolvedSpeculation, SpeculationConfig, choose
from slipstream.config.deployment import opaque_reason
from slipstream.errors import CheckpointError, SetupError
from slipstream.ops import model_checks, run_checks
from slipstream.ops.findings import Finding, Setup, Status, describe
from slipstream.ops.host import SUPPORTED_VLLM, Host, how_to_install, look_at_host

CHECKS = (
    run_checks.check_proposer,
    run_checks.check_support,
    model_checks.check_drafter_files,
    model_checks.check_training,
    model_checks.check_tokenizer,
    model_checks.check_head_shape,
    model_checks.check_vllm_classes,
    model_checks.check_num_draft_tokens,
    model_checks.check_size,
    run_checks.check_parallelism,
    run_checks.check_memory,
    run_checks.check_sampling,
    run_checks.check_combinations,
)


@dataclass(frozen=True)
class Examination:
    findings: tuple[Finding, ...]
    choice: ResolvedSpeculation | None

    @property
    def failed(self) -> tuple[Finding, ...]:
        return tuple(f for f in self.findings if f.status is Status.FAIL)

    @property
    def warned(self) -> tuple[Finding, ...]:
        return tuple(f for f in self.findings if f.status is Status.WARN)

    def require_sound(self) -> ResolvedSpeculation:
        """Return the choice; raise a SetupError that lists every failure with its fix."""
        if self.failed or self.choice is None:
            lines = [f"  {f.check}: {f.reason}\n    fix: {f.fix}" for f in self.failed]
            raise SetupError("this set-up does not work:\n" + "\n".join(lines))
        return self.choice

    def as_dict(self) -> dict[str, Any]:
        method = self.choice.method if self.choice else None
        tokens = self.choice.num_draft_tokens if self.choice else None
        return {
            "ok": not self.failed,
            "method": method,
            "proposers": self.choice.proposer if self.choice else None,
            "num_draft_tokens": tokens,
            "findings": [asdict(finding) for finding in self.findings],
        }


def examine(deployment: Deployment, config: SpeculationConfig, host: Host | None = None) -> Examination:
    """Run every check that applies. Reads small files only."""
    host = host or look_at_host()
    findings = [_check_vllm(host)]
    deployment = _as_run_here(deployment, host)
    target, finding = _open_target(deployment)
    findings.append(finding)
    if finding.status is Status.FAIL:
        return Examination(tuple(findings), None)
    try:
        choice = choose(config, deployment, target)
    except CheckpointError as error:
        fix = "check the drafter's name, or leave it out to speculate with n-grams"
        findings.append(Finding("drafter", Status.FAIL, str(error), fix))
        return Examination(tuple(findings), None)
    setup = Setup(deployment, choice, host, target)
    for check in CHECKS:
        try:
            findings.extend(check(setup))
        except CheckpointError as error:
            findings.append(Finding("files", Status.FAIL, str(error), "repair or replace the file"))
    return Examination(tuple(dict.fromkeys(findings)), choice)


def _check_vllm(host: Host) -> Finding:
    if host.vllm_version is None:
        return Finding("vllm", Status.FAIL, "vLLM is not installed", how_to_install(host.platform))
    if not host.vllm_is_supported:
        reason = f"vLLM {host.vllm_version} is installed; this Slipstream knows {SUPPORTED_VLLM}*"
        return Finding("vllm", Status.FAIL, reason, how_to_install(host.platform))
    return Finding("vllm", Status.PASS, f"vLLM {host.vllm_version} for {host.platform}")


def _open_target(deployment: Deployment) -> tuple[Checkpoint | None, Finding]:
    name = deployment.model
    looked_for = Checkpoint(name, deployment.revision)
    reason = opaque_reason(name, deployment)
    try:
        if not reason and not looked_for.is_local and looked_for.folder is None:
            reason = "it has no config.json"
        target = None if reason else open_checkpoint(name, deployment.revision)
    except CheckpointError as error:
        return None, Finding("target", Status.FAIL, str(error), "give a model folder or a Hugging Face id")
    if target is None:
        reason = f"{name} is not looked into ({reason}), so most checks are left out"
        return None, Finding("target", Status.WARN, reason, "check a local copy of the model")
    return target, Finding("target", Status.PASS, describe(target))


def _as_run_here(deployment: Deployment, host: Host) -> Deployment:
    """Add what the host says; installed logits processors count as given."""
    processors = deployment.logits_processors or ", ".join(host.logits_processor_plugins) or None
    return replace(deployment, logits_processors=processors, platform=host.platform, v2=host.prefers_v2)
