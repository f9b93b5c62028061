"""What mkdocs does beside rendering docs/ (mkdocs.yml, `hooks`).

- CONTRIBUTING, SECURITY and CHANGELOG become pages.
- A link that leaves docs/ leads to that page, to the repository (`repo_url`), or else becomes plain text; one
  that leads nowhere is a warning, which ends a strict build.
- Figures are put into the page, so that they follow its light and dark scheme.
"""

import logging
import os
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = {"CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md", "SECURITY.md": "security.md"}
"""Files at the top of the repository that are pages of the site."""

FENCE = re.compile(r"^([ \t]*)(```|~~~).*?^\1\2[ \t]*$", re.M | re.S)
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\[\]]*\])*)\]\(([^)\s]+)\)")
MARK = re.compile(r"^[ \t]*<!-- (?:runs|not run): .*? -->\n", re.M)
FIGURE = re.compile(r'<img [^>]*?src="[^"]*?figures/([\w-]+\.svg)"[^>]*?>')

logger = logging.getLogger("mkdocs.hooks.site")


def on_files(files: Any, *, config: Any) -> Any:
    from mkdocs.structure.files import File

    for name, page in PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / name).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Any) -> str:
    return rewrite(MARK.sub("", markdown), page.file.src_uri, config.repo_url or "")


def on_page_content(html: str, *, page: Any, config: Any, files: Any) -> str:
    return FIGURE.sub(lambda match: inline(match[1]), html)


def rewrite(markdown: str, page: str, repository: str = "") -> str:
    """Return the text with its links out of docs/ as links that work on the site; code is left as it is."""
    parts, at = [], 0
    for fence in FENCE.finditer(markdown):
        parts += [_rewrite_links(markdown[at : fence.start()], page, repository), fence[0]]
        at = fence.end()
    return "".join([*parts, _rewrite_links(markdown[at:], page, repository)])


def _rewrite_links(text: str, page: str, repository: str) -> str:
    from_top = {made: name for name, made in PAGES.items()}
    folder = ROOT if page in from_top else (DOCS / page).parent

    def replaced(match: re.Match[str]) -> str:
        image, label, target = match.groups()
        path, _, anchor = target.partition("#")
        if not path or re.match(r"[a-z]+:", path):
            return match[0]
        found = Path(os.path.normpath(folder / path))
        in_docs = found.is_relative_to(DOCS)
        if in_docs and folder != ROOT:
            return match[0]  # mkdocs looks itself whether it is there
        if not found.exists():
            logger.warning("%s: the link to %s leads nowhere", page, target)
            return match[0]
        inside = found.relative_to(DOCS).as_posix() if in_docs else PAGES.get(str(found.relative_to(ROOT)))
        if inside is not None:
            there = os.path.relpath(inside, os.path.dirname(page) or ".")
            return f"{image}[{label}]({there}{'#' + anchor if anchor else ''})"
        name = found.relative_to(ROOT).as_posix()
        if repository:
            return f"{image}[{label}]({repository.rstrip('/')}/blob/main/{name})"
        return label if name in label else f"{label} (`{name}`)"

    return LINK.sub(replaced, text)


def inline(name: str) -> str:
    svg = (DOCS / "figures" / name).read_text(encoding="utf-8")
    return '<span class="drawn">' + svg.replace('class="sl"', 'class="sl inlined"', 1) + "</span>"
