"""What we change in vLLM's V1 model runner: how it samples without drafts, and when it drafts.

vLLM runs its drafter at the end of every step. With `OnDemandDrafting` the step ends with what the drafter
would need kept aside; the scheduler, which has seen what the target wrote and what the free proposers offer,
then asks for the drafter's tokens, or does not.
"""

from typing import Any, NamedTuple

import torch
from vllm.v1.outputs import SamplerOutput
from vllm.v1.sample.logits_processor import LogitBiasLogitsProcessor, MinTokensLogitsProcessor

from slipstream.drafting.base import common_prefix
from slipstream.engine.worker.confidence import DrafterConfidence
from slipstream.engine.worker.drafter_cache import DrafterCache
from slipstream.engine.worker.drafters import HiddenStateDrafter
from slipstream.methods import method_of

NO_TOKEN = -1  # as in the output of vLLM's rejection sampler


class DraftInputs(NamedTuple):
    """What vLLM's runner hands to its drafter at the end of a step, in vLLM's order."""

    scheduler_output: Any
    sampled_token_ids: Any
    sampling_metadata: Any
    hidden_states: torch.Tensor
    sample_hidden_states: torch.Tensor
    aux_hidden_states: list[torch.Tensor] | None
    spec_decode_metadata: Any
    common_attn_metadata: Any
    slot_mappings: Any


class FastSampling:
    """Mixed into a V1 model runner that speculates: a step without drafts samples as bare vLLM does. vLLM
    sends it through the rejection sampler, which is dear for requests with a temperature. And on CPU a step
    with drafts whose requests are all greedy takes each token's maximum once; vLLM's rejection sampler goes
    over the logits some five times, which in a small model is a tenth of the step."""

    def _sample(self: Any, logits: torch.Tensor, spec_decode_metadata: Any) -> Any:
        if spec_decode_metadata is not None:
            if not any(spec_decode_metadata.num_draft_tokens):
                spec_decode_metadata = None
            elif self.device.type == "cpu" and not self.use_async_scheduling:
                sampler = self.rejection_sampler
                if not sampler.synthetic_mode and is_plainly_greedy(self.input_batch.sampling_metadata):
                    return verify_greedily(logits, spec_decode_metadata)
        return super()._sample(logits, spec_decode_metadata)  # type: ignore[misc]


class RestoreDiscardedRng:
    """Mixed into a V1 model runner on CPU. A token that is thrown away, because its prompt is not read to the
    end yet, must not use up a seeded request's random numbers. vLLM 0.32 moves the generator's offset back,
    which generators on CPU do not have: one such request ends the engine."""

    def _sample(self: Any, logits: torch.Tensor, spec_decode_metadata: Any) -> Any:
        states = {row: generator.get_state() for row, generator in self._thrown_away().items()}
        output = super()._sample(logits, spec_decode_metadata)  # type: ignore[misc]
        for row, state in states.items():
            self.input_batch.generators[row].set_state(state)
        return output

    def _bookkeeping_sync(self: Any, *args: Any, **kwargs: Any) -> Any:
        hidden = self._thrown_away()
        for row in hidden:
            del self.input_batch.generators[row]
        result = super()._bookkeeping_sync(*args, **kwargs)  # type: ignore[misc]
        self.input_batch.generators.update(hidden)
        return result

    def _thrown_away(self: Any) -> dict[int, torch.Generator]:
        """Generators of requests whose token of this step is not kept."""
        generators = self.input_batch.generators.items()
        return {row: generator for row, generator in generators if self.discard_request_mask.np[row]}


def is_plainly_greedy(sampling: Any) -> bool:
    """Return whether nothing is asked for but the most probable token, by the logits as they are."""
    budget = sampling.thinking_budget_state_holder
    return (
        sampling.all_greedy
        and sampling.max_num_logprobs is None
        and not sampling.logprob_token_ids
        and sampling.no_penalties
        and sampling.allowed_token_ids_mask is None
        and not sampling.bad_words_token_ids
        and not (budget is not None and budget.has_tracked_requests())
        and all(
            # Of vLLM's own processors these two can change the maximum, if some request has set them.
            isinstance(processor, LogitBiasLogitsProcessor | MinTokensLogitsProcessor)
            and not (getattr(processor, "biases", None) or getattr(processor, "min_toks", None))
            for processor in sampling.logitsprocs.non_argmax_invariant
        )
    )


