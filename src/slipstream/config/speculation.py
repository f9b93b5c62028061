"""`SpeculationConfig`: the one definition of every user-facing speculation option.

How the options of vLLM and of older guides map onto it is in `forms`; what `auto` makes of it for a
given model is in `choice`.
"""

import difflib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from slipstream.errors import ConfigError
from slipstream.methods import DRAFTERS, method_of

MAX_DRAFT_TOKENS = 128  # vLLM's rejection sampler takes no more per request and step

if TYPE_CHECKING:
    DrafterMethod = str
else:
    DrafterMethod = Literal[DRAFTERS]

# Keys of vLLM 0.32's `speculative_config` that have no name of their own here: they go through
# unchanged. The contract test compares this list with vLLM's.
VLLM_OPTIONS = frozenset(
    {
        "attention_backend", "code_revision", "disable_eagle_block_drop",
        "disable_padded_drafter_batch", "draft_load_config", "draft_sample_method",
        "dspark_draft_topk", "enable_adaptive_verification", "enforce_eager",
        "index_share_for_mtp_iteration", "kv_cache_dtype", "moe_backend",
        "num_speculative_tokens_per_batch_size", "parallel_drafting", "rejection_sample_method",
        "suffix_decoding_max_cached_requests", "suffix_decoding_max_spec_factor",
        "suffix_decoding_max_tree_depth", "suffix_decoding_min_token_prob",
        "synthetic_acceptance_length", "synthetic_acceptance_rates", "use_heterogeneous_vocab",
        "use_local_argmax_reduction",
    }
)  # fmt: skip


