# Not run: no Ray cluster with GPUs was at hand.
"""An OpenAI-compatible server by `ray.serve.llm`, whose replicas speculate: serve run openai_app:app

`ray.serve.llm` makes vLLM's arguments from `engine_kwargs` and its configuration by
`EngineArgs.create_engine_config`, where Slipstream comes in: the environment of the replicas is all it takes.
"""

import os

from ray.serve.llm import LLMConfig, build_openai_app

app = build_openai_app(
    {
        "llm_configs": [
            LLMConfig(
                model_loading_config={
                    "model_id": "model",
                    "model_source": os.environ.get("MODEL", "Qwen/Qwen2.5-7B-Instruct"),
                },
                deployment_config={"autoscaling_config": {"min_replicas": 1, "max_replicas": 2}},
                engine_kwargs={"max_model_len": 8192},
                runtime_env={"env_vars": {"SLIPSTREAM": "auto"}},
            )
        ]
    }
)
