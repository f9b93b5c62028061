"""Functions compiled by numba."""

from collections.abc import Callable
from typing import TypeVar

import numba

Function = TypeVar("Function", bound=Callable[..., object])


def compiled(function: Function) -> Function:
    """Compile a function, and keep the code on disk for the next start if there is a place for it: in a
    container with a read-only file system there is none, and numba refuses to cache."""
    try:
        kept: Function = numba.njit(cache=True)(function)
    except RuntimeError:
        kept = numba.njit(function)
    return kept
