"""Our scheduler on vLLM's own, without workers: what is drafted, and when."""

import random
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch

from slipstream.drafting.requests import AUTO, OFF
from slipstream.engine.settings import Settings
from slipstream.planning.step_cost import Step

PROMPT = [5, 6, 7, 8, 9, 10, 11, 5, 6, 7]  # ends as it began
EXECUTOR = SimpleNamespace(collective_rpc=lambda *args, **kwargs: [None])


NGRAM = {"ngram": {"min": 2, "max": 5}}


def scheduler(model: str, stages: int = 1, free: Any = NGRAM, num_blocks: int = 100, **settings: Any) -> Any:
    """With n-gram lookup, or other free proposers, and as many pipeline stages and blocks of KV cache."""
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

    from slipstream.engine.core.scheduler import Scheduler

    target = ModelConfig(model=model, skip_tokenizer_init=True, dtype="float32", max_model_len=512)
    cache = CacheConfig(block_size=16, enable_prefix_caching=True)
    cache.num_gpu_blocks = num_blocks
    config = VllmConfig(
        model_config=target,
        cache_config=cache,
        scheduler_config=SchedulerConfig(
            max_num_seqs=16, max_num_batched_tokens=512, max_model_len=512, is_encoder_decoder=False,
            async_scheduling=False,
        ),
        parallel_config=ParallelConfig(pipeline_parallel_size=stages),
        speculative_config=SpeculativeConfig(
            method="custom_class", model="slipstream.engine.worker.drafters.NoDrafter",
            num_speculative_tokens=4, target_model_config=target, target_parallel_config=ParallelConfig(),
        ),
        additional_config=Settings(free=free, **settings).as_dict(),
    )  # fmt: skip
    attention = FullAttentionSpec(block_size=16, num_kv_heads=1, head_size=1, dtype=torch.float32)
    blocks = KVCacheConfig(
        num_blocks=num_blocks, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], attention)]
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
    assert ours._described["r"].requested == AUTO
    next_turn(session, ours, PROMPT, min_p=0.5)
    session.num_computed_tokens = session.num_tokens - 1
    session.spec_token_ids = []
    ours.draft(EXECUTOR)
    assert ours._described["r"].requested == OFF
    assert not session.spec_token_ids


def test_a_later_turn_of_the_user_is_not_shared(tiny_llama: str) -> None:
    ours, session = scheduler(tiny_llama, share="all"), request()
    composer = ours._loop.composer
    told = ours._loop.composer = MagicMock(wraps=composer)
    told.__contains__.side_effect = composer.__contains__
    told.drafters = composer.drafters
    ours.add_request(session)
    write(ours, ours.schedule(), [8])
    ours.draft(EXECUTOR)
    next_turn(session, ours, [40, 41, 42])
    session.num_computed_tokens = session.num_tokens - 1
    ours.draft(EXECUTOR)
    assert [call.args[0].num_prompt_tokens for call in told.start.mock_calls] == [10, 13]
    assert [call.args[0] for call in told.forget.mock_calls] == ["r"]


