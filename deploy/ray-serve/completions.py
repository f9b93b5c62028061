# Run on a CPU by benchmarks/ray_serve.py; not run on a GPU or on several nodes.
"""Completions by vLLM in a plain Ray Serve deployment, with or without Slipstream:

    serve run completions:build model=MODEL replicas=2

in this folder, with SLIPSTREAM=auto in the environment. Ray starts replicas without the environment of this
shell, so what concerns vLLM is passed on to them (`PASSED_ON`).
"""

import os
import uuid
from typing import Any

from ray import serve
from starlette.requests import Request
from vllm import AsyncEngineArgs, SamplingParams
from vllm.v1.engine.async_llm import AsyncLLM

SECRET = ("_TOKEN", "_KEY")
"""Not passed on, for Ray's dashboard and logs show `runtime_env`. Give such variables to Ray's nodes."""
PASSED_ON = ("SLIPSTREAM", "VLLM_", "HF_", "PYTHONPATH", "NUMBA_", "LD_PRELOAD")


@serve.deployment
class Completions:
    def __init__(self, model: str, **arguments: Any) -> None:
        self._engine = AsyncLLM.from_engine_args(AsyncEngineArgs(model=model, **arguments))

    async def __call__(self, request: Request) -> dict[str, Any]:
        asked = await request.json()
        sampling = SamplingParams(
            temperature=asked.get("temperature", 0.0), max_tokens=asked.get("max_tokens", 16)
        )
        text = ""
        async for output in self._engine.generate(asked["prompt"], sampling, uuid.uuid4().hex):
            text = output.outputs[0].text
        return {"text": text, "replica": os.getpid()}

    async def check_health(self) -> None:
        """Let Ray replace this replica when its engine is dead."""
        await self._engine.check_health()


def build(arguments: dict[str, Any]) -> Any:
    """Return the application; `serve run` and a RayService give strings."""
    options = dict(arguments)
    replicas, cores = int(options.pop("replicas", 1)), float(options.pop("cores", 1))
    environment = {
        name: value
        for name, value in os.environ.items()
        if name.startswith(PASSED_ON) and not name.endswith(SECRET)
    }
    actor = {"num_cpus": cores, "num_gpus": float(options.pop("gpus", 0))}
    deployment = Completions.options(
        num_replicas=replicas,
        max_ongoing_requests=int(options.pop("at_once", 64)),
        health_check_period_s=2,
        ray_actor_options={**actor, "runtime_env": {"env_vars": environment}},
    )
    return deployment.bind(**options)
