"""vLLM's source, read without importing it: of an installed vLLM, or of a wheel that is not installed."""

import ast
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

PACKAGE = "vllm"
LAZY = "MODULE_ATTRS"
"""The dictionary from which vLLM's own package imports names when they are asked for."""


@dataclass(frozen=True)
class Found:
    """A definition, or the import of something that is not vLLM's, and the module in which it stands."""

    node: ast.AST
    module: str


class VllmSource:
    def __init__(self, root: Path | zipfile.Path) -> None:
        """Read from `root`, which holds the folder `vllm`."""
        self._root = root
        self._modules: dict[str, tuple[ast.Module, bool] | None] = {}

    @classmethod
    def of_wheel(cls, wheel: Path) -> Self:
        return cls(zipfile.Path(wheel))

    def find(self, path: str) -> Found | None:
        """Return what `module` or `module:attribute.attribute` names, or None if it is not there."""
        module, _, attributes = path.partition(":")
        if not attributes:
            return self._as_module(module)
        first, *rest = attributes.split(".")
        found = self._in_module(module, first, frozenset())
        for attribute in rest:
            found = self._in_class(found, attribute) if found else None
        return found

    def has(self, found: Found, name: str) -> bool:
        """Return whether a class has this attribute or field, or a dictionary this key."""
        value = getattr(found.node, "value", None)
        if isinstance(value, ast.Dict):
            return any(isinstance(key, ast.Constant) and key.value == name for key in value.keys)
        return self._in_class(found, name) is not None

    def attributes_set(self, found: Found) -> set[str]:
        """Return the attributes that the methods of a class and of its bases assign to self."""
        return {
            target.attr
            for cls in self._with_bases(found)
            for node in ast.walk(cls.node)
            if isinstance(node, ast.Assign | ast.AnnAssign)
            for target in ast.walk(ast.Tuple(_targets(node), ast.Store()))
            if isinstance(target, ast.Attribute)
            and isinstance(target.value, ast.Name)
            and target.value.id == "self"
        }

    def derives(self, found: Found, base: str) -> bool | None:
        """Return whether a class has a base of this name; None if the source does not show it."""
        if _is_foreign(found):
            return False
        if not isinstance(found.node, ast.ClassDef):
            return None
        if found.node.name == base:
            return True
        known = [self.derives(each, base) if each else None for each in self._bases(found.node, found.module)]
        return True if True in known else None if None in known else False

    def _in_module(self, module: str, name: str, seen: frozenset[tuple[str, str]]) -> Found | None:
        parsed = self._parse(module)
        if parsed is None or (module, name) in seen:
            return None
        seen |= {(module, name)}
        tree, _ = parsed
        node = _definition(tree.body, name)
        if isinstance(node, ast.Import | ast.ImportFrom):
            return self._imported(node, module, name, seen)
        if node is not None:
            return Found(node, module)
        for statement in tree.body:
            if isinstance(statement, ast.ImportFrom) and statement.names[0].name == "*":
                source = self._absolute(statement, module)
                if found := self._in_module(source, name, seen):
                    return found
        if lazy := _lazy_imports(tree).get(name):
            source, _, attribute = lazy.partition(":")
            return self._in_module(module + source if source.startswith(".") else source, attribute, seen)
        return self._as_module(f"{module}.{name}")

    def _imported(
        self, node: ast.Import | ast.ImportFrom, module: str, name: str, seen: frozenset[tuple[str, str]]
    ) -> Found | None:
        alias = next(alias for alias in node.names if _bound_name(alias) == name)
        source = alias.name if isinstance(node, ast.Import) else self._absolute(node, module)
        if source.split(".")[0] != PACKAGE:
            return Found(node, module)
        if isinstance(node, ast.Import):
            return self._as_module(source if alias.asname else PACKAGE)
        return self._in_module(source, alias.name, seen)

    def _in_class(self, found: Found, name: str) -> Found | None:
        if isinstance(found.node, ast.Module):
            return self._in_module(found.module, name, frozenset())
        for cls in self._with_bases(found):
            if isinstance(cls.node, ast.ClassDef) and (node := _definition(cls.node.body, name)):
                return Found(node, cls.module)
        return None

    def _with_bases(self, found: Found) -> Iterator[Found]:
        """Return a class and those of its bases that are vLLM's, in the order of their definition."""
        if not isinstance(found.node, ast.ClassDef):
            return
        yield found
        for base in self._bases(found.node, found.module):
            if base is not None and base.node is not found.node:
                yield from self._with_bases(base)

    def _bases(self, cls: ast.ClassDef, module: str) -> Iterator[Found | None]:
        """Return what a class derives from directly; None for a base that the source does not show."""
        for base in cls.bases:
            expression = base.value if isinstance(base, ast.Subscript) else base
            first, *rest = ast.unparse(expression).split(".")
            found = self._in_module(module, first, frozenset())
            for attribute in rest:
                if found is None or _is_foreign(found):
                    break
                found = self._in_class(found, attribute)
            yield found

    def _as_module(self, module: str) -> Found | None:
        parsed = self._parse(module)
        return Found(parsed[0], module) if parsed else None

    def _absolute(self, node: ast.ImportFrom, module: str) -> str:
        """Return the module that a statement in `module` imports from."""
        if not node.level:
            return node.module or ""
        parsed = self._parse(module)
        is_package = parsed is not None and parsed[1]
        parts = module.split(".")
        parts = parts[: len(parts) - node.level + is_package]
        return ".".join([*parts, *filter(None, [node.module])])

    def _parse(self, module: str) -> tuple[ast.Module, bool] | None:
        """Return a module and whether it is a package."""
        if module not in self._modules:
            self._modules[module] = self._read(module)
        return self._modules[module]

    def _read(self, module: str) -> tuple[ast.Module, bool] | None:
        name = module.replace(".", "/")
        for file, is_package in ((f"{name}/__init__.py", True), (f"{name}.py", False)):
            place = self._root.joinpath(file)
            if place.is_file():
                return ast.parse(place.read_text(encoding="utf-8")), is_package
        return None


