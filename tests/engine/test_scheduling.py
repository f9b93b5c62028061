"""Our scheduler on vLLM's own, without workers: what is drafted, and when."""

from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch

from slipstream.engine.settings import Settings
from slipstream.engine.wishes import AUTO, OFF

PROMPT = [5, 6, 7, 8, 9, 10, 11, 5, 6, 7]  # ends as it began
EXECUTOR = SimpleNamespace(collective_rpc=lambda *args, **kwargs: [None])


def scheduler(model: str, stages: int = 1, **settings: Any) -> Any:
    """With n-gram lookup, and as many pipeline stages."""
    from vllm.config import (
        CacheConfig,
        ModelConfig,
        ParallelConfig,
        SchedulerConfig,
        SpeculativeConfig,
        VllmConfig,
    )
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
    from vllm.v1.structured_output import StructuredOutputManager

    from slipstream.engine.scheduler import Scheduler

    target = ModelConfig(model=model, skip_tokenizer_init=True, dtype="float32", max_model_len=512)
    cache = CacheConfig(block_size=16, enable_prefix_caching=True)
    cache.num_gpu_blocks = 100
    config = VllmConfig(
        model_config=target,
        cache_config=cache,
        scheduler_config=SchedulerConfig(
            max_num_seqs=16, max_num_batched_tokens=512, max_model_len=512, is_encoder_decoder=False,
            async_scheduling=False,
        ),
        parallel_config=ParallelConfig(pipeline_parallel_size=stages),
        speculative_config=SpeculativeConfig(
            method="custom_class", model="slipstream.engine.drafters.NoDrafter", num_speculative_tokens=4,
            target_model_config=target, target_parallel_config=ParallelConfig(),
        ),
        additional_config=Settings(free={"ngram": {"min": 2, "max": 5}}, **settings).as_dict(),
    )  # fmt: skip
    attention = FullAttentionSpec(block_size=16, num_kv_heads=1, head_size=1, dtype=torch.float32)
    blocks = KVCacheConfig(
        num_blocks=100, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], attention)]
    )
    return Scheduler(
        vllm_config=config, kv_cache_config=blocks, block_size=16,
        structured_output_manager=StructuredOutputManager(config),
    )  # fmt: skip


def request(**sampling: Any) -> Any:
    from vllm import SamplingParams
    from vllm.v1.request import Request

    parameters = SamplingParams(**{"max_tokens": 50, "temperature": 0, "ignore_eos": True, **sampling})
    return Request("r", list(PROMPT), sampling_params=parameters, pooling_params=None)


def write(scheduler: Any, output: Any, tokens: list[int]) -> None:
    from vllm.v1.outputs import ModelRunnerOutput

    scheduler.update_from_output(
        output, ModelRunnerOutput(req_ids=["r"], req_id_to_index={"r": 0}, sampled_token_ids=[tokens])
    )


def test_drafts_follow_what_was_written(tiny_llama: str) -> None:
    ours = scheduler(tiny_llama)
    ours.add_request(request())
    write(ours, ours.schedule(), [8])
    ours.draft(EXECUTOR)
    assert ours.schedule().scheduled_spec_decode_tokens == {"r": [9, 10, 11, 5]}


@pytest.mark.parametrize("stages", [1, 2])
def test_no_draft_in_place_of_a_token_that_is_in_flight(tiny_llama: str, stages: int) -> None:
    """With several pipeline stages vLLM calls `post_step` before a step's tokens are known."""
    ours = scheduler(tiny_llama, stages)
    ours.add_request(request())
    first = ours.schedule()
    ours.draft(EXECUTOR)
    assert not ours.schedule().scheduled_spec_decode_tokens
    write(ours, first, [8])
    ours.draft(EXECUTOR)
    assert ours.schedule().scheduled_spec_decode_tokens == {"r": [9, 10, 11, 5]}


def next_turn(session: Any, ours: Any, tokens: list[int], **sampling: Any) -> None:
    from vllm import SamplingParams
    from vllm.v1.request import StreamingUpdate

    parameters = SamplingParams(max_tokens=50, temperature=1.0, **sampling)
    update = StreamingUpdate(
        mm_features=None, prompt_token_ids=tokens, max_tokens=50, arrival_time=0.0, sampling_params=parameters
    )
    ours._update_request_as_session(session, update)


def test_a_later_turn_has_its_own_sampling(tiny_llama: str) -> None:
    """min_p cannot be verified: from the turn on that asks for it there are no drafts."""
    ours, session = scheduler(tiny_llama), request()
    ours.add_request(session)
    write(ours, ours.schedule(), [8])
    ours.draft(EXECUTOR)
    assert ours._watched["r"].wish == AUTO
    next_turn(session, ours, PROMPT, min_p=0.5)
    session.num_computed_tokens = session.num_tokens - 1
    session.spec_token_ids = []
    ours.draft(EXECUTOR)
    assert ours._watched["r"].wish == OFF
    assert not session.spec_token_ids


def test_a_later_turn_of_the_user_is_not_shared(tiny_llama: str) -> None:
    ours, session = scheduler(tiny_llama, share="all"), request()
    composer = ours._composer
    told = ours._composer = MagicMock(wraps=composer)
    told.__contains__.side_effect = composer.__contains__
    ours.add_request(session)
    write(ours, ours.schedule(), [8])
    ours.draft(EXECUTOR)
    next_turn(session, ours, [40, 41, 42])
    session.num_computed_tokens = session.num_tokens - 1
    ours.draft(EXECUTOR)
    assert [call.args[0].num_prompt_tokens for call in told.start.mock_calls] == [10, 13]
    assert [call.args[0] for call in told.forget.mock_calls] == ["r"]
