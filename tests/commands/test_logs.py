"""The lines of a processor's log: its name and the time, errors of many lines, repetitions."""

import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from samza_azure.commands import logs
from samza_azure.commands.logs import FILES, TRACE_LINES, configure, last_entry, name_the_run
from samza_azure.errors import ConfigError

LOG = logging.getLogger("samza_azure.test")


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    root, ours = logging.getLogger(), logging.getLogger("samza_azure")
    before = root.handlers[:], root.level, ours.level, logging.raiseExceptions
    yield
    root.handlers[:], root.level, logging.raiseExceptions = before[0], before[1], before[3]
    ours.setLevel(before[2])


def logged(file: Path, *, as_json: bool = False, level: str = "info") -> None:
    configure("p1", "shop", as_json=as_json, level=level, file=file)


def test_a_log_line_has_time_level_and_processor(tmp_path: Path) -> None:
    logged(tmp_path / "log")
    LOG.info("version %d", 3)
    LOG.debug("not asked for")
    [line] = (tmp_path / "log").read_text().splitlines()
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}Z INFO    p1  version 3", line)


def test_the_last_entry_has_all_its_lines(tmp_path: Path) -> None:
    logged(tmp_path / "log")
    LOG.info("before")
    LOG.error("%s", "Stage a cannot run: [/x] is no [tag]\n  pipeline.py, line 3\n2 more")
    said = "Stage a cannot run: [/x] is no [tag]\n  pipeline.py, line 3\n2 more"
    assert last_entry(tmp_path / "log", "p1") == said
    assert last_entry(tmp_path / "nowhere", "p1") == "it said nothing"


def test_repeated_log_lines_are_folded_and_counted(tmp_path: Path) -> None:
    logged(tmp_path / "log", as_json=True)
    for second in (0, 1, 2, 59, 61):
        record = LOG.makeRecord(LOG.name, logging.WARNING, "", 0, "no answer", (), None)
        record.created = 1_000_000.0 + second
        LOG.handle(record)
    said = [json.loads(line)["message"] for line in (tmp_path / "log").read_text().splitlines()]
    assert [text for text in said if text.startswith("no answer")] == [
        "no answer",
        "no answer (3 more like this before)",
    ]


def test_container_events_and_distinct_messages_are_never_folded(tmp_path: Path) -> None:
    """A container that hung twice within a minute was reported once."""
    logged(tmp_path / "log")
    for _ in range(2):
        logging.getLogger("samza_azure.host.supervisor").warning("the container hangs")
    LOG.warning("one")
    LOG.warning("another")
    assert len((tmp_path / "log").read_text().splitlines()) == 4


def test_a_long_traceback_is_cut_in_its_middle(tmp_path: Path) -> None:
    def deep(left: int) -> None:
        if left:
            (deep if left % 2 else shallow)(left - 1)
        raise ValueError("the cause")

    def shallow(left: int) -> None:
        deep(left)

    logged(tmp_path / "log")
    try:
        deep(100)
    except ValueError:
        LOG.exception("it failed")
    lines = (tmp_path / "log").read_text().splitlines()
    assert len(lines) == TRACE_LINES + 2
    assert lines[1].strip().startswith("Traceback") and lines[-1].strip() == "ValueError: the cause"
    assert any("lines are left out" in line for line in lines)


def test_a_task_is_a_field_of_its_own_and_escapes_are_written_out(tmp_path: Path) -> None:
    logged(tmp_path / "log", as_json=True)
    LOG.warning("task %s", "\x1b[31m", extra={"task": "clean-0"})
    [line] = (tmp_path / "log").read_text().splitlines()
    assert json.loads(line)["task"] == "clean-0"
    assert json.loads(line)["message"] == "task \\x1b[31m"


@pytest.mark.parametrize("as_json", [False, True])
def test_each_log_line_names_the_run_once_there_is_a_job_model(tmp_path: Path, *, as_json: bool) -> None:
    runs = iter(["", "1-a", "2-b"])
    logged(tmp_path / "log", as_json=as_json)
    name_the_run(lambda: next(runs))
    LOG.info("joined")
    LOG.info("task clean-0 RUNNING", extra={"task": "clean-0"})
    LOG.warning("first\nsecond")
    lines = (tmp_path / "log").read_text().splitlines()
    if as_json:
        fields = [json.loads(line) for line in lines]
        assert [(each.get("run"), each.get("task")) for each in fields] == [
            (None, None),
            ("1-a", "clean-0"),
            ("2-b", None),
        ]
    else:
        assert [line.partition("Z ")[2] for line in lines[:3]] == [
            "INFO    p1  joined",
            "INFO    p1 1-a  task clean-0 RUNNING",
            "WARNING p1 2-b  first",
        ]
        assert last_entry(tmp_path / "log", "p1") == "first\nsecond"


def test_log_lines_below_the_level_are_left_out(tmp_path: Path) -> None:
    configure("p1", "shop", as_json=False, level="warning", file=tmp_path / "log")
    LOG.info("no")
    LOG.warning("yes")
    assert [line.rpartition("  ")[2] for line in (tmp_path / "log").read_text().splitlines()] == ["yes"]


def test_a_log_file_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot be written: No such file or directory\. Choose another path\."):
        configure("p1", "shop", as_json=False, level="info", file=tmp_path / "nowhere" / "p1.log")


def test_a_log_file_is_rotated_and_the_oldest_is_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "FILE_BYTES", 300)
    logged(tmp_path / "log")
    for number in range(100):
        LOG.info("line %d", number)
    found = {path.name: path.read_text().splitlines() for path in tmp_path.iterdir()}
    assert found.keys() == {"log", *(f"log.{number}" for number in range(1, FILES + 1))}
    names = [*(f"log.{number}" for number in range(FILES, 0, -1)), "log"]
    kept = [line.rpartition(" ")[2] for name in names for line in found[name]]
    assert kept == [str(number) for number in range(100 - len(kept), 100)], "nothing is lost in between"
    assert all(sum(len(line) + 1 for line in lines) <= 300 for lines in found.values())
