"""Rows are hearsay: ours come back as written, those of strangers stop nobody."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from samza_azure.protocol.messages import DrainPhase, Phase, TaskError, TaskReport
from samza_azure.protocol.rows import (
    COLUMN_LIMIT,
    LeaderRow,
    ProcessorRow,
    Request,
    State,
    columns,
    leader_columns,
    leader_row,
    processor_row,
    request,
)

REPORT = TaskReport(
    "clean-0",
    generation=7,
    attempt=2,
    phase=Phase.RUNNING,
    batch=9,
    late=1,
    drain=DrainPhase.SOURCES_STOPPED,
    ends={"flights/0": (0, 99)},
    read={"flights/0": (0, 98)},
    error=TaskError("no", "Traceback"),
)
ROW = ProcessorRow(
    "p1",
    "incarnation",
    etag="e",
    beat=12,
    adopted=7,
    state=State.LEAVING,
    released={"clean-1": 5},
    tasks={"clean-0": REPORT},
    fingerprint="f" * 64,
    new_run="new",
    boot="b",
    port=8080,
)

anything = st.one_of(
    st.none(), st.booleans(), st.integers(), st.text(), st.sampled_from(["{", "[]", "null", '{"a": 1}'])
)
columns_of_strangers = st.dictionaries(
    st.sampled_from([*columns(ROW), "epoch", "kind", "runId", "successors"]), anything
)


def test_a_processors_row_comes_back_as_written() -> None:
    assert processor_row("p1", "e", columns(ROW)) == ROW


def test_the_leader_row_comes_back_as_written() -> None:
    row = LeaderRow(3, 9, "run:RUNNING:-", "control", 77, ("p2", "p3"), etag="e")
    assert leader_row("e", leader_columns(row)) == row
    alone = LeaderRow(3, 9, "run:RUNNING:-", "control", 77, (), etag="e")
    assert leader_row("e", leader_columns(alone)) == alone


@given(columns_of_strangers)
def test_no_row_of_a_stranger_crashes_a_reader(values: dict[str, Any]) -> None:
    assert processor_row("zz", "e", values).processor == "zz"
    assert leader_row("e", values).etag == "e"
    assert request("zz", "e", values).key == "zz"


def test_what_makes_no_sense_is_left_out() -> None:
    values = {
        "incarnation": 7,
        "beat": "many",
        "adopted": True,
        "state": "sleepy",
        "released": '{"clean-0": "soon"}',
        "tasks": '{"clean-0": 7, "clean-1": {"generation": "x"}, "clean-2": '
        '{"generation": 1, "attempt": 1, "phase": "RUNNING"}}',
    }
    assert processor_row("zz", "e", values) == ProcessorRow(
        "zz",
        "7",
        etag="e",
        released={"clean-0": 0},
        tasks={"clean-2": TaskReport("clean-2", 1, 1, Phase.RUNNING)},
    )


def test_a_request_is_cut_before_anybody_stores_it_again() -> None:
    asked = request("k", "e", {"kind": "x" * 9000, "runId": "y" * 9000})
    assert asked == Request("k", "e", "x" * 64, "y" * 256, "")


def test_tracebacks_are_cut_before_the_column_is_too_large() -> None:
    failed = {
        f"clean-{number}": TaskReport(f"clean-{number}", 1, 1, Phase.FAILED, error=TaskError("m" * 99, "t" * 9000))
        for number in range(20)
    }
    text = str(columns(ProcessorRow("p", "i", tasks=failed))["tasks"])
    assert len(text) <= COLUMN_LIMIT
    assert processor_row("p", "e", {"tasks": text}).tasks.keys() == failed.keys()
