import pytest


@pytest.fixture(scope="session", autouse=True)
def all_start_quickly(quick_starts: None) -> None:
    """Every engine of these tests."""
