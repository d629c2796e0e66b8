"""The commands to the container, and what the row reports about its tasks."""

from dataclasses import replace

import pytest

from samza_azure.group import membership
from samza_azure.group.actions import (
    MergeOwnRow,
    ReadControl,
    ReadMember,
    Rejoin,
    ScanMembers,
    Tell,
)
from samza_azure.group.answers import ControlRead, Trouble
from samza_azure.group.control import (
    Assignment,
)
from samza_azure.group.learn import heard_container_lost, heard_task, learn, perform_locally
from samza_azure.group.membership import own_row
from samza_azure.group.rows import ProcessorRow, ProcessorState, columns, processor_row
from samza_azure.group.tasks import retry_at
from samza_azure.group.timing import DRAINING_LOOK_S, NEWS_EXPECTED_S, RELEASE_LOOK_S
from samza_azure.host.status import why
from samza_azure.messages import (
    Drain,
    DrainStep,
    Permit,
    Phase,
    ReleaseTask,
    StartTask,
    TaskError,
)
from samza_azure.outcomes import Missing
from tests.group.situation import (
    CONTROL,
    DRAINING,
    LEADER_ROW,
    NOW,
    ROWS,
    commands_in,
    decide,
    kinds,
    leader,
    member,
    owner,
    report,
    starts,
    view_of,
)
from tests.group.transcript import Story


def test_a_task_starts_when_the_blob_gives_it_to_us_and_its_former_owner_has_released_it() -> None:
    moved = {**CONTROL.tasks, "daily-0": Assignment(owner("p2", 9), (owner("p3"),), first=False)}
    control = replace(CONTROL, version=9, tasks=moved)
    view = view_of("p2", control, waiting_since={"daily-0": NOW - 1})
    view.work.tasks.pop("daily-0", None)
    assert commands_in(decide(view, NOW)) == []
    view.others.members = {**view.others.members, "p3": replace(ROWS["p3"], released={"daily-0": 2})}
    assert commands_in(decide(view, NOW)) == [StartTask("daily-0", 9, 1, False, "run", "ab" * 16)]


@pytest.mark.parametrize(
    "former",
    [
        replace(ROWS["p3"], state=ProcessorState.DEAD),
        replace(ROWS["p3"], state=ProcessorState.LEFT),
        replace(ROWS["p3"], incarnation="n"),
    ],
)
def test_a_former_owner_that_is_dead_left_or_replaced_is_not_waited_for(former: ProcessorRow) -> None:
    moved = {**CONTROL.tasks, "daily-0": Assignment(owner("p2", 9), (owner("p3"),), first=False)}
    view = view_of("p2", replace(CONTROL, version=9, tasks=moved), waiting_since={"daily-0": NOW - 1})
    view.work.tasks.pop("daily-0", None)
    view.others.members = {**view.others.members, "p3": former}
    assert [type(command) for command in commands_in(decide(view, NOW))] == [StartTask]


def test_a_task_that_was_given_to_another_is_released_and_the_row_says_so() -> None:
    moved = {**CONTROL.tasks, "daily-0": Assignment(owner("p2", 9), (owner("p3"),), first=False)}
    view = view_of("p3", replace(CONTROL, version=9, tasks=moved))
    assert commands_in(decide(view, NOW)) == [ReleaseTask("daily-0")]
    perform_locally(view, Tell(ReleaseTask("daily-0")), NOW)
    heard_task(view, report("daily-0", Phase.RELEASED), NOW + 0.2)
    [beat] = [action for action in decide(view, NOW + 0.2) if isinstance(action, MergeOwnRow)]
    assert (beat.row.released, beat.row.adopted, beat.row.tasks) == ({"daily-0": 2}, 9, {})


def test_a_task_that_does_not_move_is_not_touched() -> None:
    moved = {**CONTROL.tasks, "daily-0": Assignment(owner("p2", 9), (owner("p3"),), first=False)}
    assert commands_in(decide(view_of("p1", replace(CONTROL, version=9, tasks=moved)), NOW)) == []


