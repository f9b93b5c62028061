"""Fixtures for all tests: the models, built once and cached outside the clone."""

from pathlib import Path

import pytest

from slipstream.testing import models

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What is under engine/ or e2e/ starts real vLLM."""
    for item in items:
        if {"engine", "e2e"} & set(item.path.relative_to(HERE).parts[:1]):
            item.add_marker(pytest.mark.engine)


@pytest.fixture(scope="session")
def smollm2() -> str:
    return str(models.smollm2())


@pytest.fixture(scope="session")
def drafter() -> str:
    return str(models.drafter())


@pytest.fixture(scope="session")
def padded_drafter() -> str:
    return str(models.padded_drafter())


@pytest.fixture(scope="session")
def tiny_llama() -> str:
    return str(models.tiny_llama())


@pytest.fixture(scope="session")
def other_tokenizer() -> str:
    return str(models.other_tokenizer())


@pytest.fixture(scope="session")
def medusa_heads() -> str:
    return str(models.medusa_heads())


@pytest.fixture(scope="session")
def eagle_head() -> str:
    return str(models.eagle_head())
