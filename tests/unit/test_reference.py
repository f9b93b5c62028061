"""The pages of the documentation that are made from the code are what the code gives."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "reference.py"


@pytest.fixture(scope="module")
def reference() -> ModuleType:
    spec = importlib.util.spec_from_file_location("reference", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_pages_are_what_the_code_gives(reference: ModuleType) -> None:
    assert not reference.stale(), "write them anew: scripts/reference.py"


def test_a_page_that_is_not_is_found(reference: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(reference.PAGES, "support.md", lambda: reference.support() + "more\n")
    assert reference.stale() == ["support.md"]


def test_every_option_has_its_meaning(reference: ModuleType) -> None:
    """A row whose last cell is empty is an option that nobody can understand from the page."""
    for page in ("cli", "configuration", "thresholds"):
        text = getattr(reference, page)()
        assert [line for line in text.splitlines() if line.endswith("|  |")] == []
