"""Load from `vllm bench serve`: its load generator, its latency accounting, its dataset loaders."""

import asyncio
import contextlib
import io
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Request:
    """One request of a benchmark: chat messages, or a prompt for a plain completion."""

    messages: list[dict[str, Any]] | None
    prompt: str | list[int] | None
    max_tokens: int
    body: Mapping[str, Any] = field(default_factory=dict)
    """More fields of the request, such as `response_format`."""


@dataclass(frozen=True)
class Traffic:
    """Requests for one server: closed loop with `concurrency` in flight, or open loop at `rate` requests a
    second (Poisson; the arrival times follow from `seed`)."""

    url: str
    model: str
    requests: Sequence[Request]
    concurrency: int | None = None
    rate: float | None = None
    seed: int = 0
    body: Mapping[str, Any] = field(default_factory=dict)
    salt: str = ""
    """Keeps the prefix cache from answering for a prompt that was sent before."""
    ignore_eos: bool = False


def send(traffic: Traffic) -> dict[str, Any]:
    """Send all requests and return vLLM's result: `duration`, `output_lens`, `ttfts`, `latencies`,
    `start_times`, `generated_texts`, `errors` and more."""
    return run_concurrently({"": traffic})[""]


def run_concurrently(
    several: Mapping[str, Traffic], finished: Callable[[str], None] = lambda name: None
) -> dict[str, dict[str, Any]]:
    """Send traffic to several servers at the same time; `finished` is called for each as it is done."""

    async def one(name: str, traffic: Traffic) -> dict[str, Any]:
        result = await _benchmark(traffic)
        finished(name)
        return result

    async def all_of_them() -> list[dict[str, Any]]:
        return await asyncio.gather(*(one(name, traffic) for name, traffic in several.items()))

    with contextlib.redirect_stdout(io.StringIO()):  # vLLM's own report; ours has these numbers
        return dict(zip(several, asyncio.run(all_of_them()), strict=True))


def _benchmark(traffic: Traffic) -> Coroutine[Any, Any, dict[str, Any]]:
    import numpy as np
    from vllm.benchmarks import serve
    from vllm.benchmarks.datasets import SampleRequest

    chat = traffic.requests[0].messages is not None
    np.random.seed(traffic.seed)  # vLLM draws the arrival times from numpy's global generator
    samples = [
        SampleRequest(
            prompt="" if request.prompt is None else request.prompt,
            prompt_len=0,  # the server's own count replaces it
            expected_output_len=request.max_tokens,
            chat_messages=request.messages,
            request_overrides={
                **request.body,
                **({"cache_salt": f"{traffic.salt}-{i}"} if traffic.salt else {}),
            },
        )
        for i, request in enumerate(traffic.requests)
    ]
    result: Coroutine[Any, Any, dict[str, Any]] = serve.benchmark(
        task_type=serve.TaskType.GENERATION,
        endpoint_type="openai-chat" if chat else "openai",
        api_url=f"{traffic.url}/v1/{'chat/completions' if chat else 'completions'}",
        base_url=traffic.url,
        model_id=traffic.model,
        model_name=traffic.model,
        tokenizer=None,
        input_requests=samples,
        logprobs=None,
        request_rate=float("inf") if traffic.rate is None else traffic.rate,
        burstiness=1.0,
        disable_tqdm=True,
        num_warmups=0,
        profile=False,
        selected_percentile_metrics=[],
        selected_percentiles=[],
        ignore_eos=traffic.ignore_eos,
        goodput_config_dict={},
        max_concurrency=traffic.concurrency,
        lora_modules=None,
        extra_headers=None,
        extra_body=dict(traffic.body),
        ready_check_timeout_sec=0,
    )
    return result


def load_dataset(flags: Sequence[str], tokenizer: str, num_prompts: int, max_tokens: int) -> list[Request]:
    """Requests from a dataset loader of `vllm bench serve`, by its own flags:
    `--dataset-name random --random-input-len 100`."""
    from vllm.benchmarks import serve
    from vllm.benchmarks.datasets import get_samples
    from vllm.tokenizers import get_tokenizer
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = FlexibleArgumentParser()
    serve.add_cli_args(parser)
    arguments = parser.parse_args(
        [*flags, "--num-prompts", str(num_prompts), "--output-len", str(max_tokens), "--model", tokenizer]
    )
    arguments.random_output_len = arguments.custom_output_len = arguments.hf_output_len = max_tokens
    samples = get_samples(arguments, get_tokenizer(tokenizer))
    return [
        Request(
            messages=sample.chat_messages,
            prompt=None if sample.chat_messages is not None else sample.prompt,
            max_tokens=sample.expected_output_len or max_tokens,
        )
        for sample in samples
    ]
