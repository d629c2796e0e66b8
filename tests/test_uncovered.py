"""What `make coverage` says of a measurement."""

from typing import Any

import pytest

from tests import uncovered


def report(**functions: dict[str, Any]) -> dict[str, Any]:
    """A measurement of one file; every other one is as it should be."""
    whole = {"missing_lines": [], "missing_branches": []}
    paths = [path for folder in uncovered.PURE for path in (uncovered.PACKAGE / folder).rglob("*.py")]
    files = {str(path): {"functions": {"": whole}} for path in paths}
    files[str(uncovered.PACKAGE / "group" / "age.py")] = {"functions": functions}
    return {"files": files}


def test_a_branch_that_no_test_takes_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uncovered, "EXCEPTIONS", {})
    said = uncovered.findings(report(observed={"missing_lines": [7], "missing_branches": [[3, 5], [4, -1]]}))
    assert said == ["group/age.py: observed is not tested in full: 7, 3->5, 4->exit"]


def test_an_exception_is_named_as_long_as_it_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uncovered, "EXCEPTIONS", {"group/age.py": {"observed": "no reader is that late"}})
    assert uncovered.findings(report(observed={"missing_lines": [7], "missing_branches": []})) == []
    said = uncovered.findings(report(observed={"missing_lines": [], "missing_branches": []}))
    assert said == ["group/age.py: observed is tested in full now: take it out of tests/uncovered.py"]


def test_a_file_that_no_test_has_imported_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uncovered, "EXCEPTIONS", {})
    measured = report(observed={"missing_lines": [], "missing_branches": []})
    del measured["files"][str(uncovered.PACKAGE / "logs" / "forget.py")]
    assert uncovered.findings(measured) == ["logs/forget.py: no test has imported it"]


def test_each_exception_names_a_function_that_is_there() -> None:
    for file, named in uncovered.EXCEPTIONS.items():
        text = (uncovered.PACKAGE / file).read_text()
        assert [name for name in named if f"def {name.rpartition('.')[2]}(" not in text] == []
