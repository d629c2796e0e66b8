"""What one processor does about what a later samza-azure writes: read what it knows, keep what it does not, and where
that is not enough, stand by."""

import json
from dataclasses import replace

from samza_azure.group.actions import MarkDead, ReadControl, ReleaseLease, Tell, WriteControl
from samza_azure.group.age import Age
from samza_azure.group.answers import Later
from samza_azure.group.control import Assignment
from samza_azure.group.decide import lead
from samza_azure.group.election import campaign, successors_of
from samza_azure.group.learn import heard_leave, heard_task, learn, perform_locally
from samza_azure.group.membership import own_row
from samza_azure.group.publish import next_control
from samza_azure.group.rows import ProcessorState, Request, RequestKind, columns, processor_row, request
from samza_azure.group.tasks import has_released, reported
from samza_azure.group.view import Campaign, Lease, View
from samza_azure.host.status import document
from samza_azure.messages import Phase, ReleaseTask, TaskError
from tests.group.situation import (
    CONTROL,
    LEADER_ROW,
    NOW,
    ROWS,
    TIMING,
    decide,
    leader,
    life_of,
    owner,
    report,
    row,
    view_of,
)

LATER = Later(2, "control.json has format 2 of a later samza-azure; this one knows 1.")


def outdated(processor: str = "p2") -> View:
    """A follower that has read a control blob which it does not understand."""
    view = view_of(processor)
    learn(view, ReadControl(), LATER, sent_at=NOW, now=NOW)
    return view


# Rows.


def test_a_column_that_a_later_release_has_added_changes_nothing() -> None:
    values = columns(ROWS["p1"])
    assert processor_row("p1", "e", {**values, "since_then": "x"}) == processor_row("p1", "e", values)


def test_a_report_of_a_later_release_may_have_more_fields() -> None:
    said = report("clean-0", Phase.FAILED, error=TaskError("no", "Traceback"))
    values = columns(row("p1", {"clean-0": said}))
    fields = json.loads(str(values["tasks"]))
    fields["clean-0"] |= {"since_then": 1}
    fields["clean-0"]["error"] |= {"since_then": 1}
    assert processor_row("p1", "e", {**values, "tasks": json.dumps(fields)}).tasks == {"clean-0": said}


def test_json_of_a_later_format_is_not_read_and_the_columns_beside_it_are() -> None:
    read = processor_row("p1", "e", {**columns(ROWS["p1"]), "format": 2, "released": '{"clean-1": 5}'})
    assert read == replace(ROWS["p1"], etag="e", tasks={}, released={}, format=2)


def test_a_request_of_a_later_format_is_not_obeyed() -> None:
    values = {"kind": "stop", "uuid": "u", "runId": ""}
    assert request("u", "e", values).kind is RequestKind.STOP
    assert request("u", "e", {**values, "format": 2}).kind is None


def test_a_row_says_nothing_of_formats_that_everybody_knows() -> None:
    assert columns(ROWS["p1"]).keys() == columns(replace(ROWS["p1"], too_old_for=2)).keys() - {"too_old_for"}
    stands_by = replace(ROWS["p1"], too_old_for=2)
    assert processor_row("p1", stands_by.etag, columns(stands_by)) == stands_by


def test_a_row_says_which_format_its_reader_must_know_once_that_is_a_later_one() -> None:
    later = replace(ROWS["p1"], format=2)
    assert columns(later) == columns(ROWS["p1"]) | {"format": 2}
    assert processor_row("p1", "e", columns(later)).format == 2


# A processor that is too old.


def test_a_processor_that_cannot_read_the_control_blob_releases_its_tasks_and_stands_by() -> None:
    view = outdated()
    assert Tell(ReleaseTask("clean-1")) in decide(view, NOW)
    assert (own_row(view).state, own_row(view).too_old_for) == (ProcessorState.LEAVING, 0)
    perform_locally(view, Tell(ReleaseTask("clean-1")), NOW)
    heard_task(view, report("clean-1", Phase.RELEASED), NOW)
    row = own_row(view)
    assert (row.state, row.too_old_for, row.tasks) == (ProcessorState.LEAVING, 2, {})
    assert (view.ending, view.finished) == (None, None)


def test_a_standby_does_not_reread_a_blob_that_it_cannot_decode() -> None:
    view = outdated()
    view.others.leader_row = replace(LEADER_ROW, version=99, etag="other")
    assert not [action for action in decide(view, NOW) if isinstance(action, ReadControl)]


