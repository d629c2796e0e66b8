"""The conformance cases and invariants of tables, by name: `python -m tests.segments.conformance` plays all of them.
What follows goes to pytest: `-k "not azurite"` leaves the service out.

A case is a test that has its name. An invariant is looked at after each step of random histories, and each mutant that
is named with it is noticed by it. Cases of what a table does not have are absent: a lock box that is restored after a
restart (L36-L41, L54; each client reads the locks), a list of the locked intervals (L53), sequences of ids (S7; an
append holds its numbers by its lock) and rollup (S10).
"""

import re
import sys
from collections import defaultdict
from pathlib import Path

import pytest

#: The cases of the reference.
_NUMBERS = {
    "L": "1-7 9-10 12-15 17 19-26 29-35 43 45 47-49 51-52 58",
    "S": "1-5 8-9 12-13 15",
    "V": "1-5 7-12 14-19 24-25 27 31-32",
    "G": "1-8 10-13 16 18-21 23-25 27-30 32 35 37 39",
    "C": "1-2 4-6 8-11 14-15",
}

INVARIANTS = {
    "I1": "no two active incompatible locks overlap",
    "I2": "a lock is revoked by a strictly higher priority only",
    "I3": "revoked stays revoked, and blocks nobody",
    "I4": "what is not granted changes nothing",
    "I5": "asking again gives the same lock",
    "I6": "a restart has the same locks",
    "I7": "versions rise in the order of grants",
    "I8": "a removed task leaves no lock",
    "I9": "no id is given to two, and none is used again",
    "I10": "an output covers published roots only",
    "I11": "covers are nested or disjoint, and none is made twice in one generation",
    "I12": "a publish is one step; repeating it is none",
    "I13": "who is revoked or dead changes nothing",
    "I14": "what is visible does not overshadow each other",
    "I15": "a group is visible as a whole",
    "I16": "no append is hidden by what has not read it",
    "I17": "no row is there twice",
    "I18": "the order of arrival does not matter",
    "I19": "adding and removing shows what building anew shows",
    "I20": "adding and removing again changes nothing, nor does garbage",
    "I21": "a complete cover that is present is visible",
    "I22": "sets, ranges and the rule show the same, and so does the timeline",
    "I23": "visible rows are those published without those dropped",
    "I24": "an append beside a REPLACE is either read or carried, by sequence numbers",
}
#: The properties that look at each of them, besides the mutants.
_HISTORIES, _WORLD = "test_timeline.py", "test_table_users.py"
_OF_TIMELINES = {f"I{number}" for number in (14, 15, 18, 19, 20, 21, 22)}
_ON_STORAGE = {f"I{number}" for number in (12, 15, 16, 17, 23, 24)}


def expected() -> list[str]:
    """The cases of the reference."""
    found = []
    for letter, text in _NUMBERS.items():
        for part in text.split():
            first, _, last = part.partition("-")
            found += [f"{letter}{number}" for number in range(int(first), int(last or first) + 1)]
    return found


def names_of(node: str) -> set[str]:
    """The cases that a test is: by its function's name, or by what it is given."""
    function, _, given = node.rpartition("::")[2].partition("[")
    by_name = set(re.findall(r"(?<![a-z])[lsvgc]\d+", function.replace("_", " ")))
    by_given = set(re.findall(r"^([LSVGC]\d+)\b", given))
    return {name.upper() for name in by_name} | by_given


class Played:
    """What pytest says of each test."""

    def __init__(self) -> None:
        self.nodes: dict[str, bool] = {}

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        self.nodes |= {item.nodeid: True for item in items}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.nodes[report.nodeid] = self.nodes[report.nodeid] and not report.failed


def main() -> int:
    """Play and print; 1 if one is missing or fails."""
    from tests.segments import test_mutants
    from tests.storage import test_table_users

    all_mutants = [*test_mutants.MUTANTS, *test_table_users.MUTANTS]
    here, played = Path(__file__).parent, Played()
    storage = [
        str(here.parent / "storage" / name)
        for name in ("test_publish_cases.py", "test_schedules.py", "test_segments.py", "test_table_users.py")
    ]
    pytest.main(["-q", "--no-header", "-p", "no:cacheprovider", str(here), *storage, *sys.argv[1:]], plugins=[played])
    cases: dict[str, list[str]] = defaultdict(list)
    for node in played.nodes:
        for name in names_of(node):
            cases[name].append(node)
    missing = False
    for name in expected():
        tests = cases[name]
        is_shown = bool(tests) and all(played.nodes[node] for node in tests)
        missing |= not is_shown
        where = ", ".join(dict.fromkeys(node.split("/")[-1].partition("[")[0] for node in tests))
        print(f"{name:4} {'passed' if is_shown else 'FAILED' if tests else 'MISSING'}  {where}")
    for name, what in INVARIANTS.items():
        files = {_WORLD, *([_HISTORIES] if name in _OF_TIMELINES else [])}
        files |= {"test_schedules.py", "test_segments.py"} if name in _ON_STORAGE else set()
        mutants = [mutant.name for mutant in all_mutants if mutant.killed_by == name]
        nodes = [node for node in played.nodes if any(f"/{file}::" in node for file in files)]
        nodes += [node for node in played.nodes if any(f"[{mutant}]" in node for mutant in mutants)]
        is_shown = bool(nodes) and all(played.nodes[node] for node in nodes)
        missing |= not is_shown
        by = f"; without it: {', '.join(mutants)}" if mutants else ""
        print(f"{name:4} {'passed' if is_shown else 'FAILED'}  {what} ({', '.join(sorted(files))}{by})")
    return int(missing)


if __name__ == "__main__":
    sys.exit(main())
