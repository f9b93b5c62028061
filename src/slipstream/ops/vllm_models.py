"""What vLLM's model classes can do, read from their source: importing one takes torch and seconds."""

import ast
from functools import cache
from pathlib import Path

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
    does not show it, or the class is not vLLM's own. `vllm` is the folder of its source."""
    source = _Source(vllm.parent)
    module, name = source.registered().get(architecture, ("", ""))
    return source.inherits(module, name) if name else None


class _Source:
    def __init__(self, root: Path) -> None:
        self._root = root
        self._parsed: dict[str, ast.Module | None] = {}

    def registered(self) -> dict[str, tuple[str, str]]:
        """Return the module and the class of each architecture in vLLM's registry."""
        found = {}
        registry = self._parse(f"{MODELS}.registry")
        for node in ast.walk(registry) if registry else ():
            if not isinstance(node, ast.Dict):
                continue
            for key, value in zip(node.keys, node.values, strict=True):
                match key, value:
                    case ast.Constant(value=str(name)), ast.Tuple(
                        elts=[ast.Constant(value=str(module)), ast.Constant(value=str(of))]
                    ):
                        found[name] = module if "." in module else f"{MODELS}.{module}", of
        return found

    def inherits(self, module: str, name: str) -> bool | None:
        """Return whether a name in a module is `SupportsEagle3` or a class derived from it."""
        if name == LAYERS_INTERFACE:
            return True
        tree = self._parse(module)
        for node in tree.body if tree else ():
            if isinstance(node, ast.ClassDef) and node.name == name:
                known = [self._base_inherits(module, base) for base in node.bases]
                return True if True in known else None if None in known else False
            if isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    if name == (alias.asname or alias.name):
                        source = _absolute(node, module)
                        return self.inherits(source, alias.name) if source.startswith("vllm") else False
        return None

    def _base_inherits(self, module: str, base: ast.expr) -> bool | None:
        if isinstance(base, ast.Subscript):
            base = base.value
        if isinstance(base, ast.Name):
            return self.inherits(module, base.id)
        return False if ast.unparse(base) == "nn.Module" else None

    def _parse(self, module: str) -> ast.Module | None:
        """Return a module; None if it is a package or not there."""
        if module not in self._parsed:
            file = self._root.joinpath(*module.split(".")).with_suffix(".py")
            self._parsed[module] = ast.parse(file.read_text(encoding="utf-8")) if file.is_file() else None
        return self._parsed[module]


def _absolute(node: ast.ImportFrom, module: str) -> str:
    """Return the module that a statement in `module` imports from."""
    parts = module.split(".")[: -node.level] if node.level else []
    return ".".join([*parts, *filter(None, [node.module])])
