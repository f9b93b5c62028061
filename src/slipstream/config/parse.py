"""The three forms in which people write speculation options, read into one `SpeculationConfig`.

1. ours:     speculate="auto" | "off" | "fixed:K" | a file | a mapping | SpeculationConfig; drafter=...
2. vLLM's:   speculative_config={...}, or its aliases spec_method / spec_model / spec_tokens
3. classic:  speculative_model="...", num_speculative_tokens=..., ngram_prompt_lookup_max=...: the form
             of vLLM before 0.9, which countless guides still show and current vLLM rejects

One form at a time; `drafter=`, `objective=` and its bounds may join ours.
"""

import json
import os
from collections.abc import Mapping
from typing import Any

from slipstream.config.speculation import (
    VLLM_OPTIONS,
    SpeculationConfig,
    unknown_keys_message,
)
from slipstream.errors import ConfigError
from slipstream.methods import CUSTOM_CLASS, DRAFTERS, METHODS, MTP, SUFFIX

OBJECTIVE_OPTIONS = ("objective", "max_tpot_ms", "max_ttft_ms")
OURS = ("speculate", "drafter", *OBJECTIVE_OPTIONS)
VLLM_FORM = ("speculative_config", "spec_method", "spec_model", "spec_tokens")
CLASSIC_FORM = (
    "speculative_model",
    "num_speculative_tokens",
    "ngram_prompt_lookup_max",
    "ngram_prompt_lookup_min",
    "speculative_draft_tensor_parallel_size",
    "speculative_max_model_len",
    "speculative_model_quantization",
    "speculative_disable_by_batch_size",
    "spec_decoding_acceptance_method",
    "typical_acceptance_sampler_posterior_threshold",
    "typical_acceptance_sampler_posterior_alpha",
)
# Classic options that today's vLLM always fulfils or has no use for.
CLASSIC_IGNORED = {
    "use_v2_block_manager": "vLLM has had only that block manager since 0.7",
    "speculative_disable_mqa_scorer": "vLLM verifies all draft tokens in one pass and has no other scorer",
    "disable_logprobs_during_spec_decoding": "vLLM returns the logprobs that a request asks for",
}
# All keys of vLLM 0.32's speculative_config.
VLLM_KEYS = VLLM_OPTIONS | {
    "method", "model", "num_speculative_tokens", "prompt_lookup_min", "prompt_lookup_max",
    "draft_tensor_parallel_size", "revision", "quantization", "max_model_len",
}  # fmt: skip
SPECULATION_ARGUMENTS = frozenset({*OURS, *VLLM_FORM, *CLASSIC_FORM, *CLASSIC_IGNORED})

Options = dict[str, Any]


def read_speculation(arguments: Mapping[str, Any]) -> tuple[SpeculationConfig, list[str]]:
    """Return the config that `arguments` ask for, and notes on what was translated or ignored.

    `arguments` may hold any of SPECULATION_ARGUMENTS; None counts as not given.
    """
    given = {name: value for name, value in arguments.items() if value is not None}
    notes = [
        f"{name} is ignored: {reason}"
        for name, reason in CLASSIC_IGNORED.items()
        if given.pop(name, None) is not None
    ]
    forms = {
        "Slipstream's": [name for name in OURS if name in given],
        "vLLM's": [name for name in VLLM_FORM if name in given],
        "the classic": [name for name in CLASSIC_FORM if name in given],
    }
    used = {form: names for form, names in forms.items() if names}
    if len(used) > 1:
        written = "; ".join(f"{form} form: {', '.join(names)}" for form, names in used.items())
        raise ConfigError(f"speculation is given in {len(used)} forms ({written}); keep one of them")
    if not forms["vLLM's"] and not forms["the classic"]:
        return _read_our_form(given), notes
    try:
        if forms["vLLM's"]:
            return _read_vllm_form(given), notes
        config, more_notes = _read_classic_form(given)
        return config, notes + more_notes
    except ConfigError as error:  # in the words that the user wrote
        raise ConfigError(
            str(error).replace("speculate.num_draft_tokens", "num_speculative_tokens")
        ) from None


