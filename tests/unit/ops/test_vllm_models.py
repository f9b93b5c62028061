"""What is read from the source of vLLM's models: made up here, and of the installed vLLM."""

from pathlib import Path

import pytest

from slipstream.ops.host import vllm_folder
from slipstream.ops.vllm_models import hands_over_layers
from unit.folders import write_vllm

REGISTRY = """
_TEXT_GENERATION_MODELS = {
    "Direct": ("some", "Direct"),
    "Derived": (
        "other",
        "Derived",
    ),
    "Imported": ("other", "Imported"),
    "Plain": ("some", "Plain"),
    "Foreign": ("some", "Foreign"),
    "Computed": ("some", "Computed"),
    "OnPlatform": ("some", "OnPlatform"),
    "OfPlatform": ("vllm.models.platform", "OfPlatform"),
    "OfPackage": ("package", "OfPackage"),
    "Gone": ("some", "Gone"),
}
_ALL = {**_TEXT_GENERATION_MODELS}
"""
INTERFACES = """
from typing import Protocol
class SupportsPP(Protocol): ...
class SupportsEagle3(SupportsPP, Protocol): ...
"""
SOME = """
import torch.nn as nn
from transformers import Model
from vllm.models.platform import Base
from .interfaces import SupportsEagle3, SupportsPP
class Direct(nn.Module, SupportsPP, SupportsEagle3): ...
class Plain(nn.Module, SupportsPP): ...
class Foreign(Model): ...
class Computed(make(Plain), SupportsPP): ...
class OnPlatform(Base): ...
"""
OTHER = """
from vllm.model_executor.models.some import Direct as First
from .some import Plain as Imported
class Derived(First): ...
"""


@pytest.mark.parametrize(
    ("architecture", "known"),
    [
        ("Direct", True),
        ("Derived", True),
        ("Imported", False),
        ("Plain", False),
        ("Foreign", False),
        ("Computed", None),
        ("OnPlatform", None),
        ("OfPlatform", None),
        ("OfPackage", None),
        ("Gone", None),
        ("NotRegistered", None),
    ],
)
def test_a_class_is_traced_to_its_bases(architecture: str, known: bool | None, tmp_path: Path) -> None:
    vllm = write_vllm(tmp_path, registry=REGISTRY, interfaces=INTERFACES, some=SOME, other=OTHER)
    assert hands_over_layers(vllm, architecture) is known


def test_without_a_registry_nothing_is_known(tmp_path: Path) -> None:
    assert hands_over_layers(write_vllm(tmp_path), "Direct") is None


@pytest.mark.parametrize(
    ("architecture", "known"),
    [
        ("LlamaForCausalLM", True),
        ("Phi3ForCausalLM", True),
        ("Qwen3MoeForCausalLM", True),
        ("Gemma2ForCausalLM", False),
        ("MixtralForCausalLM", False),
        ("ChatGLMModel", False),
        ("Olmo2ForCausalLM", True),  # run by transformers
        ("DeepseekV4ForCausalLM", None),  # by platform
    ],
)
def test_the_installed_vllm(architecture: str, known: bool | None) -> None:
    folder = vllm_folder()
    if folder is None:
        pytest.skip("vLLM is not installed")
    assert hands_over_layers(folder, architecture) is known
