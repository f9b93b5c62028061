"""What the docs name exists."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "slipstream"
NAMED = re.compile(r"`([\w/]+\.py):([\w.]+)`")
LINKED = re.compile(r"\]\((?!http)([^)#]+)")


def names_in(file: Path) -> set[str]:
    """Functions, classes and their methods, and module-level names."""
    found = set()
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
            if isinstance(node, ast.ClassDef):
                found |= {
                    f"{node.name}.{inner.name}" for inner in node.body if isinstance(inner, ast.FunctionDef)
                }
        elif isinstance(node, ast.Assign):
            found |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return found


def test_the_life_of_a_request_is_told_in_names_that_exist() -> None:
    named = NAMED.findall((ROOT / "docs" / "architecture.md").read_text())
    assert len(named) > 20
    missing = [f"{file}:{name}" for file, name in named if name not in names_in(SOURCE / file)]
    assert not missing


@pytest.mark.parametrize(
    "file", sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")]), ids=lambda file: file.name
)
def test_links_lead_somewhere(file: Path) -> None:
    missing = [link for link in LINKED.findall(file.read_text()) if not (file.parent / link.strip()).exists()]
    assert not missing


def test_the_tree_of_the_architecture_is_the_tree() -> None:
    """Every package and module at the top of src/slipstream has its line, and no line is of what is gone."""
    text = (ROOT / "docs" / "architecture.md").read_text()
    told = set(re.findall(r"^  (\w+(?:/|\.py)) ", text, re.M))
    there = {
        f"{path.name}/" for path in SOURCE.iterdir() if path.is_dir() and (path / "__init__.py").exists()
    }
    tests = {"unit/", "engine/", "e2e/"}
    assert there <= told
    assert {name for name in told - there - tests if not (SOURCE / name).exists()} == set()
