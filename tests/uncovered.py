"""Every branch of the pure packages is taken by a test, or its function is named here with the reason.

    python tests/uncovered.py MEASURED.json        which `make coverage` has written

Ends with 1 if a function has a branch that no test took and is not named, or is named and needs it no more.
"""

import json
import sys
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).parents[1] / "samza_azure"
PURE = ("group", "logs", "segments", "streams")

#: By file and function: why no test takes each of its branches.
EXCEPTIONS: dict[str, dict[str, str]] = {
    "group/actions.py": {"resource": "mypy shows that each action has a case"},
    "group/membership.py": {"fenced": "both callers ask only when the row is known"},
    "group/decide.py": {"lead": "for the type checker: whoever has a lease has read the blob"},
    "group/requests.py": {"_answer": "for the type checker: a request without a kind speaks of no run"},
    "group/view.py": {"View.tries": "for the type checker: there are tasks only with a control blob"},
    "group/learn.py": {
        "perform_locally": "mypy shows that each local action has a case",
        "_learn_members": "for the type checker: a scan of members brings rows of processors",
    },
}


def missed(report: dict[str, Any]) -> dict[str, dict[str, list[str]]]:
    """By file and function: the lines that were not run, and the branches that were not taken."""
    found: dict[str, dict[str, list[str]]] = {}
    for path, measured in report["files"].items():
        file = str(Path(path).resolve().relative_to(PACKAGE))
        for function, lines in measured["functions"].items():
            wrong = [str(line) for line in lines["missing_lines"]]
            wrong += [f"{start}->{end if end > 0 else 'exit'}" for start, end in lines["missing_branches"]]
            if wrong:
                found.setdefault(file, {})[function] = wrong
    return found


def findings(report: dict[str, Any]) -> list[str]:
    """A line for each function that is not as it is said here."""
    found = missed(report)
    said = []
    for file, functions in sorted(found.items()):
        for function, lines in functions.items():
            if function not in EXCEPTIONS.get(file, {}):
                said.append(f"{file}: {function or 'the module'} is not tested in full: {', '.join(lines)}")
    for file, named in EXCEPTIONS.items():
        said += [
            f"{file}: {function} is tested in full now: take it out of tests/uncovered.py"
            for function in named
            if function not in found.get(file, {})
        ]
    measured = {Path(path).resolve() for path in report["files"]}
    for path in sorted(path for folder in PURE for path in (PACKAGE / folder).rglob("*.py")):
        if path.resolve() not in measured:
            said.append(f"{path.relative_to(PACKAGE)}: no test has imported it")
    return said


def main() -> int:
    report = json.loads(Path(sys.argv[1]).read_text())
    said, totals = findings(report), report["totals"]
    print(*said, sep="\n")
    print(
        f"{totals['covered_branches']} of {totals['num_branches']} branches and {totals['covered_lines']} of "
        f"{totals['num_statements']} lines of {', '.join(PURE)}; "
        f"{sum(map(len, EXCEPTIONS.values()))} functions are excepted by name"
    )
    return 1 if said else 0


if __name__ == "__main__":
    sys.exit(main())
