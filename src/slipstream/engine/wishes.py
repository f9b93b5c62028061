"""What a request may have of drafts: what it asks for itself, and what can be verified for it."""

from typing import Any

KEY = "speculate"  # in a request's vllm_xargs, or in SamplingParams.extra_args
AUTO = -1
OFF = 0

MIN_P_NOTHING = 1e-5  # vLLM's own threshold


def wish_of(request: Any, most: int | None = None) -> int:
    """AUTO, OFF, or the number of draft tokens per step that it asks for: `most` at most, and AUTO if that is
    0."""
    wish = _asked_for(request)
    if wish in (AUTO, OFF) or most is None:
        return wish
    return min(wish, most) or AUTO


def _asked_for(request: Any) -> int:
    sampling = request.sampling_params if request else None
    if sampling is None or not _can_verify(sampling):
        return OFF
    try:
        return parse((sampling.extra_args or {}).get(KEY, "auto"))
    except ValueError:
        return AUTO  # refused where requests come in, unless they come another way


def parse(wish: Any) -> int:
    if wish == "auto":
        return AUTO
    if wish == "off":
        return OFF
    try:
        number = int(wish)
    except (TypeError, ValueError):
        number = -1
    if number < 0 or isinstance(wish, bool | float):
        raise ValueError(f"{KEY}={wish!r} in vllm_xargs: write off, auto or a number of draft tokens")
    return number


def _can_verify(sampling: Any) -> bool:
    """vLLM's rejection sampler does not know these; such requests are served without drafts."""
    return not (sampling.min_p > MIN_P_NOTHING or sampling.logit_bias or sampling.trace_decode_token_ids)