class Crowd:
    """Requests that come and go, and a model whose next token follows from the last two."""

    def __init__(self, ours: Any, seed: int, cancelling: float = 0.1) -> None:
        self.ours = ours
        self.cancelling = cancelling
        self.random = random.Random(seed)
        self.running: dict[str, Any] = {}
        self.finished: list[Any] = []
        self.started = self.cancelled = self.preempted = self.drafted = 0

    @staticmethod
    def next_token(tokens: Sequence[int]) -> int:
        return 5 + (3 * tokens[-1] + tokens[-2]) % 23

    def join(self, prompt: list[int] | None = None) -> None:
        from vllm import SamplingParams
        from vllm.utils.hashing import sha256
        from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
        from vllm.v1.request import Request

        init_none_hash(sha256)
        hashes = get_request_block_hasher(16, sha256)
        sampling = SamplingParams(max_tokens=self.random.randint(20, 150), temperature=0, ignore_eos=True)
        prompt = prompt or [self.random.randint(5, 27) for _ in range(self.random.randint(5, 60))]
        self.started += 1
        name = f"r{self.started}"
        self.running[name] = Request(
            name, prompt, sampling_params=sampling, pooling_params=None, block_hasher=hashes
        )
        self.ours.add_request(self.running[name])

    def cancel(self) -> None:
        from vllm.v1.request import RequestStatus

        name = self.random.choice(list(self.running))
        self.ours.finish_requests([name], RequestStatus.FINISHED_ABORTED)
        del self.running[name]
        self.cancelled += 1

    def step(self) -> None:
        from vllm.v1.outputs import ModelRunnerOutput

        output = self.ours.schedule()
        self.preempted += len(output.preempted_req_ids or ())
        names = list(output.num_scheduled_tokens)
        if self.running and self.random.random() < self.cancelling:
            self.cancel()  # while the step is under way
        written = [self.write(name, output.scheduled_spec_decode_tokens.get(name, [])) for name in names]
        rows = {name: row for row, name in enumerate(names)}
        self.ours.update_from_output(
            output, ModelRunnerOutput(req_ids=names, req_id_to_index=rows, sampled_token_ids=written)
        )
        self.ours.draft(EXECUTOR)
        for name in [name for name, request in self.running.items() if request.is_finished()]:
            self.finished.append(self.running.pop(name))

    def write(self, name: str, drafts: Sequence[int]) -> list[int]:
        request = self.ours.requests.get(name)
        if request is None or request.is_prefill_chunk:
            return []
        self.drafted += len(drafts)
        tokens, written = list(request.all_token_ids), []
        for draft in [*drafts, None]:
            written.append(self.next_token(tokens))
            tokens.append(written[-1])
            if written[-1] != draft:
                break
        return written


def test_nothing_is_left_of_cancelled_and_preempted_requests(tiny_llama: str) -> None:
    """1,000 cancels at random moments, 200 preemptions and more; the others write what the model would."""
    suffix = {
        "share": False, "share_prompts": False, "max_tokens": 1000, "max_age": 60.0, "per_matched_token": 1.0,
    }  # fmt: skip
    ours = scheduler(tiny_llama, free={**NGRAM, "suffix": suffix}, num_blocks=50)
    crowd = Crowd(ours, seed=0)
    while crowd.cancelled < 1000 or crowd.preempted < 200:
        while len(crowd.running) < 24:
            crowd.join()
        for _ in range(crowd.random.choice((0, 0, 0, 1))):
            crowd.cancel()
        crowd.step()
    while crowd.running:
        crowd.step()
    assert len(crowd.finished) > 100
    assert crowd.drafted > 1000
    for request in crowd.finished:
        tokens = list(request.prompt_token_ids)
        for _ in range(request.max_tokens):
            tokens.append(crowd.next_token(tokens))
        assert list(request.all_token_ids) == tokens
    composer = ours._loop.composer
    of_proposers = [state for p in composer._all for state in vars(p).values() if isinstance(state, dict)]
    assert len(of_proposers) >= 2
    kept = [ours._described, ours._loop.state.requested, composer._running, *of_proposers]
    assert [len(state) for state in kept] == [0] * len(kept)
    assert ours.requests == {}
    assert ours._failures == 0
    assert composer.faults.counts == {}


def test_a_long_prompt_is_read_in_several_steps(tiny_llama: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """And others, who have little to be read, do not wait for it."""
    monkeypatch.setattr("slipstream.loop.MAX_OBSERVED_TOKENS", 30)
    crowd = Crowd(scheduler(tiny_llama), seed=0, cancelling=0.0)
    crowd.join(PROMPT * 7)
    crowd.join(PROMPT)
    long, short = crowd.running["r1"], crowd.running["r2"]
    read = []
    for _ in range(5):
        crowd.step()
        assert crowd.ours._described["r2"].num_observed == short.num_tokens
        read.append(crowd.ours._described["r1"].num_observed)
    assert read[0] == 30 - len(PROMPT) - 1
    assert read[1] > 40
    assert read[4] == long.num_tokens


@pytest.mark.parametrize("answer", [AttributeError("pass_profile"), [None]])
def test_foreign_workers_are_planned_for_too(answer: Any) -> None:
    """A `worker_cls` that is not ours tells no profile: the planner begins with a guess."""
    from slipstream.engine.core.scheduler import make_planner
    from slipstream.planning.objective import Bounds, Objective

    executor = MagicMock()
    executor.collective_rpc.side_effect = [answer]
    planner = make_planner(executor, Objective.THROUGHPUT, Bounds())
    assert planner.report(Step(1))["step_seconds"]
    executor.collective_rpc.assert_called_once_with("pass_profile")