def test_after_the_container_died_its_tasks_start_again_under_a_higher_attempt() -> None:
    view = view_of("p3", attempts=4)
    heard_container_lost(view, NOW)
    assert commands_in(decide(view, NOW)) == []
    view.work.container = True
    assert commands_in(decide(view, NOW)) == [
        Permit(view.permit_until),
        StartTask("daily-0", 2, 5, False, "run", "ab" * 16),
    ]


def test_a_failed_task_is_tried_again_later_and_later_until_its_limit() -> None:
    view, waits = view_of("p3", replace(CONTROL, members=(member("p3"),))), []
    for _ in range(view.settings.restart_limit):
        heard_task(view, replace(report("daily-0", Phase.FAILED), attempt=view.work.tasks["daily-0"].attempt), NOW)
        waits.append(retry_at(view, "daily-0", view.work.tasks["daily-0"]) - NOW)
        view.own.accepted_at = NOW + waits[-1]
        *_, start = commands_in(decide(view, NOW + waits[-1]))
        perform_locally(view, Tell(start), NOW)  # type: ignore[arg-type]
    assert waits == [0.5, 1.0, 2.0, 4.0, 8.0]
    heard_task(view, replace(report("daily-0", Phase.FAILED), attempt=view.work.tasks["daily-0"].attempt), NOW)
    assert StartTask not in map(type, commands_in(decide(view, NOW + 60)))


def test_a_task_that_failed_says_how_many_tries_are_left_and_when_the_next_begins() -> None:
    view = view_of("p3")  # one of three processors, so it has half of the tries
    failed = replace(report("daily-0", Phase.FAILED), error=TaskError("no such column", ""))
    for pause in ("0.5", "1"):
        heard_task(view, replace(failed, attempt=view.work.tasks["daily-0"].attempt), NOW)
        told = own_row(view).tasks["daily-0"]
        number = view.work.tasks["daily-0"].failures
        tried = f"{number} of 6 tries have failed; the next begins after {pause} s"
        assert (told.phase, told.tried) == (Phase.STARTING, tried)
        shown = processor_row("p3", "e", columns(own_row(view)))
        reason = why(CONTROL.tasks["daily-0"], CONTROL, {"p3": shown}, shown.tasks["daily-0"])
        assert reason == f"It failed on p3 and is tried there again. {tried}."
        view.own.accepted_at = NOW + 1
        *_, start = commands_in(decide(view, NOW + 1))
        perform_locally(view, Tell(start), NOW)  # type: ignore[arg-type]
    heard_task(view, replace(failed, attempt=view.work.tasks["daily-0"].attempt), NOW)
    assert own_row(view).tasks["daily-0"].phase is Phase.FAILED, "the others have the other half"


def test_the_container_gets_each_step_once() -> None:
    view = view_of("p1", DRAINING)
    assert commands_in(decide(view, NOW)) == [Drain(DrainStep.FREEZE, "u")]
    perform_locally(view, Tell(Drain(DrainStep.FREEZE, "u")), NOW)
    assert commands_in(decide(view, NOW)) == []


@pytest.mark.parametrize("phase", [phase for phase in Phase if phase is not Phase.RELEASED])
def test_a_new_incarnation_reports_no_task_of_the_former_one(phase: Phase) -> None:
    view = view_of("p3")
    view.work.tasks["daily-0"].report = report("daily-0", phase)
    perform_locally(view, Rejoin("declared dead"), NOW)
    assert own_row(view).tasks == {}
    learn(view, ReadControl(), ControlRead(CONTROL, "control"), sent_at=NOW, now=NOW)
    assert own_row(view).tasks == {}
    assert ("daily-0" in view.work.tasks) == (phase in (Phase.STARTING, Phase.RUNNING)), (
        "what may append is released first"
    )


def test_a_closed_task_of_another_owner_is_no_longer_reported() -> None:
    moved = replace(
        CONTROL, version=10, tasks={**CONTROL.tasks, "daily-0": Assignment(owner("p2", 10), (owner("p3"),))}
    )
    for phase in (Phase.SUPERSEDED, Phase.DRAINED, Phase.RESTART, Phase.FAILED):
        view = view_of("p3", moved)
        view.work.tasks["daily-0"].report = report("daily-0", phase)
        assert own_row(view).tasks == {}
        assert own_row(view).released == {"daily-0": 2}
        learn(view, ReadControl(), ControlRead(moved, "moved"), sent_at=NOW, now=NOW)
        assert view.work.tasks == {}
        assert own_row(view).released == {"daily-0": 2}