def _read_our_form(given: Mapping[str, Any]) -> SpeculationConfig:
    speculate, drafter = given.get("speculate", "auto"), given.get("drafter")
    config = _read_speculate(speculate)
    joined: Options = {name: given[name] for name in OBJECTIVE_OPTIONS if name in given}
    for name, value in joined.items():
        if (there := getattr(config, name)) is not None:
            raise ConfigError(f"{name}={value!r} is given beside speculate.{name}={there!r}; keep one")
    if drafter is not None:
        if not isinstance(drafter, str | os.PathLike):
            raise ConfigError(f"drafter={drafter!r}: write a folder or a Hugging Face id")
        if config.drafter is not None:
            raise ConfigError(
                f"drafter={drafter!r} is given beside speculate.drafter={config.drafter.model!r}; keep one"
            )
        joined["drafter"] = {"model": os.fspath(drafter)}
    if not joined:
        return config
    return SpeculationConfig.build({**config.model_dump(exclude_defaults=True), **joined})


def _read_speculate(speculate: Any) -> SpeculationConfig:
    if isinstance(speculate, SpeculationConfig):
        return speculate
    if isinstance(speculate, Mapping):
        return SpeculationConfig.build(dict(speculate))
    if isinstance(speculate, bool):
        return SpeculationConfig.build({"mode": speculate})
    if not isinstance(speculate, str | os.PathLike):
        raise ConfigError(f"speculate={speculate!r}: write auto, off, fixed:K, a file, or a mapping")
    text = os.fspath(speculate)
    if text in ("auto", "off"):
        return SpeculationConfig.build({"mode": text})
    if text.startswith("fixed:"):
        return SpeculationConfig.build({"mode": "fixed", "num_draft_tokens": _whole_number(text, text[6:])})
    if text.lstrip().startswith("{"):
        return SpeculationConfig.build(_json_object("speculate", text))
    return SpeculationConfig.load(text)


def _read_vllm_form(given: Mapping[str, Any]) -> SpeculationConfig:
    raw = given.get("speculative_config", {})
    if isinstance(raw, str):
        raw = _json_object("speculative_config", raw)
    if not isinstance(raw, Mapping):
        raise ConfigError(f"speculative_config={raw!r}: write a mapping, or JSON that is an object")
    options = {str(key).replace("-", "_"): value for key, value in raw.items() if value is not None}
    aliases = {
        "spec_method": "method",
        "spec_model": "model",
        "spec_tokens": "num_speculative_tokens",
    }
    for alias, key in aliases.items():
        if alias in given:
            if key in options:
                raise ConfigError(f"{alias} and speculative_config[{key!r}] say the same; keep one")
            options[key] = given[alias]
    if "tensor_parallel_size" in options:
        raise ConfigError("speculative_config: write draft_tensor_parallel_size, not tensor_parallel_size")
    return SpeculationConfig.build(_translate_vllm_keys(options))


def _translate_vllm_keys(options: Options) -> Options:
    if unknown := sorted(set(options) - VLLM_KEYS):
        raise ConfigError(f"speculative_config: {unknown_keys_message(unknown, VLLM_KEYS)}")

    result: Options = {
        "native": True,
        "vllm": {key: options.pop(key) for key in sorted(set(options) & VLLM_OPTIONS)},
    }
    tokens = options.pop("num_speculative_tokens", None)
    if tokens is not None:
        result |= {"mode": "fixed", "num_draft_tokens": tokens}
    method, model = options.pop("method", None), options.pop("model", None)
    if isinstance(method, str) and method.endswith("_mtp"):  # vLLM's older names: deepseek_mtp, ...
        method = MTP.name
    if method == CUSTOM_CLASS.name and model is None:
        raise ConfigError("speculative_config: custom_class needs model, the dotted path of the class")
    if method == "ngram_gpu":
        raise ConfigError("speculative_config: method ngram_gpu is not supported; write ngram")
    if method == "extract_hidden_states":
        raise ConfigError(
            "speculative_config: method extract_hidden_states does not speculate; use vLLM itself"
        )

    if method in ("ngram", "[ngram]") or (method is None and model in ("ngram", "[ngram]")):
        result["ngram"] = _ngram_as_vllm_reads_it(
            options.pop("prompt_lookup_min", None), options.pop("prompt_lookup_max", None)
        )
    elif method == SUFFIX.name:
        result["suffix"] = {}
    elif method == CUSTOM_CLASS.name or (method is None and _is_dotted_path(model)):
        result["custom_class"] = model
    else:
        if method is not None and method not in DRAFTERS:
            methods = METHODS
            raise ConfigError(f"speculative_config: method={method!r}; write one of {', '.join(methods)}")
        renamed = {"draft_tensor_parallel_size": "tensor_parallel_size"}
        drafter = {"model": model, "method": method}
        for key in ("draft_tensor_parallel_size", "revision", "quantization", "max_model_len"):
            drafter[renamed.get(key, key)] = options.pop(key, None)
        result["drafter"] = {key: value for key, value in drafter.items() if value is not None}
    if options:
        proposer = method or model or "a draft model"
        raise ConfigError(f"speculative_config: {', '.join(sorted(options))} has no meaning for {proposer}")
    return result


