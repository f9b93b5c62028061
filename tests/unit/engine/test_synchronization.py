"""On vLLM's V2 model runner nothing of ours makes the host wait for the device (docs/vllm.md)."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

WORKER = Path(__file__).parents[3] / "src" / "slipstream" / "engine" / "worker"
WAITING = {
    "item", "tolist", "numpy", "cpu", "cuda", "to", "tensor", "as_tensor", "from_numpy", "nonzero",
    "masked_select", "synchronize",
}  # fmt: skip
"""Calls that wait, or copy from memory that is not pinned."""


def waits(source: str) -> Iterator[str]:
    """Yield what could wait for the device, outside of kernels, which run there."""
    tree = ast.parse(source)
    kernels = [
        node for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and "triton.jit" in map(ast.unparse, node.decorator_list)
    ]  # fmt: skip
    on_device = {id(node) for kernel in kernels for node in ast.walk(kernel)}
    for node in ast.walk(tree):
        if id(node) not in on_device:
            called = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr
            by_mask = isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Compare)
            if called in WAITING or by_mask:
                yield ast.unparse(node)


@pytest.mark.parametrize(
    "module", ["v2_alignment.py", "v2_draft_model.py", "v2_draft_sampling.py", "worker.py"]
)
def test_nothing_waits_for_the_device(module: str) -> None:
    assert not list(waits((WORKER / module).read_text()))


@pytest.mark.parametrize(
    "planted",
    ["drafts.tolist()", "torch.tensor([1], device=device)", "table.to(device)", "drafts[drafts < 0]"],
)
def test_what_waits_is_found(planted: str) -> None:
    assert list(waits(f"def step(drafts, table, device):\n    return {planted}")) == [planted]
    assert not list(waits(f"@triton.jit\ndef kernel():\n    {planted}"))
