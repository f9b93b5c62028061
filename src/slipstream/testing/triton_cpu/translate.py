"""Translate a Triton kernel into Python that numba compiles.

A kernel is translated for given constants: its `constexpr` arguments and those that are None. Names of
constants are replaced by their values, branches on constants are decided, loops over `tl.static_range` are
unrolled, and every operator and every function of `triton.language` becomes a call of `operations`. Functions
that a kernel calls are translated with it, once for every set of constants.
"""

import ast
import builtins
import copy
import inspect
import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

import numpy as np
import triton.language as tl  # type: ignore[import-untyped]
from triton.runtime.interpreter import InterpretedFunction  # type: ignore[import-untyped]

PROGRAM = ("x_", "y_", "z_", "nx_", "ny_", "nz_")
"""Names of the place of a program in the grid and of the grid's size, which every function gets."""

OPERATIONS = "op_"  # the module `operations` in the new source

BINARY: Mapping[type, str] = {
    ast.Add: "add", ast.Sub: "subtract", ast.Mult: "multiply", ast.Div: "divide", ast.FloorDiv:
    "floor_divide", ast.Mod: "remainder", ast.LShift: "left_shift", ast.RShift: "right_shift", ast.BitAnd:
    "bit_and", ast.BitOr: "bit_or", ast.BitXor: "bit_xor", ast.Eq: "equal", ast.NotEq: "not_equal", ast.Lt:
    "less", ast.LtE: "less_equal", ast.Gt: "greater", ast.GtE: "greater_equal",
}  # fmt: skip
SAME = ("exp", "log", "log1p", "sigmoid", "where", "maximum", "minimum", "zeros_like", "arange")
RENAMED = {
    "abs": "absolute", "sum": "total", "max": "largest", "min": "smallest", "argmax": "argmax",
    "cumsum": "cumulative_sum", "rand": "random", "mul": "multiply", "add": "add", "div_rn": "divide",
}  # fmt: skip
IGNORED = ("multiple_of", "max_contiguous", "max_constancy")  # hints: the value itself


class Unsupported(Exception):
    """Something in a kernel that is not translated; the message says what and where."""


def translate(kernel: Callable[..., Any], constants: Mapping[str, Any], pointers: Mapping[str, str]) -> str:
    """Return the source of a module whose `launch(nx, ny, nz, ...)` runs a kernel on a grid.

    `pointers` gives the type of what each pointer argument points to. `launch` takes the arguments that are
    not constants in their order, pointers as addresses.
    """
    program = _Program()
    name = program.function(kernel, constants)
    runtime = [p for p in inspect.signature(kernel).parameters if p not in constants]
    cast = [f"    {p} = {OPERATIONS}.to_pointer_{pointers[p]}({p})" for p in runtime if p in pointers]
    call = f"{name}({', '.join([*runtime, 'x', 'y', 'z', 'nx', 'ny', 'nz'])})"
    launch = [
        "@njit(cache=True, nogil=True, error_model='numpy')",
        f"def launch({', '.join(['nx', 'ny', 'nz', *runtime])}):",
        *cast,
        "    for x in range(nx):",
        "        for y in range(ny):",
        "            for z in range(nz):",
        f"                {call}",
    ]
    head = [
        "import numpy as np",
        "from numba import njit",
        f"from slipstream.testing.triton_cpu import operations as {OPERATIONS}",
    ]
    return "\n".join([*head, "", *program.sources, *launch, ""])


class _Program:
    """The functions of one kernel, each after those that it calls."""

    def __init__(self) -> None:
        self.sources: list[str] = []
        self._names: dict[tuple[Any, str], str] = {}

    def function(self, function: Callable[..., Any], constants: Mapping[str, Any]) -> str:
        """Translate a function for given constants, and return its name."""
        key = (function, repr(sorted(constants.items(), key=lambda item: item[0])))
        if key not in self._names:
            tree = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
            assert isinstance(tree, ast.FunctionDef)
            name = f"{tree.name}_{len(self._names)}"
            self._names[key] = name
            body = _Translator(self, function, constants, tree).body()
            parameters = [p for p in inspect.signature(function).parameters if p not in constants]
            made = ast.FunctionDef(
                name=name,
                args=ast.arguments([], [ast.arg(p) for p in [*parameters, *PROGRAM]], None, [], [], None, []),
                body=body or [ast.Pass()],
                decorator_list=[],
            )
            source = ast.unparse(ast.fix_missing_locations(made))
            self.sources.append(f"@njit(nogil=True, error_model='numpy')\n{source}\n")
        return self._names[key]


