"""Workers with a bug planted in them, for tests that must see it. Used by dotted path as `worker_cls`."""

from typing import Any

from slipstream.engine.worker import CPUWorker


class ShiftedContextWorker(CPUWorker):
    """The n-gram proposer does not see the newest token: drafts are off by one, never the output."""

    def init_device(self) -> None:
        super().init_device()
        drafter: Any = self.model_runner.drafter
        propose = drafter.propose

        def propose_shifted(
            num_speculative_tokens: int,
            sampled_token_ids: list[list[int]],
            num_tokens_no_spec: Any,
            token_ids_cpu: Any,
            slot_mappings: Any = None,
        ) -> list[list[int]]:
            return propose(num_speculative_tokens, sampled_token_ids, num_tokens_no_spec - 1, token_ids_cpu)

        drafter.propose = propose_shifted


class AcceptsTooMuchWorker(CPUWorker):
    """The sampler takes the first rejected draft token instead of the one the target recovers."""

    def init_device(self) -> None:
        super().init_device()
        sampler: Any = self.model_runner.rejection_sampler
        forward = sampler.forward

        def accept_one_more(metadata: Any, draft_probs: Any, logits: Any, sampling_metadata: Any) -> Any:
            output = forward(metadata, draft_probs, logits, sampling_metadata)
            sampled = output.sampled_token_ids  # [requests, K + 1], -1 after the last valid token
            start = 0
            for row, num_drafts in enumerate(metadata.num_draft_tokens):
                last = int((sampled[row] != -1).sum()) - 1
                if last < num_drafts:
                    sampled[row, last] = metadata.draft_token_ids[start + last]
                start += num_drafts
            return output

        sampler.forward = accept_one_more
