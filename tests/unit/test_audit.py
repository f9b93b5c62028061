"""`scripts/audit` with a pip-audit that answers as the real one does."""

import json
import sys
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "audit"
SKIPPED = {"name": "torch", "skip_reason": "Dependency not found"}
SOUND = {"name": "numpy", "version": "2.3.5", "vulns": []}
FOUND = {"id": "PYSEC-1", "fix_versions": ["3.0"], "aliases": ["CVE-1"]}
VULNERABLE = {"name": "pillow", "version": "2.0", "vulns": [FOUND]}
PIP_AUDIT = """
import pathlib, sys
assert {"--no-deps", "--disable-pip"} <= set(sys.argv)
requirements = pathlib.Path(sys.argv[sys.argv.index("--requirement") + 1]).read_text().splitlines()
assert any(line.startswith("torch==") for line in requirements)
assert all("==" in line and "+" not in line for line in requirements)
print("WARNING: of no interest", file=sys.stderr)
"""


@pytest.fixture
def audit(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # it would be written beside the script
    spec = spec_from_loader("audit", SourceFileLoader("audit", str(SCRIPT)))
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(
    audit: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], code: str
) -> tuple[int, list[str]]:
    """Return the exit code and the lines of the script, with a pip-audit that runs `code`."""
    monkeypatch.setattr(audit, "find_pip_audit", lambda: [sys.executable, "-c", PIP_AUDIT + code])
    exit_code: int = audit.main()
    return exit_code, capsys.readouterr().out.splitlines()


def answering(*packages: dict[str, Any]) -> str:
    return f"print({json.dumps({'dependencies': packages})!r})"


def test_a_known_vulnerability_fails(
    audit: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, lines = run(audit, monkeypatch, capsys, answering(SOUND, VULNERABLE))
    assert code == 1
    assert lines[0] == "pillow 2.0: PYSEC-1, fixed in 3.0"
    assert ": 1 known vulnerabilities, 0 more accepted" in lines[1]


@pytest.mark.parametrize("name", ["PYSEC-1", "CVE-1"])
def test_one_that_is_accepted_does_not(
    audit: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    monkeypatch.setitem(audit.ACCEPTED, name, "never called")
    code, lines = run(audit, monkeypatch, capsys, answering(VULNERABLE))
    assert code == 0
    assert len(lines) == 1
    assert "0 known vulnerabilities, 1 more accepted" in lines[0]


def test_what_is_skipped_is_named(
    audit: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, lines = run(audit, monkeypatch, capsys, answering(SOUND, SKIPPED))
    assert code == 0
    assert lines[0].startswith("1 of ")
    assert lines[1] == "NOT AUDITED, 1 that the database does not know: torch"


@pytest.mark.parametrize(
    "code", [answering(SKIPPED, SKIPPED), "sys.exit('ERROR: no connection')", "sys.exit(1)"]
)
def test_no_answer_is_no_clean_bill(
    audit: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], code: str
) -> None:
    exit_code, lines = run(audit, monkeypatch, capsys, code)
    assert exit_code == 0
    assert len(lines) == 1
    assert lines[0].startswith("NOT AUDITED, none of the ")
    assert "known vulnerabilities" not in lines[0]


def test_without_pip_audit(
    audit: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(audit, "find_pip_audit", lambda: None)
    assert audit.main() == 0
    assert "pipx install pip-audit" in capsys.readouterr().out


def test_what_is_accepted_has_a_reason(audit: ModuleType) -> None:
    assert all(audit.ACCEPTED.values())