def _is_foreign(found: Found) -> bool:
    """Return whether it is imported from a package that is not vLLM's."""
    return isinstance(found.node, ast.Import | ast.ImportFrom)


def parameters(node: ast.AST) -> tuple[str, ...] | None:
    """Return the names of a function's parameters, self left out; None if it is no function."""
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return None
    of = node.args
    in_order = (*of.posonlyargs, *of.args, of.vararg, *of.kwonlyargs, of.kwarg)
    return tuple(arg.arg for arg in in_order if arg is not None and arg.arg not in ("self", "cls"))


def contains(node: ast.AST, code: str) -> bool:
    """Return whether the statements of `code` follow each other somewhere in `node`. What is in a block may
    go on; `...` in place of a block is any block; docstrings and a function's parameters do not count."""
    wanted = ast.parse(code).body
    return any(_begins(block[start:], wanted) for block in _blocks(node) for start in range(len(block)))


def _begins(block: Sequence[ast.stmt], wanted: Sequence[ast.stmt]) -> bool:
    if len(wanted) == 1 and _is_any(wanted[0]):
        return True
    return len(block) >= len(wanted) and all(map(_is_like, block, wanted))


def _is_any(statement: ast.stmt) -> bool:
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and statement.value.value is ...
    )


def _is_like(statement: ast.stmt, wanted: ast.stmt) -> bool:
    if type(statement) is not type(wanted):
        return False
    body, wanted_body = getattr(statement, "body", None), getattr(wanted, "body", None)
    if body is None or wanted_body is None:
        return ast.unparse(statement) == ast.unparse(wanted)
    if not _begins(_without_docstring(body), wanted_body):
        return False
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
        return statement.name == getattr(wanted, "name", "")
    return _head(statement) == _head(wanted)


def _head(statement: ast.stmt) -> list[str]:
    """Return the expressions of a compound statement, as the condition of an `if`."""
    return [
        ast.unparse(child) for child in ast.iter_child_nodes(statement) if not isinstance(child, ast.stmt)
    ]


def _blocks(node: ast.AST) -> Iterator[list[ast.stmt]]:
    if isinstance(node, ast.stmt):
        yield [node]
    for inner in ast.walk(node):
        for field in ("body", "orelse", "finalbody"):
            block = getattr(inner, field, None)
            if isinstance(block, list):
                yield block


def _without_docstring(body: Sequence[ast.stmt]) -> Sequence[ast.stmt]:
    first = body[0]
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
        return body[1:] if isinstance(first.value.value, str) else body
    return body


def _definition(body: Sequence[ast.stmt], name: str) -> ast.stmt | None:
    """Return the last statement that defines a name; of several branches, the first that does."""
    found = None
    for statement in body:
        found = _defines(statement, name) or found
    return found


def _defines(statement: ast.stmt, name: str) -> ast.stmt | None:
    if isinstance(statement, ast.Import | ast.ImportFrom):
        return statement if any(_bound_name(alias) == name for alias in statement.names) else None
    if isinstance(statement, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        if statement.name != name:
            return None
        is_overload = any(ast.unparse(each).endswith("overload") for each in statement.decorator_list)
        return None if is_overload else statement
    if isinstance(statement, ast.Assign | ast.AnnAssign):
        names = ast.walk(ast.Tuple(_targets(statement), ast.Store()))
        return statement if any(isinstance(node, ast.Name) and node.id == name for node in names) else None
    if isinstance(statement, ast.If | ast.Try | ast.With):
        handlers = getattr(statement, "handlers", [])
        blocks = (statement.body, *(handler.body for handler in handlers), getattr(statement, "orelse", []))
        return next((found for block in blocks if (found := _definition(block, name))), None)
    return None


def _bound_name(alias: ast.alias) -> str:
    return alias.asname or alias.name.split(".")[0]


def _targets(statement: ast.Assign | ast.AnnAssign) -> list[ast.expr]:
    return statement.targets if isinstance(statement, ast.Assign) else [statement.target]


def _lazy_imports(tree: ast.Module) -> dict[str, str]:
    statement = _definition(tree.body, LAZY)
    value = getattr(statement, "value", None)
    if not isinstance(value, ast.Dict):
        return {}
    pairs = zip(value.keys, value.values, strict=True)
    return {
        str(key.value): str(source.value)
        for key, source in pairs
        if isinstance(key, ast.Constant) and isinstance(source, ast.Constant)
    }