def test_a_gainer_polls_only_the_row_of_the_earlier_owner(story: Story) -> None:
    """p3 is no successor, and is given what p2 still has."""
    moved = Assignment(owner("p3", 8), after=(owner("p2"),), first=False)
    blob = replace(CONTROL, version=8, revision=10, tasks={**CONTROL.tasks, "clean-1": moved})
    view = view_of("p3", leader_row=replace(LEADER_ROW, successors=("p2",), version=8), scanned_at=NOW - 1)

    story.turn(view, NOW, {ReadControl: ControlRead(blob, "newer")})
    actions = story.turn(view, NOW + 0.1, {ReadMember: ROWS["p2"]})
    assert ReadMember("p2") in actions
    assert ScanMembers not in kinds(actions)
    assert ReadMember not in kinds(story.turn(view, NOW + 0.1 + RELEASE_LOOK_S - 0.01))
    story.turn(view, NOW + 1.1, {ReadMember: replace(ROWS["p2"], released={"clean-1": 2})})
    started = [action.command for action in story.turn(view, NOW + 1.15) if isinstance(action, Tell)]
    assert [command.task for command in started if isinstance(command, StartTask)] == ["clean-1"]


def test_a_gainer_reads_at_once_what_it_has_not_read_since_it_waits() -> None:
    """Its last read was sent just before it adopted the version, so it shows nothing. The next was due a second later,
    and a join took that much longer."""
    moved = Assignment(owner("p3", 8), after=(owner("p2"),), first=False)
    blob = replace(CONTROL, version=8, revision=10, tasks={**CONTROL.tasks, "clean-1": moved})
    view = view_of("p3", leader_row=replace(LEADER_ROW, successors=("p2",), version=8), scanned_at=NOW - 0.01)
    learn(view, ReadControl(), ControlRead(blob, "newer"), sent_at=NOW, now=NOW)
    assert membership.look(view, NOW) == [ReadMember("p2")]
    learn(view, ReadMember("p2"), ROWS["p2"], sent_at=NOW, now=NOW + 0.1)
    assert membership.look(view, NOW + RELEASE_LOOK_S - 0.01) == []
    assert membership.look(view, NOW + RELEASE_LOOK_S) == [ReadMember("p2")]
    view.turn_at = NOW + NEWS_EXPECTED_S  # it takes long
    assert membership.look(view, NOW + 0.9) == []
    assert membership.look(view, NOW + 1.0) == [ReadMember("p2")]


def test_a_leader_that_waits_for_a_release_scans_as_often_as_in_a_drain() -> None:
    moved = Assignment(owner("p1", 9), after=(owner("p2"),), first=False)
    view = leader(replace(CONTROL, version=9, revision=10, tasks={**CONTROL.tasks, "clean-1": moved}))
    view.own.waiting_since = {"clean-1": NOW}
    assert view.scan_gap() == DRAINING_LOOK_S
    assert ScanMembers() in decide(view, NOW + DRAINING_LOOK_S)
    view.turn_at = NOW + NEWS_EXPECTED_S
    assert view.scan_gap() == view.scan_interval


def test_an_earlier_owner_whose_row_is_gone_has_released_its_tasks() -> None:
    moved = Assignment(owner("p3", 8), after=(owner("p2"),), first=False)
    blob = replace(CONTROL, version=8, revision=10, tasks={**CONTROL.tasks, "clean-1": moved})
    view = view_of("p3", leader_row=replace(LEADER_ROW, successors=("p2",), version=8), scanned_at=NOW - 1)
    learn(view, ReadControl(), ControlRead(blob, "newer"), sent_at=NOW, now=NOW)
    learn(view, ReadMember("p2"), Trouble.UNAVAILABLE, sent_at=NOW, now=NOW + 0.1)
    assert starts(view, NOW + 0.1) == []
    learn(view, ReadMember("p2"), Missing(), sent_at=NOW + 0.4, now=NOW + 0.5)
    assert starts(view, NOW + 0.5) == ["clean-1"]