def _read_classic_form(given: Mapping[str, Any]) -> tuple[SpeculationConfig, list[str]]:
    method = given.get("spec_decoding_acceptance_method", "rejection_sampler")
    typical = [name for name in given if name.startswith("typical_acceptance_sampler")]
    if method != "rejection_sampler" or typical:
        raise ConfigError(
            "typical acceptance changes what the model says, so Slipstream does not offer it; remove "
            f"{', '.join(typical or ['spec_decoding_acceptance_method'])} (rejection sampling is exact)"
        )
    model = given.get("speculative_model")
    tokens = given.get("num_speculative_tokens")
    if model is None:
        raise ConfigError(
            f"{', '.join(name for name in CLASSIC_FORM if name in given)} without speculative_model; "
            'write speculative_model="<drafter>" or speculative_model="[ngram]"'
        )
    options: Options = {"native": True}
    if tokens is not None:
        options |= {"mode": "fixed", "num_draft_tokens": tokens}

    lookup = {name: given[name] for name in given if name.startswith("ngram_prompt_lookup")}
    if model == "[ngram]":
        largest = lookup.get("ngram_prompt_lookup_max")
        if largest is None:
            raise ConfigError(
                'speculative_model="[ngram]" without ngram_prompt_lookup_max; write for example 4'
            )
        options["ngram"] = {"min": lookup.get("ngram_prompt_lookup_min", 1), "max": largest}
    elif lookup:
        raise ConfigError(
            f'{", ".join(lookup)} belongs to speculative_model="[ngram]", but speculative_model={model!r}'
        )
    else:
        drafter = {
            "model": model,
            "tensor_parallel_size": given.get("speculative_draft_tensor_parallel_size"),
            "max_model_len": given.get("speculative_max_model_len"),
            "quantization": given.get("speculative_model_quantization"),
        }
        options["drafter"] = {key: value for key, value in drafter.items() if value is not None}

    notes = []
    limit = given.get("speculative_disable_by_batch_size")
    if limit is not None:
        if not isinstance(limit, int) or limit < 1:
            raise ConfigError(f"speculative_disable_by_batch_size={limit!r}: write a whole number above 0")
        if tokens is None:
            raise ConfigError(
                "speculative_disable_by_batch_size needs num_speculative_tokens; write for example 3"
            )
        table = [[1, limit, tokens], [limit + 1, limit + 1, 0]]
        options["vllm"] = {"num_speculative_tokens_per_batch_size": table}
        notes.append(f"speculative_disable_by_batch_size={limit} is read as {table} (batch from, to, K)")
    return SpeculationConfig.build(options), notes


def _ngram_as_vllm_reads_it(smallest: int | None, largest: int | None) -> dict[str, int]:
    """Read the two ends. vLLM takes a missing end to be the same as the given one, and 5..5 when both are
    missing."""
    smallest, largest = smallest or largest or 5, largest or smallest or 5
    return {"min": smallest, "max": largest}


def _is_dotted_path(model: Any) -> bool:
    """Decide as vLLM does: `pkg.module.Class` is a proposer class, anything with a slash is a model."""
    parts = model.split(".") if isinstance(model, str) else []
    return len(parts) > 1 and all(part.isidentifier() for part in parts)


def _json_object(option: str, text: str) -> Options:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{option}={text!r} is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise ConfigError(f"{option}={text!r}: expected a JSON object")
    return value


def _whole_number(option: str, text: str) -> int:
    if not text.isdigit():
        raise ConfigError(f"speculate={option!r}: write fixed: and a whole number, for example fixed:3")
    return int(text)
