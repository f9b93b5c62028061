"""Where draft tokens come from. Engine-free: nothing here imports vllm or torch."""

from slipstream.drafting.base import NO_DRAFT, Draft, Proposer, RequestInfo

__all__ = ["NO_DRAFT", "Draft", "Proposer", "RequestInfo"]