def verify_greedily(logits: torch.Tensor, metadata: Any) -> SamplerOutput:
    """Return of each request the draft tokens that are the target's own, and the target's next."""
    best = logits.to(torch.float32).argmax(-1).tolist()  # as bare vLLM: among equals it may matter
    drafts = metadata.draft_token_ids.tolist()
    rows = []
    at = first = 0  # in `best`, of which each request has one more than drafts; and in `drafts`
    for count in metadata.num_draft_tokens:
        own, drafted = best[at : at + count + 1], drafts[first : first + count]
        kept = common_prefix(own, drafted)
        rows.append(own[: kept + 1] + [NO_TOKEN] * (metadata.max_spec_len - kept))
        at, first = at + count + 1, first + count
    return SamplerOutput(torch.tensor(rows, dtype=torch.int32), logprobs_tensors=None)


class OnDemandDrafting:
    """Mixed into a V1 model runner, before its own class."""

    _kept: DraftInputs | None = None
    _cache: DrafterCache | None = None
    _confidence: DrafterConfidence | None = None

    def sample_tokens(self: Any, grammar_output: Any) -> Any:
        self._kept = None
        if self.execute_model_state is not None and self.speculative_config.uses_draft_model():
            if self._cache is None:
                self._cache = DrafterCache(self)
            self._cache.target_wrote(self.execute_model_state[0])
        return super().sample_tokens(grammar_output)  # type: ignore[misc]

    def propose_draft_token_ids(self: Any, *args: Any) -> list[list[int]]:
        self._kept = DraftInputs(*args)
        return [[] for _ in range(self.input_batch.num_reqs)]

    @torch.inference_mode()
    def draft(self: Any, wanted: dict[str, int]) -> dict[str, tuple[list[int], list[float]]]:
        """Return the drafter's tokens for these requests, with no more passes than the longest draft needs;
        and the survival that it states for them, empty where its logits are not known.

        With nothing wanted, an EAGLE head still runs over the step's tokens: it reads the target's hidden
        states, which are gone after the step.
        """
        kept, self._kept = self._kept, None
        if kept is None:  # some request is too close to the model's length for the drafter
            return {}
        rows = {
            request_id: self.input_batch.req_id_to_index[request_id]
            for request_id in wanted
            if request_id in self.input_batch.req_id_to_index
        }
        if self._cache:
            ready = self._cache.catch_up(kept, list(rows.values()))
            rows = {request_id: row for request_id, row in rows.items() if row in ready}
            if not rows:
                return {}
        tokens, survival = self._propose(kept, max((wanted[request_id] for request_id in rows), default=0))
        if self._cache:
            self._cache.drafter_ran(kept.scheduler_output)
        return {
            request_id: (tokens[row][: wanted[request_id]], survival[row][: wanted[request_id]])
            for request_id, row in rows.items()
        }

    def _propose(self: Any, kept: DraftInputs, num_tokens: int) -> tuple[list[list[int]], list[list[float]]]:
        """Return [requests, num_tokens] twice: tokens and survival, which may be empty for each request."""
        most = self.speculative_config.num_speculative_tokens
        survival: list[list[float]] | None = None
        if isinstance(self.drafter, HiddenStateDrafter):
            rows = torch.tensor(_last_rows(kept), device=self.device)
            last = torch.tensor([tokens[-1] if tokens else 0 for tokens in kept.sampled_token_ids])
            drafts = self.drafter.draft(
                kept.sample_hidden_states[rows], last.to(self.device), min(num_tokens, most)
            )
        else:
            # Medusa's heads all run at once, and vLLM insists on all of them.
            all_at_once = method_of(self.speculative_config.method).fixed_k
            kept.scheduler_output.num_spec_tokens_to_schedule = most if all_at_once else min(num_tokens, most)
            if self._confidence is None:
                self._confidence = DrafterConfidence(self.drafter.model)
            self._confidence.begin()
            drafts = super().propose_draft_token_ids(*kept)  # type: ignore[misc]
            survival = self._confidence.survival(drafts)
        tokens: list[list[int]] = drafts.tolist()
        return tokens, survival or [[] for _ in tokens]


def _last_rows(kept: DraftInputs) -> list[int]:
    """Return of the target's hidden states, those that each request's last token was sampled from."""
    sampled = kept.sampled_token_ids
    if kept.spec_decode_metadata is None:
        return list(range(len(sampled)))
    rows, offset = [], 0
    for num_drafts, tokens in zip(kept.spec_decode_metadata.num_draft_tokens, sampled, strict=True):
        rows.append(offset + max(len(tokens) - 1, 0))
        offset += num_drafts + 1
    return rows


def extend(runner: Any, *mixins: type) -> None:
    """Make a V1 model runner one of its own class with these mixed in."""
    cls = type(runner)
    runner.__class__ = type(f"Slipstream{cls.__name__}", (*mixins, cls), {})
