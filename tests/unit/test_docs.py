"""What the docs name exists, and they are fit for the site (mkdocs.yml)."""

import ast
import importlib.util
import os
import re
import unicodedata
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
SOURCE = ROOT / "src" / "slipstream"
FILES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md")])
FIGURES = sorted((DOCS / "figures").glob("*.svg"))
NAMED = re.compile(r"`([\w/]+\.py):([\w.]+)`")
LINKED = re.compile(r"\]\((?!http)([^)]+)\)")


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


def without_code(text: str) -> str:
    """Return the text with the lines of its code blocks left empty."""
    lines, fenced = [], False
    for line in text.splitlines():
        fence = line.strip().startswith("```")
        fenced ^= fence
        lines.append("" if fence or fenced else line)
    return "\n".join(lines)


def anchors_of(file: Path) -> set[str]:
    """Return the anchors of the headings, as both GitHub and mkdocs make them."""
    headings = re.findall(r"^#+ (.+)$", without_code(file.read_text()), re.M)
    return {slug(heading) for heading in headings}


def slug(heading: str) -> str:
    text = unicodedata.normalize("NFKD", heading).encode("ascii", "ignore").decode()
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", text).strip().lower())


def pages_of(nav: list[Any]) -> Iterator[str]:
    for entry in nav:
        for value in entry.values():
            yield from [value] if isinstance(value, str) else pages_of(value)


def site() -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    return content


@pytest.fixture(scope="module")
def hooks() -> ModuleType:
    spec = importlib.util.spec_from_file_location("site_hooks", ROOT / "scripts" / "site_hooks.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("page", ["architecture.md", "vllm.md"])
def test_the_names_in_it_exist(page: str) -> None:
    named = NAMED.findall((DOCS / page).read_text())
    assert len(named) > (20 if page == "architecture.md" else 1)
    files = {file: SOURCE / file.removeprefix("slipstream/") for file, _ in named}
    missing = [f"{file}:{name}" for file, name in named if name not in names_in(files[file])]
    assert not missing


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(file: Path) -> None:
    missing = []
    for link in LINKED.findall(without_code(file.read_text())):
        path, _, anchor = link.strip().partition("#")
        there = file.parent / path if path else file
        if not there.exists() or (anchor and there.suffix == ".md" and anchor not in anchors_of(there)):
            missing.append(link)
    assert not missing


def test_the_tree_of_the_architecture_is_the_tree() -> None:
    """Every package and module at the top of src/slipstream has its line, and no line is of what is gone."""
    text = (DOCS / "architecture.md").read_text()
    told = set(re.findall(r"^  (\w+(?:/|\.py)) ", text, re.M))
    there = {
        f"{path.name}/" for path in SOURCE.iterdir() if path.is_dir() and (path / "__init__.py").exists()
    }
    tests = {"unit/", "engine/", "e2e/"}
    assert there <= told
    assert {name for name in told - there - tests if not (SOURCE / name).exists()} == set()


def test_results_that_are_named_are_there() -> None:
    named = {
        name
        for file in FILES
        for name in re.findall(r"`(benchmarks/[\w./-]+)`", file.read_text())
    }  # fmt: skip
    assert {name for name in named if not (ROOT / name).exists()} == set()


# ---- the site ----


def test_every_page_is_in_the_navigation_once(hooks: ModuleType) -> None:
    listed = list(pages_of(site()["nav"]))
    there = {file.relative_to(DOCS).as_posix() for file in DOCS.rglob("*.md")} | set(hooks.PAGES.values())
    assert sorted(listed) == sorted(there)


def test_the_site_asks_no_other_host() -> None:
    content = site()
    assert content["theme"]["font"] is False
    assert any("iframe-worker" in script for script in content["extra"]["polyfills"])
    for file in [*content["extra"]["polyfills"], *content["extra_css"]]:
        assert (DOCS / file).exists()
        assert "http" not in (DOCS / file).read_text()
    for figure in DOCS.rglob("*.svg"):
        assert not re.search(r'(href|src)="http|url\(["\']?http', figure.read_text())


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.relative_to(ROOT).as_posix())
def test_lists_and_tables_are_such_on_the_site(file: Path) -> None:
    """mkdocs wants an empty line before them, and four spaces before what belongs to an item; GitHub does not
    mind."""
    lines = without_code(file.read_text()).splitlines()
    wrong = []
    for before, line in pairwise(lines):
        begins = re.match(r"- |\d+\. |\|", line)
        goes_on = not before.strip() or re.match(r"#|\s*- |\s*\d+\. |\||  ", before)
        if (begins and not goes_on) or (re.match(r" {1,3}\S", line) and not before.strip()):
            wrong.append(line)
    assert not wrong


@pytest.mark.parametrize("file", FIGURES, ids=lambda file: file.name)
def test_figures_are_for_light_and_dark(file: Path, hooks: ModuleType) -> None:
    text = file.read_text()
    root = ElementTree.fromstring(text)
    assert root.get("role") == "img"
    assert root.get("class") == "sl"
    assert [child.tag.rpartition("}")[2] for child in root][:2] == ["title", "desc"]
    assert "prefers-color-scheme:dark" in text
    # Outside of the palette every colour is one of the palette's.
    drawn = text[text.index("</style>") :]
    assert not re.search(r'(fill|stroke)="(?!none)', drawn)
    palette = set(re.findall(r"(--\w+):#", text[: text.index("@media")]))
    assert palette == set(re.findall(r"(--\w+): #", (DOCS / "assets" / "site.css").read_text()))
    assert 'class="sl inlined"' in hooks.inline(file.name)


def test_figures_are_used() -> None:
    used = set(re.findall(r"figures/([\w-]+\.svg)", "".join(file.read_text() for file in FILES)))
    assert used == {file.name for file in FIGURES}


def test_links_that_leave_the_docs(hooks: ModuleType, caplog: pytest.LogCaptureFixture) -> None:
    result = "[found](../benchmarks/results/training)"
    assert hooks.rewrite(result, "training.md") == "found (`benchmarks/results/training`)"
    assert hooks.rewrite(result, "a.md", "https://host/us").endswith(
        "(https://host/us/blob/main/benchmarks/results/training)"
    )
    assert hooks.rewrite("[x](docs/planning.md#the-guard)", "changelog.md") == "[x](planning.md#the-guard)"
    assert hooks.rewrite("[x](../../CHANGELOG.md)", "reference/cli.md") == "[x](../changelog.md)"
    kept = "[x](planning.md) [y](https://host) [z](#here)\n```bash\n[w](../nowhere)\n```\n"
    assert hooks.rewrite(kept, "a.md") == kept
    between = "text\n\n```bash\na\n```\n[found](../README.md)\n\n```bash\nb\n\n```\n"
    assert "found (`README.md`)" in hooks.rewrite(between, "a.md")
    assert not caplog.records
    hooks.rewrite("[x](../nowhere.md)", "a.md")
    assert "leads nowhere" in caplog.text


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.relative_to(ROOT).as_posix())
def test_no_link_leads_nowhere_on_the_site(
    file: Path, hooks: ModuleType, caplog: pytest.LogCaptureFixture
) -> None:
    name = file.relative_to(ROOT).as_posix()
    page = hooks.PAGES.get(name) or os.path.relpath(file, DOCS)
    if not page.startswith(".."):
        hooks.rewrite(file.read_text(), page)
    assert not caplog.records
