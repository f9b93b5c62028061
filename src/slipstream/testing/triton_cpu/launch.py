"""Compile kernels as they are launched, and launch them."""

import contextlib
import hashlib
import importlib.util
import inspect
import itertools
import logging
import os
import secrets
import sys
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from numba.core.bytecode import FunctionIdentity
from numba.core.errors import NumbaError
from triton.runtime.errors import InterpreterError  # type: ignore[import-untyped]
from triton.runtime.interpreter import InterpretedFunction  # type: ignore[import-untyped]

from slipstream.testing.triton_cpu import operations
from slipstream.testing.triton_cpu.translate import Unsupported, translate

logger = logging.getLogger(__name__)

CACHE = "SLIPSTREAM_KERNEL_CACHE"
"""Environment: the folder of compiled kernels. Default: one in the user's cache."""

KINDS = {
    torch.bool: "int1", torch.int8: "int8", torch.int16: "int16", torch.int32: "int32", torch.int64: "int64",
    torch.uint8: "uint8", torch.uint16: "uint16", torch.uint32: "uint32", torch.uint64: "uint64",
    torch.bfloat16: "bf16", torch.float32: "fp32", torch.float64: "fp64",
}  # fmt: skip


compiled: Counter[str] = Counter()
"""Launches of compiled kernels in this process, by kernel."""
interpreted: Counter[str] = Counter()
"""Launches of kernels that could not be translated."""
unchecked: Counter[str] = Counter()
"""Launches of compiled kernels that the interpreter failed to run for comparison."""


def install(checked: bool = False) -> None:
    """Compile every kernel that is launched from now on in this process. With `checked` the interpreter runs
    each launch too, on copies, and a difference is an error."""
    _name_functions_uniquely()
    interpret = InterpretedFunction.run
    kernels: dict[Callable[..., Any], Kernel] = {}

    def run(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        if warmup:
            return None
        kernel = kernels.get(self.fn)
        if kernel is None:
            kernel = kernels[self.fn] = Kernel(self.fn)
        if checked:
            copy = _Copies()
            copied = [copy(value) for value in args], {name: copy(value) for name, value in kwargs.items()}
        if not kernel.launch(grid, args, kwargs):
            interpreted[self.fn.__name__] += 1
            return interpret(self, *args, grid=grid, warmup=warmup, **kwargs)
        compiled[self.fn.__name__] += 1
        if checked:
            try:
                interpret(self, *copied[0], grid=grid, warmup=warmup, **copied[1])
            except InterpreterError as error:
                if not unchecked[self.fn.__name__]:
                    logger.warning("%s is not checked: %s", self.fn.__name__, error)
                unchecked[self.fn.__name__] += 1
            else:
                copy.compare(self.fn.__name__)
        return None

    InterpretedFunction.run = run


def _name_functions_uniquely() -> None:
    """Let numba number functions from a random number on. It tells closures of one name apart by numbers that
    begin with 1 in every process: of two kernels that were compiled in different processes and are loaded
    from the cache in a third, one would call the other's `a * b` for its `a + b`."""
    FunctionIdentity._unique_ids = itertools.count(secrets.randbits(48))


class _Copies:
    """Copies of the arguments of a launch; tensors that share memory share it in the copy too."""

    def __init__(self) -> None:
        self._storages: dict[int, torch.UntypedStorage] = {}
        self._pairs: list[tuple[torch.Tensor, torch.Tensor]] = []

    def __call__(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        storage = value.untyped_storage()
        if storage.data_ptr() not in self._storages:
            self._storages[storage.data_ptr()] = storage.clone()
        made = torch.empty(0, dtype=value.dtype)
        made.set_(self._storages[storage.data_ptr()], value.storage_offset(), value.size(), value.stride())
        self._pairs.append((value, made))
        return made

    def compare(self, kernel: str) -> None:
        for number, (ours, theirs) in enumerate(self._pairs):
            try:
                torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6, equal_nan=True)
            except AssertionError as error:
                raise AssertionError(f"{kernel}: tensor {number} differs: {error}") from None


class Kernel:
    """A kernel and its compiled versions, by the constants and types of the launch."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        parameters = inspect.signature(function).parameters
        self._names = tuple(parameters)
        self._defaults = {
            n: p.default for n, p in parameters.items() if p.default is not inspect.Parameter.empty
        }
        self._constant = frozenset(n for n, p in parameters.items() if "constexpr" in str(p.annotation))
        self._compiled: dict[tuple[Any, ...], Callable[..., Any] | None] = {}
        self._compiling = threading.Lock()

    def launch(self, grid: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
        """Run the kernel on a grid; False if it cannot be compiled, and nothing was done."""
        given = dict(zip(self._names, args, strict=False))
        for name in self._names[len(args) :]:
            given[name] = kwargs[name] if name in kwargs else self._defaults[name]
        key: list[Any] = []
        values: list[Any] = []
        for name, value in given.items():
            if isinstance(value, torch.Tensor):
                key.append(value.dtype)
                values.append(value.data_ptr())
            elif self._is_constant(name, value):
                key.append((getattr(value, "value", value),))
            else:
                key.append(type(value))
                values.append(value)
        chosen = tuple(key)
        if chosen not in self._compiled:
            with self._compiling:
                if chosen not in self._compiled:
                    self._compiled[chosen] = self._compile(given)
        run = self._compiled[chosen]
        if run is None:
            return False
        sizes = grid(given) if callable(grid) else grid
        run(*sizes, *(1,) * (3 - len(sizes)), *values)
        return True

    def _is_constant(self, name: str, value: Any) -> bool:
        """Return whether a version is compiled for the value: of a `constexpr`, as Triton does, and of what
        takes few values."""
        return name in self._constant or value is None or isinstance(value, bool)

    def _compile(self, given: Mapping[str, Any]) -> Callable[..., Any] | None:
        constants: dict[str, Any] = {}
        pointers: dict[str, str] = {}
        types = ["int64"] * 3
        for name, value in given.items():
            if isinstance(value, torch.Tensor):
                pointers[name] = KINDS.get(value.dtype, str(value.dtype))
                types.append("int64")
            elif self._is_constant(name, value):
                constants[name] = getattr(value, "value", value)
            else:
                types.append("float32" if isinstance(value, float) else "int64")
        try:
            source = translate(self.function, constants, pointers)
            launch = _module(f"{self.function.__name__}", source).launch
            launch.compile(f"void({', '.join(types)})")
        except (Unsupported, NumbaError, KeyError) as error:
            logger.warning("%s runs in Triton's interpreter: %s", self.function.__name__, error)
            return None
        return launch


def _module(name: str, source: str) -> Any:
    """Import a source from a file: numba keeps compiled functions of files only."""
    own = b"".join(Path(file).read_bytes() for file in (__file__, operations.__file__))
    digest = hashlib.sha256(own + source.encode()).hexdigest()[:16]
    file = _cache() / f"{name}_{digest}.py"
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        draft = file.with_suffix(f".{os.getpid()}")
        draft.write_text(source)
        with contextlib.suppress(FileExistsError):  # never replaced: numba tells by its time what is compiled
            os.link(draft, file)
        draft.unlink()
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = module
    spec.loader.exec_module(module)
    return module


def _cache() -> Path:
    home = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    return Path(os.environ.get(CACHE, home / "slipstream" / "kernels"))
