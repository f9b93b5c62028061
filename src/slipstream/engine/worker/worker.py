"""The workers that vLLM runs for us, by dotted path (`worker_cls`)."""

import logging
from typing import Any

from vllm.v1.worker import cpu_worker, gpu_worker

from slipstream.engine.patches import (
    fix_expand_batch_to_tokens,
    fix_top_k_of_empty_batch,
    keep_all_logits_processors,
    recover_only_where_drafts_are,
)
from slipstream.engine.settings import Settings
from slipstream.engine.worker.pass_profile import profile_passes
from slipstream.engine.worker.runner import FastSampling, OnDemandDrafting, RestoreDiscardedRng, extend
from slipstream.engine.worker.v2_draft_model import can_be_left_out, limit_draft_passes
from slipstream.engine.worker.v2_draft_sampling import choose_sampling

logger = logging.getLogger("vllm.slipstream")  # so that it is shown


class _Drafts:
    """Answers the scheduler when it asks for the drafter's tokens."""

    _failed = False
    _aligns = False
    """Whether drafts of the scheduler are aligned with the text, on the V2 model runner."""
    _profile: dict[str, Any] | None = None

    def extend_runner(self: Any) -> None:
        if self.vllm_config.speculative_config is None:
            return
        if self.use_v2_model_runner:
            limit_draft_passes(self.model_runner)
            settings = Settings.of(self.vllm_config)
            if settings.composes:
                from slipstream.engine.worker.v2_alignment import AlignedDrafting, propose_if_asked

                extend(self.model_runner, AlignedDrafting)
                self._aligns = True
                if not settings.drafter:
                    propose_if_asked(self.model_runner.speculator, ever=bool(settings.device_lookup))
                else:
                    if settings.chooses_sampling(self.vllm_config):
                        choose_sampling(self.model_runner.speculator)
                    can_be_left_out(self.model_runner.speculator)
            return
        drafts = (OnDemandDrafting,) if Settings.of(self.vllm_config).drafter else ()
        seeds = (RestoreDiscardedRng,) if self.device.type == "cpu" else ()
        extend(self.model_runner, *seeds, FastSampling, *drafts)

    def compile_or_warm_up_model(self: Any) -> Any:
        times = super().compile_or_warm_up_model()  # type: ignore[misc]
        if self._aligns:
            from slipstream.engine.worker.v2_alignment import compile_kernels, longest_draft

            runner = self.model_runner
            longest = longest_draft(runner.num_speculative_steps)
            compile_kernels(runner.req_states, longest, runner.speculator.draft_logits)
        if Settings.of(self.vllm_config).plans:
            try:
                self._profile = profile_passes(self.model_runner)
            except Exception:
                logger.exception("what a pass takes could not be measured; it will be learnt from the steps")
        return times

    def pass_profile(self) -> dict[str, Any] | None:
        """Return what the planner starts from."""
        return self._profile

    def draft(self: Any, wanted: dict[str, int]) -> dict[str, tuple[list[int], list[float]]] | str:
        """Return draft tokens and their stated survival by request, or what went wrong: an exception would
        leave vLLM with the answers of the other ranks unread."""
        try:
            drafts: dict[str, tuple[list[int], list[float]]] = self.model_runner.draft(wanted)
        except Exception as error:
            if not self._failed:
                logger.exception("the drafter failed; said once")
            self._failed = True
            return repr(error)
        return drafts


class CPUWorker(_Drafts, cpu_worker.CPUWorker):
    def init_device(self) -> None:
        fix_expand_batch_to_tokens()
        fix_top_k_of_empty_batch()
        recover_only_where_drafts_are()
        keep_all_logits_processors()
        super().init_device()
        self.extend_runner()


class GPUWorker(_Drafts, gpu_worker.Worker):
    """Not run by us so far: no GPU at hand."""

    def init_device(self) -> None:
        keep_all_logits_processors()
        super().init_device()
        self.extend_runner()
