"""What vLLM's model classes can do, read from their source: importing one takes torch and seconds."""

import ast
from functools import cache
from pathlib import Path

from slipstream.ops.vllm_source import VllmSource

MODELS = "vllm.model_executor.models"
LAYERS_INTERFACE = "SupportsEagle3"
"""The base of those classes of targets that hand over the states before some of their layers."""

EAGLE_CLASSES = (
    "EagleCohereForCausalLM", "EagleDeepSeekMTPModel", "EagleLlama4ForCausalLM", "EagleLlamaForCausalLM",
    "EagleMiniCPMForCausalLM", "EagleMistralForCausalLM", "EagleMistralLarge3ForCausalLM",
)  # fmt: skip
"""The classes of EAGLE heads (the first kind) in the registry of vLLM 0.32, for where it is not installed."""


@cache
def hands_over_layers(vllm: Path, architecture: str) -> bool | None:
    """Return whether vLLM's class of a target hands over the states that EAGLE-3 reads; None if its source
    does not show it, or the class is chosen by platform. `vllm` is the folder of its source."""
    source = VllmSource(vllm.parent)
    module, name = _registered(source).get(architecture, ("", ""))
    found = source.find(f"{MODELS}.{module}:{name}") if module and "." not in module else None
    return source.derives(found, LAYERS_INTERFACE) if found else None


def _registered(source: VllmSource) -> dict[str, tuple[str, str]]:
    """Return the module, with a dot if it is not among vLLM's models, and the class of each architecture."""
    found: dict[str, tuple[str, str]] = {}
    registry = source.find(f"{MODELS}.registry")
    for node in ast.walk(registry.node) if registry else ():
        if not isinstance(node, ast.Dict):
            continue
        for key, value in zip(node.keys, node.values, strict=True):
            match key, value:
                case ast.Constant(value=str(name)), ast.Tuple(
                    elts=[ast.Constant(value=str(module)), ast.Constant(value=str(of))]
                ):
                    found[name] = module, of
    return found
