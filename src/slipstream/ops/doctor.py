"""Checks of a set-up before anything is loaded: each passes, warns or fails, with reason and fix.

`examine` is what `slipstream doctor` prints and what `LLM` and `slipstream serve` run first.
"""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from slipstream.checkpoints import Checkpoint, open_checkpoint
from slipstream.config import Choice, Deployment, SpeculationConfig, choose
from slipstream.errors import CheckpointError, SetupError
from slipstream.ops.checks import CHECKS, Finding, Setup, Status, describe
from slipstream.ops.host import SUPPORTED_VLLM, Host, look_at_host


@dataclass(frozen=True)
class Examination:
    findings: tuple[Finding, ...]
    choice: Choice | None

    @property
    def failed(self) -> tuple[Finding, ...]:
        return tuple(f for f in self.findings if f.status is Status.FAIL)

    @property
    def warned(self) -> tuple[Finding, ...]:
        return tuple(f for f in self.findings if f.status is Status.WARN)

    def require_sound(self) -> Choice:
        """The choice, or a SetupError that lists every failure with its fix."""
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
            "num_draft_tokens": tokens,
            "findings": [asdict(finding) for finding in self.findings],
        }


def examine(deployment: Deployment, config: SpeculationConfig, host: Host | None = None) -> Examination:
    """Run every check that applies. Reads small files only."""
    host = host or look_at_host()
    findings = [_check_vllm(host)]
    target, finding = _open_target(deployment, host)
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
        findings.extend(check(setup))
    return Examination(tuple(findings), choice)


def _check_vllm(host: Host) -> Finding:
    if host.vllm_version is None:
        fix = f"pip install 'slipstream[{host.platform}]'"
        return Finding("vllm", Status.FAIL, "vLLM is not installed", fix)
    if not host.vllm_is_supported:
        reason = f"vLLM {host.vllm_version} is installed; this Slipstream knows {SUPPORTED_VLLM}*"
        return Finding("vllm", Status.FAIL, reason, f"pip install 'slipstream[{host.platform}]'")
    return Finding("vllm", Status.PASS, f"vLLM {host.vllm_version} for {host.platform}")


def _open_target(deployment: Deployment, host: Host) -> tuple[Checkpoint | None, Finding]:
    name = deployment.model
    if reason := _why_opaque(deployment, host):
        reason = f"{name} is not looked into ({reason}), so most checks are left out"
        return None, Finding("target", Status.WARN, reason, "check a local copy of the model")
    try:
        target = open_checkpoint(name, deployment.revision)
    except CheckpointError as error:
        return None, Finding("target", Status.FAIL, str(error), "give a model folder or a Hugging Face id")
    return target, Finding("target", Status.PASS, describe(target))


def _why_opaque(deployment: Deployment, host: Host) -> str:
    """Targets that vLLM may be able to load though their config cannot be read here."""
    name = deployment.model
    if ":" in name or name.endswith(".gguf"):
        return "an address or a GGUF file"
    if deployment.hf_token:
        return "it needs the hf_token"
    if host.environ.get("VLLM_USE_MODELSCOPE", "").lower() in ("1", "true"):
        return "it comes from ModelScope"
    folder = Path(name).expanduser()
    if (folder / "params.json").exists() and not (folder / "config.json").exists():
        return "in Mistral's format"
    return ""