class _Translator(ast.NodeTransformer):
    def __init__(
        self,
        program: _Program,
        function: Callable[..., Any],
        constants: Mapping[str, Any],
        tree: ast.FunctionDef,
    ) -> None:
        self._program, self._function, self._tree = program, function, tree
        self._constants = {name: _plain(value) for name, value in constants.items()}
        self._globals = {**vars(builtins), **function.__globals__}
        assigned = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        self._locals = assigned | set(inspect.signature(function).parameters)

    def body(self) -> list[ast.stmt]:
        return self._block(self._tree.body)

    def _block(self, statements: Sequence[ast.stmt]) -> list[ast.stmt]:
        done: list[ast.stmt] = []
        for statement in statements:
            found = self.visit(statement)
            made = found if isinstance(found, list) else [] if found is None else [found]
            done += made
            if made and isinstance(made[-1], ast.Return):
                break  # what follows is never reached, and might not have types
        return done

    def _refuse(self, node: ast.AST, what: str) -> Unsupported:
        return Unsupported(f"{self._function.__name__}, line {getattr(node, 'lineno', 0)}: {what}")

    # ---- statements

    def visit_Expr(self, node: ast.Expr) -> Any:
        if isinstance(node.value, ast.Constant):
            return None  # a docstring
        value = self.visit(node.value)
        return None if isinstance(value, ast.Constant) else ast.Expr(value)

    def visit_Assign(self, node: ast.Assign) -> Any:
        value = self.visit(node.value)
        for target in node.targets:
            for name in ast.walk(target):
                if isinstance(name, ast.Name):
                    self._constants.pop(name.id, None)
        if (
            isinstance(value, ast.Constant)
            and not isinstance(value.value, (int, float, bool))
            and isinstance(node.targets[0], ast.Name)
        ):
            self._constants[node.targets[0].id] = value.value  # a type
            return None
        return ast.Assign(node.targets, self._emitted(value), lineno=node.lineno)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> Any:
        assert isinstance(node.target, ast.Name)
        assert node.value is not None
        value = self.visit(node.value)
        if "constexpr" in ast.unparse(node.annotation):
            if not isinstance(value, ast.Constant):
                raise self._refuse(node, "a constexpr that is not constant")
            self._constants[node.target.id] = value.value
            return None
        return ast.Assign([node.target], self._emitted(value), lineno=node.lineno)

    def visit_AugAssign(self, node: ast.AugAssign) -> Any:
        target = copy.copy(node.target)
        assert isinstance(target, ast.Name)
        read = ast.Name(target.id, ast.Load())
        return self.visit_Assign(
            ast.Assign([node.target], ast.BinOp(read, node.op, node.value), lineno=node.lineno)
        )

    def visit_Return(self, node: ast.Return) -> Any:
        return ast.Return(None if node.value is None else self._emitted(self.visit(node.value)))

    def visit_If(self, node: ast.If) -> Any:
        test = self.visit(node.test)
        if isinstance(test, ast.Constant):
            return self._block(node.body if test.value else node.orelse)
        return ast.If(test, self._block(node.body) or [ast.Pass()], self._block(node.orelse))

    def visit_While(self, node: ast.While) -> Any:
        return ast.While(self.visit(node.test), self._block(node.body) or [ast.Pass()], [])

    def visit_For(self, node: ast.For) -> Any:
        assert isinstance(node.target, ast.Name)
        assert isinstance(node.iter, ast.Call)
        arguments = [self.visit(argument) for argument in node.iter.args]
        if ast.unparse(node.iter.func).endswith("static_range"):
            unrolled: list[ast.stmt] = []
            if not all(isinstance(argument, ast.Constant) for argument in arguments):
                raise self._refuse(node, "a static range that is not constant")
            for value in range(*(argument.value for argument in arguments)):
                self._constants[node.target.id] = value
                unrolled += self._block([copy.deepcopy(statement) for statement in node.body])
            return unrolled
        self._constants.pop(node.target.id, None)
        counted = ast.Call(ast.Name("range", ast.Load()), [self._emitted(a) for a in arguments], [])
        return ast.For(node.target, counted, self._block(node.body) or [ast.Pass()], [], lineno=node.lineno)

    def visit_Assert(self, node: ast.Assert) -> Any:
        return None

    # ---- expressions; a constant is an ast.Constant until it is emitted

    def _emitted(self, node: ast.expr) -> ast.expr:
        """Return what stands for a node in the new source: floats are 32 bits wide."""
        if isinstance(node, ast.Constant) and isinstance(node.value, float):
            text = repr(node.value) if math.isfinite(node.value) else f"float('{node.value}')"
            return ast.parse(f"np.float32({text})", mode="eval").body
        if isinstance(node, ast.Constant) and isinstance(node.value, tuple):
            return ast.Tuple([self._emitted(ast.Constant(value)) for value in node.value], ast.Load())
        if isinstance(node, ast.Constant) and not isinstance(node.value, (int, bool, type(None))):
            raise self._refuse(node, f"{node.value!r} as a value")
        return node

    def _call(self, name: str, *arguments: ast.expr) -> ast.Call:
        operation = ast.Attribute(ast.Name(OPERATIONS, ast.Load()), name, ast.Load())
        return ast.Call(operation, [self._emitted(a) for a in arguments], [])

    def visit_Name(self, node: ast.Name) -> Any:
        if node.id in self._constants:
            return ast.Constant(self._constants[node.id])
        if node.id in self._locals or not isinstance(node.ctx, ast.Load):
            return node
        value = _plain(self._globals.get(node.id))
        if isinstance(value, (int, float, bool, tl.dtype)):
            return ast.Constant(value)
        return node

    def visit_Attribute(self, node: ast.Attribute) -> Any:
        value = self._resolved(node)
        if isinstance(value, (int, float, bool, tl.dtype)):
            return ast.Constant(value)
        raise self._refuse(node, ast.unparse(node))

    def _resolved(self, node: ast.expr) -> Any:
        """Return the object that a global name stands for, else None."""
        if isinstance(node, ast.Name):
            return None if node.id in self._locals else _plain(self._globals.get(node.id))
        if isinstance(node, ast.Attribute):
            owner = self._resolved(node.value)
            return None if owner is None else _plain(getattr(owner, node.attr, None))
        return None

    def visit_UnaryOp(self, node: ast.UnaryOp) -> Any:
        operand = self.visit(node.operand)
        if isinstance(operand, ast.Constant):
            return ast.Constant(
                eval(compile(ast.Expression(_located(ast.UnaryOp(node.op, operand))), "", "eval"))
            )
        names = {ast.USub: "negative", ast.Invert: "invert", ast.Not: "logical_not"}
        return operand if isinstance(node.op, ast.UAdd) else self._call(names[type(node.op)], operand)

    def visit_BinOp(self, node: ast.BinOp) -> Any:
        return self._operation(node.op, self.visit(node.left), self.visit(node.right))

    def _operation(self, operator: Any, left: ast.expr, right: ast.expr) -> ast.expr:
        if isinstance(left, ast.Constant) and isinstance(right, ast.Constant):
            a, b = left.value, right.value
            made = ast.Compare(ast.Name("a", ast.Load()), [operator], [ast.Name("b", ast.Load())])
            if not isinstance(operator, ast.cmpop):
                made = ast.BinOp(ast.Name("a", ast.Load()), operator, ast.Name("b", ast.Load()))  # type: ignore
            return ast.Constant(eval(compile(ast.Expression(_located(made)), "", "eval"), {"a": a, "b": b}))
        return self._call(BINARY[type(operator)], left, right)

    def visit_Compare(self, node: ast.Compare) -> Any:
        if len(node.ops) != 1:
            raise self._refuse(node, "a chain of comparisons")
        left, right = self.visit(node.left), self.visit(node.comparators[0])
        if isinstance(node.ops[0], (ast.Is, ast.IsNot)):
            same = isinstance(left, ast.Constant) and left.value is None
            return ast.Constant(same == isinstance(node.ops[0], ast.Is))
        return self._operation(node.ops[0], left, right)

    def visit_BoolOp(self, node: ast.BoolOp) -> Any:
        deciding = isinstance(node.op, ast.Or)  # a constant of this value decides
        left: list[ast.expr] = []
        for value in (self.visit(value) for value in node.values):
            if not isinstance(value, ast.Constant):
                left.append(value)
            elif bool(value.value) == deciding:
                if not left:
                    return ast.Constant(deciding)
                left.append(ast.Constant(deciding))
                break
        if not left:
            return ast.Constant(not deciding)
        return left[0] if len(left) == 1 else ast.BoolOp(node.op, left)

    def visit_IfExp(self, node: ast.IfExp) -> Any:
        test = self.visit(node.test)
        if isinstance(test, ast.Constant):
            return self.visit(node.body if test.value else node.orelse)
        return ast.IfExp(test, self._emitted(self.visit(node.body)), self._emitted(self.visit(node.orelse)))

    def visit_Tuple(self, node: ast.Tuple) -> Any:
        values = [self.visit(value) for value in node.elts]
        if all(isinstance(value, ast.Constant) for value in values):
            constants: Any = tuple(value.value for value in values)
            return ast.Constant(constants)
        return ast.Tuple([self._emitted(value) for value in values], node.ctx)

    visit_List = visit_Tuple  # type: ignore[assignment]

    def visit_Subscript(self, node: ast.Subscript) -> Any:
        form = ast.unparse(node.slice)
        if form in {"(:, None)", ":, None"}:
            return self._call("column", self.visit(node.value))
        if form in {"(None, :)", "None, :"}:
            return self._call("row", self.visit(node.value))
        raise self._refuse(node, ast.unparse(node))

    def visit_Call(self, node: ast.Call) -> Any:
        target = self._resolved(node.func)
        if isinstance(target, InterpretedFunction) and not target.fn.__module__.startswith("triton."):
            return self._kernel_call(node, target.fn)
        if isinstance(node.func, ast.Attribute) and not isinstance(
            self._resolved(node.func.value), ModuleType
        ):
            return self._method(node, node.func)
        name = ast.unparse(node.func).rpartition(".")[2]
        arguments = [self.visit(argument) for argument in node.args]
        keywords = {keyword.arg: self.visit(keyword.value) for keyword in node.keywords}
        return self._language(node, name, arguments, keywords)

    def _language(
        self, node: ast.Call, name: str, arguments: list[Any], keywords: dict[Any, Any]
    ) -> ast.expr:
        """Translate the call of a function of Triton's, or of Python's own."""
        none = ast.Constant(None)
        if name == "program_id" or name == "num_programs":
            axis = (arguments or [keywords.get("axis")])[0].value
            return ast.Name(PROGRAM[axis + (3 if name == "num_programs" else 0)], ast.Load())
        if name == "load":
            given = dict(zip(("pointer", "mask", "other"), arguments, strict=False)) | keywords
            return self._call("load", given["pointer"], given.get("mask", none), given.get("other", none))
        if name in {"store", "atomic_add", "atomic_or"}:
            given = dict(zip(("pointer", "value", "mask"), arguments, strict=False))
            given |= {"value": keywords["val"]} if "val" in keywords else {}
            given |= {key: value for key, value in keywords.items() if key in {"value", "mask"}}
            return self._call(name, given["pointer"], given["value"], given.get("mask", none))
        if name == "cast" or name == "to":
            return self._cast(node, arguments[0], (arguments[1:] or [keywords.get("dtype")])[0])
        if name in {"full", "zeros"}:
            value = ast.Constant(0) if name == "zeros" else (arguments[1:2] or [keywords.get("value")])[0]
            kind = (arguments[1 if name == "zeros" else 2 :] or [keywords.get("dtype")])[0]
            filled = self._cast(node, self._emitted(value), kind)
            shape: Any = arguments[0].value if isinstance(arguments[0], ast.Constant) else None
            if shape == ():
                return filled
            if not isinstance(shape, tuple):
                raise self._refuse(node, "a shape that is not constant")
            extent: Any = shape if len(shape) > 1 else shape[0]
            return self._call("full", ast.Constant(extent), filled)
        if name == "max" and "return_indices" in keywords:
            return self._call("largest_with_index", arguments[0])
        if name == "pointer_type":
            return ast.Constant(tl.pointer_type(arguments[0].value))
        if name in IGNORED:
            return arguments[0]
        if name in {
            "debug_barrier",
            "static_assert",
            "device_assert",
            "device_print",
            "static_print",
            "assume",
        }:
            return none
        constants: list[Any] = [a.value for a in arguments if isinstance(a, ast.Constant)]
        if len(constants) == len(arguments) and not keywords:
            if name in {"float", "int", "min", "max", "abs"} and isinstance(node.func, ast.Name):
                return ast.Constant(getattr(builtins, name)(*constants))
            if name == "cdiv":
                return ast.Constant(-(-constants[0] // constants[1]))
            if name == "next_power_of_2":
                return ast.Constant(1 << (constants[0] - 1).bit_length())
            if name == "constexpr":
                return ast.Constant(constants[0])
        if name == "cdiv":
            above = self._operation(
                ast.Add(), arguments[0], self._operation(ast.Sub(), arguments[1], ast.Constant(1))
            )
            return self._operation(ast.FloorDiv(), above, arguments[1])
        axis = keywords.get("axis")
        if (
            name in {"sum", "max", "min", "argmax", "cumsum"}
            and isinstance(axis, ast.Constant)
            and axis.value
        ):
            raise self._refuse(node, "a reduction along another axis than the first")
        if name in SAME or name in RENAMED:
            return self._call(RENAMED.get(name, name), *arguments[: 3 if name == "where" else 2])
        raise self._refuse(node, f"{ast.unparse(node.func)}()")

    def _method(self, node: ast.Call, function: ast.Attribute) -> ast.expr:
        value = self.visit(function.value)
        arguments = [self.visit(argument) for argument in node.args]
        keywords = {keyword.arg: self.visit(keyword.value) for keyword in node.keywords}
        if function.attr == "to":
            if "bitcast" in keywords:
                raise self._refuse(node, "a bitcast")
            return self._cast(node, value, (arguments or [keywords.get("dtype")])[0])
        shapes: list[Any] = [a.value for a in arguments if isinstance(a, ast.Constant)]
        if function.attr == "reshape" and len(shapes) == 1 and np.size(shapes[0]) == 1:
            return self._call("flat", value)
        raise self._refuse(node, f".{function.attr}()")

    def _cast(self, node: ast.AST, value: ast.expr, kind: Any) -> ast.expr:
        if not isinstance(kind, ast.Constant):
            raise self._refuse(node, "a type that is not constant")
        wanted: Any = kind.value
        if isinstance(wanted, tl.pointer_type):
            return self._call(f"to_pointer_{wanted.element_ty.name}", self._call("to_int64", value))
        return self._call(f"to_{wanted.name}", value)

    def _kernel_call(self, node: ast.Call, function: Callable[..., Any]) -> ast.expr:
        """Translate a call of another function of a kernel's: its constant arguments become part of it."""
        bound = inspect.signature(function).bind(
            *(self.visit(argument) for argument in node.args),
            **{str(keyword.arg): self.visit(keyword.value) for keyword in node.keywords},
        )
        constants, left = {}, []
        for name, parameter in inspect.signature(function).parameters.items():
            value = bound.arguments.get(name, ast.Constant(_plain(parameter.default)))
            annotated = "constexpr" in str(parameter.annotation)
            if isinstance(value, ast.Constant) and (annotated or not isinstance(value.value, (int, float))):
                constants[name] = value.value
            elif annotated:
                raise self._refuse(node, f"{name} is not constant")
            else:
                left.append(value)
        called = ast.Name(self._program.function(function, constants), ast.Load())
        program = [ast.Name(name, ast.Load()) for name in PROGRAM]
        return ast.Call(called, [*(self._emitted(value) for value in left), *program], [])


def _plain(value: Any) -> Any:
    return value.value if isinstance(value, tl.constexpr) else value


def _located(node: Any) -> Any:
    return ast.fix_missing_locations(node)
