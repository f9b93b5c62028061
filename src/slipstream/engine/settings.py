"""What Slipstream's scheduler and workers need to know, as it travels in vLLM's `additional_config`."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from slipstream.errors import ConfigError
from slipstream.methods import method_of

KEY = "slipstream"
TRACE_VARIABLE = "SLIPSTREAM_TRACE"  # the file that a trace of the run goes to
SHADOW_VARIABLE = "SLIPSTREAM_SHADOW"  # the share of greedy requests that the server writes again


def read_share(name: str, text: str) -> float:
    """Return a share between 0 and 1, of an option of this name; nothing is 0."""
    try:
        share = float(text or 0)
    except ValueError:
        share = -1.0
    if not 0 <= share <= 1:
        raise ConfigError(f"{name} {text}: write the share of requests to check, as 0.01")
    return share


@dataclass(frozen=True)
class Settings:
    free: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """The free proposers and their options."""
    drafter: str = ""
    """The drafter's method, if it is composed with others."""
    device_lookup: str = ""
    """Without a drafter on the V2 model runner: vLLM's method that looks up, in the workers, what follows the
    text where a draft of the free proposers was wrong about the step under way."""
    drafter_folder: str = ""
    """The checkpoint of a drafter that vLLM does not load (`HiddenStateDrafter`)."""
    plans: bool = False
    """How much is drafted and verified is planned at every step; else all there is."""
    max_requested_tokens: int | None = None
    """Draft tokens per step that a request may ask for itself; None: any number."""
    objective: str = "throughput"
    """What is planned for."""
    max_tpot_ms: float | None = None
    max_ttft_ms: float | None = None
    share: str = "off"
    """Between whose requests text is shared: off, salt (same cache_salt), all."""

    @property
    def composes(self) -> bool:
        return bool(self.free or self.drafter)

    def chooses_sampling(self, vllm_config: Any) -> bool:
        """Return whether a drafter that samples its drafts is told for which requests it does."""
        samples: bool = vllm_config.speculative_config.draft_sample_method == "probabilistic"
        return samples and self.plans and bool(self.drafter) and not method_of(self.drafter).one_pass

    def as_dict(self) -> dict[str, Any]:
        return {KEY: asdict(self)}

    @classmethod
    def of(cls, vllm_config: Any) -> Self:
        return cls(**(vllm_config.additional_config or {}).get(KEY, {}))