class _Options(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Ngram(_Options):
    """Prompt lookup: match the last `min`..`max` tokens earlier in the text, propose what followed."""

    min: int = Field(default=2, ge=1)
    """Shortest match, in tokens."""
    max: int = Field(default=5, ge=1)
    """Longest match, in tokens."""
    resume: bool | None = None
    """Where nothing matches, go on behind the token in which the text differs from the last match. None: yes
    in `auto`, no in `fixed`."""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.min > self.max:
            raise ValueError(f"min={self.min} is larger than max={self.max}; write min <= max")
        return self


class Suffix(_Options):
    """Suffix decoding: propose what most often followed the last tokens, in this text and in earlier ones."""

    share: Literal["off", "salt", "all"] = "off"
    """Whose finished texts a request may draft from: nobody's, those with the same `cache_salt`, everybody's.
    Only you know who may see whose text, so it is off until you say."""
    share_prompts: bool = False
    """Finished prompts too, not only answers."""
    max_tokens: int = Field(default=1_000_000, ge=1)
    """Finished text kept, in tokens over all tenants; 16 to 32 bytes each."""
    max_age_seconds: float = Field(default=3600.0, gt=0)
    """Older finished text is forgotten."""
    per_matched_token: float = Field(default=1.0, gt=0)
    """Draft tokens at most for each token that matched."""

    @field_validator("share", mode="before")
    @classmethod
    def _as_yaml_reads_it(cls, share: Any) -> Any:
        """YAML takes a bare `off` for False."""
        return "off" if share is False else share


class Drafter(_Options):
    """A model or head that drafts."""

    model: str | None = Field(default=None, min_length=1)
    """Folder or Hugging Face id; None only for methods whose weights are in the target (mtp)."""
    method: DrafterMethod | None = None
    """None: told from the checkpoint."""
    tensor_parallel_size: int | None = Field(default=None, ge=1)
    """None: as the target."""
    revision: str | None = None
    """Branch, tag or commit of a Hugging Face id."""
    quantization: str | None = None
    """As vLLM's option of this name, for the drafter."""
    max_model_len: int | None = Field(default=None, ge=1)
    """As vLLM's option of this name, for the drafter."""

    @model_validator(mode="after")
    def _named(self) -> Self:
        if self.model is None and (self.method is None or method_of(self.method).needs_checkpoint):
            raise ValueError("model is missing; write the drafter's folder or Hugging Face id")
        return self


class SpeculationConfig(_Options):
    """How to speculate. `SpeculationConfig()` is what you get when you ask for nothing: `auto`."""

    mode: Literal["auto", "fixed", "off"] = "auto"
    """`auto` lets Slipstream decide, `fixed` always drafts `num_draft_tokens`, `off` never drafts."""
    num_draft_tokens: int | None = Field(default=None, ge=1, le=MAX_DRAFT_TOKENS)
    """K, the draft tokens per request and step: exactly so many in `fixed`, at most in `auto`."""
    max_requested_tokens: int = Field(default=MAX_DRAFT_TOKENS, ge=0, le=MAX_DRAFT_TOKENS)
    """Draft tokens per step that a request may ask for itself (`vllm_xargs: {"speculate": K}`), at most; 0:
    such a request is treated as all others. `off` is always granted."""
    objective: Literal["throughput", "makespan", "latency"] | None = None
    """What `auto` plans for: most tokens per second, the earliest end of a batch, or the time that requests
    wait. None: makespan for `slipstream.LLM`, throughput for the server."""
    max_tpot_ms: float | None = Field(default=None, gt=0)
    """Milliseconds per token that drafts must not exceed, where the engine without drafts does not."""
    max_ttft_ms: float | None = Field(default=None, gt=0)
    """The same for the first token of a request that comes while others run; waiting for a place apart."""
    drafter: Drafter | None = None
    """A draft model or head."""
    ngram: Ngram | None = None
    """N-gram lookup in the request's own text."""
    suffix: Suffix | None = None
    """Suffix decoding, which counts what followed, and may draft from finished requests."""
    grammar: bool = False
    """Draft what a request's grammar (structured output) forces, between and after the others' drafts."""
    plugins: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """Other people's proposers with their options: by name (entry points `slipstream.proposers`), or by the
    dotted path of the class."""
    custom_class: str | None = None
    """Dotted path of a proposer class of your own, as in vLLM's `custom_class`."""
    native: bool = False
    """Run vLLM's own proposer for what is asked for, one per engine; so it is when you write vLLM's form."""
    vllm: dict[str, Any] = Field(default_factory=dict)
    """Further keys of vLLM's `speculative_config`, passed on unchanged."""

    @field_validator("suffix", mode="before")
    @classmethod
    def _plain_true(cls, suffix: Any) -> Any:
        return {True: {}, False: None}[suffix] if isinstance(suffix, bool) else suffix

    @field_validator("mode", mode="before")
    @classmethod
    def _as_yaml_reads_it(cls, mode: Any) -> Any:
        """YAML takes a bare `off` for False."""
        return {False: "off", True: "auto"}[mode] if isinstance(mode, bool) else mode

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        asked = self.proposers
        if self.mode == "off" and (asked or self.num_draft_tokens or self.vllm):
            given = [*asked, *(["num_draft_tokens"] if self.num_draft_tokens else []), *self.vllm]
            raise ValueError(f"mode is off, but {_and(given)} is given; write one or the other")
        if self.mode == "fixed" and self.num_draft_tokens is None:
            raise ValueError("mode is fixed, but num_draft_tokens is missing; write for example 3")
        aims = {"objective": self.objective, "max_tpot_ms": self.max_tpot_ms, "max_ttft_ms": self.max_ttft_ms}
        given = [name for name, value in aims.items() if value is not None]
        if given and (self.mode != "auto" or self.native):
            reason = "native" if self.native else f"mode {self.mode}"
            raise ValueError(f"{_and(given)} is for plans of auto, not for {reason}; leave it out")
        if self.native and (len(asked) != 1 or self.grammar):
            raise ValueError(
                f"native runs vLLM's own proposer, one per engine; given: {_and(asked) or 'none'}"
            )
        if self.custom_class and len(asked) > 1:
            raise ValueError(f"{_and(asked)} are given; a custom_class of vLLM's runs alone")
        if unknown := sorted(set(self.vllm) - VLLM_OPTIONS):
            raise ValueError(f"vllm has {unknown_keys_message(unknown, VLLM_OPTIONS)}")
        return self

    @property
    def proposers(self) -> tuple[str, ...]:
        """Return the proposers asked for by name; empty when `auto` shall find one."""
        asked = {
            "drafter": self.drafter, "ngram": self.ngram,
            "suffix": self.suffix, "grammar": self.grammar or None, "custom_class": self.custom_class,
        } | self.plugins  # fmt: skip
        return tuple(name for name, value in asked.items() if value is not None)

    @classmethod
    def build(cls, options: Mapping[str, Any]) -> Self:
        """Validate `options`; a mistake becomes one `ConfigError` that says what to write."""
        try:
            return cls.model_validate(options)
        except ValidationError as error:
            raise ConfigError("\n".join(_explain(cls, e) for e in error.errors())) from None

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a JSON or YAML file."""
        try:
            options = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
        except OSError as error:
            raise ConfigError(
                f"speculate={str(path)!r}: not auto, off or fixed:K, and no file that can be read "
                f"({error.strerror})"
            ) from None
        except yaml.YAMLError as error:
            raise ConfigError(f"{path}: neither JSON nor YAML: {error}") from None
        if not isinstance(options, dict):
            raise ConfigError(f"{path}: expected a mapping of options, found {type(options).__name__}")
        return cls.build(options)


def unknown_keys_message(unknown: Iterable[str], known: Iterable[str]) -> str:
    """Return 'unknown key x; did you mean y?' for each key."""
    known = sorted(known)
    parts = []
    for key in unknown:
        close = difflib.get_close_matches(key, known, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"known are {', '.join(known)}"
        parts.append(f"unknown key {key!r}; {hint}")
    return "; ".join(parts)


def _explain(cls: type[BaseModel], error: Any) -> str:
    """Return one pydantic error as a line that names the option, the value and what to write."""
    *parents, last = [str(part) for part in error["loc"]] or [""]
    sections: dict[str, type[BaseModel]] = {"drafter": Drafter, "ngram": Ngram, "suffix": Suffix}
    owner = sections.get(parents[0], cls) if parents else cls
    if error["type"] == "extra_forbidden":
        where = f"speculate.{'.'.join(parents)}" if parents else "speculate"
        return f"{where}: {unknown_keys_message([last], owner.model_fields)}"
    option = ".".join(["speculate", *(part for part in [*parents, last] if part)])
    message = error["msg"].removeprefix("Value error, ")
    if error["type"] == "value_error":
        return f"{option}: {message}"
    return f"{option}={error['input']!r}: {message[0].lower()}{message[1:]}"


def _and(names: Iterable[str]) -> str:
    return " and ".join(names)
