"""For pytest, `-p tests.mutation.plugin`: says which tests fail, or which blocks each test reaches.

SAMZA_AZURE_TESTED names the file that it writes, a JSON array a line. While blocks are marked (`reach.py`) that is the
id of each test that passes, its seconds, and the numbers of the blocks; else the id of each that fails, and why.
"""

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mutation import reach
from tests.mutation.hook import REACH, TESTED

_target = Path(os.environ[TESTED])
_outcomes: dict[str, set[str]] = {}


def _write(*row: object) -> None:
    with _target.open("a") as file:
        file.write(json.dumps(row) + "\n")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    if REACH not in os.environ:
        return (yield)
    reach.clear()
    begun = time.monotonic()
    answer = yield
    seconds = time.monotonic() - begun
    if _outcomes.get(item.nodeid, set()) == {"passed"}:
        _write(item.nodeid, round(seconds, 3), list(reach.reached()))
    return answer


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    _outcomes.setdefault(report.nodeid, set()).add(report.outcome)
    if report.failed and REACH not in os.environ:
        crash = getattr(report.longrepr, "reprcrash", None)
        _write(report.nodeid, " ".join(str(getattr(crash, "message", report.longrepr)).split())[:200])
