import os
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session", autouse=True)
def all_start_quickly(quick_starts: None) -> None:
    """Every engine of these tests."""


@pytest.fixture(autouse=True)
def environment_as_before() -> Iterator[None]:
    """vLLM's configuration changes LD_PRELOAD, with which no later engine of this process would start."""
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)