def test_a_processor_that_is_too_old_never_leads_and_releases_the_lease() -> None:
    view = outdated()
    view.others.leader_age = Age("leader row", 1000.0, 9, NOW)
    assert campaign(view, NOW) == []
    view.candidacy.campaign = Campaign("control", lease=Lease("ours", NOW))
    assert campaign(view, NOW) == [ReleaseLease("ours")]
    learn(view, ReleaseLease("ours"), None, sent_at=NOW, now=NOW)
    assert view.candidacy.campaign is None


def test_a_standby_that_is_too_old_leaves_on_request() -> None:
    view = outdated()
    heard_leave(view)
    assert [type(action).__name__ for action in decide(view, NOW) if type(action).__name__ == "BeginEnd"] == [
        "BeginEnd"
    ]


def test_a_task_that_meets_a_record_of_a_later_format_makes_its_processor_stand_by_and_fails_nothing() -> None:
    view = view_of("p2")
    failed = report("clean-1", Phase.FAILED, error=TaskError("has format 3", ""), too_old_for=3)
    for _ in range(view.settings.restart_limit + 1):
        heard_task(view, failed, NOW)
    assert reported(view, view.work.tasks["clean-1"]) is None
    assert (own_row(view).too_old_for, own_row(view).tasks) == (3, {})


def test_a_leader_that_stands_by_hands_over_at_once_to_one_that_can() -> None:
    view = leader(too_old_for=3, seen_alive=frozenset({life_of("p2"), life_of("p3")}))
    (handed,) = [action for action in lead(view, NOW) if isinstance(action, WriteControl)]
    assert (handed.control.leader, handed.control.successor) == (None, "p2")


def test_a_leader_hands_over_to_a_processor_of_a_later_format() -> None:
    """It would not see how far that one's tasks are with a drain."""
    rows = {**ROWS, "p3": replace(ROWS["p3"], format=2)}
    alive = frozenset({life_of("p2"), life_of("p3")})
    (handed,) = [each for each in lead(leader(members=rows, seen_alive=alive), NOW) if isinstance(each, WriteControl)]
    assert (handed.control.leader, handed.control.successor) == (None, "p3")


def test_a_silent_row_of_a_later_format_makes_no_leader_hand_over() -> None:
    rows = {**ROWS, "p4": replace(row("p4"), format=99)}
    ages = {other: Age(each.etag, 0.0, 0, NOW) for other, each in rows.items()}
    view = leader(members=rows, ages=ages, seen_alive=frozenset({life_of("p2"), life_of("p3")}))
    assert not [each for each in lead(view, NOW) if isinstance(each, WriteControl) and each.control.leader is None]


# What the others do about it.


STANDS_BY = replace(ROWS["p2"], state=ProcessorState.LEAVING, tasks={}, too_old_for=2)


def test_a_standby_counts_as_having_released_every_task() -> None:
    view = view_of("p3", members={**ROWS, "p2": STANDS_BY})
    assert has_released(view, "clean-1", owner("p2", 7))
    assert not has_released(view, "clean-0", owner("p1", 7))


def test_a_processor_that_is_too_old_gets_no_task_and_is_not_marked_dead() -> None:
    view = leader(members={**ROWS, "p2": STANDS_BY})
    wanted = next_control(view, CONTROL, NOW)
    assert {each.owner.processor for each in wanted.tasks.values() if each.owner} == {"p1", "p3"}
    assert successors_of(view, CONTROL) == ("p3",)
    assert not [each for each in lead(view, NOW + TIMING.barrier_timeout_s) if isinstance(each, MarkDead)]


def test_a_stop_does_not_wait_for_it() -> None:
    asked = Request("s", "e", RequestKind.STOP)
    view = leader(members={**ROWS, "p2": STANDS_BY}, requests=(asked,), requests_read_at=NOW)
    view.others.seen_alive = frozenset(map(life_of, ROWS))
    stop = next_control(view, CONTROL, NOW).stop
    assert stop is not None
    assert {each.processor for each in stop.members} == {"p1", "p3"}


def test_status_shows_it() -> None:
    shown = document("app", CONTROL, [ROWS["p1"], STANDS_BY])
    assert [each["too_old_for"] for each in shown["processors"]] == [None, 2]


def test_a_task_that_moves_keeps_what_a_later_release_said_of_it() -> None:
    tasks = {**CONTROL.tasks, "clean-1": Assignment(owner("p2"), first=False, unknown={"since_then": 1})}
    view = leader(replace(CONTROL, tasks=tasks), members={**ROWS, "p2": replace(ROWS["p2"], state=ProcessorState.DEAD)})
    moved = next_control(view, replace(CONTROL, tasks=tasks), NOW).tasks["clean-1"]
    assert moved.owner is not None
    assert (moved.owner.processor != "p2", moved.unknown) == (True, {"since_then": 1})
