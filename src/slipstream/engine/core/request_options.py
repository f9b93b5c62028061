"""How many draft tokens a request may have: what it asks for itself, and what can be verified for it."""

from typing import Any

from slipstream.drafting.requests import AUTO, OFF

KEY = "speculate"  # in a request's vllm_xargs, or in SamplingParams.extra_args

MIN_P_NOTHING = 1e-5  # vLLM's own threshold


def requested_draft_tokens(request: Any, max_tokens: int | None = None) -> int:
    """Return AUTO, OFF, or the number of draft tokens per step that the request asks for: `max_tokens` at
    most, and AUTO if that is 0."""
    requested = _requested(request)
    if requested in (AUTO, OFF) or max_tokens is None:
        return requested
    return min(requested, max_tokens) or AUTO


def _requested(request: Any) -> int:
    sampling = request.sampling_params if request else None
    if sampling is None or not _can_verify(sampling):
        return OFF
    try:
        return parse((sampling.extra_args or {}).get(KEY, "auto"))
    except ValueError:
        return AUTO  # refused where requests come in, unless they come another way


def parse(value: Any) -> int:
    """Read the option's value; raises ValueError with what to write."""
    if value == "auto":
        return AUTO
    if value == "off":
        return OFF
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        number = -1
    if number < 0 or isinstance(value, bool | float):
        raise ValueError(f"{KEY}={value!r} in vllm_xargs: write off, auto or a number of draft tokens")
    return number


def _can_verify(sampling: Any) -> bool:
    """Return whether vLLM's rejection sampler knows these parameters; else the request is served without
    drafts."""
    return not (sampling.min_p > MIN_P_NOTHING or sampling.logit_bias or sampling.trace_decode_token_ids)
