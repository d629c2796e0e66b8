"""A processor that will go: what it says, what the leader does with its tasks and its leadership, and what it does."""

import json
import math
from dataclasses import asdict, replace

import pytest

from samza_azure.group.actions import (
    AcquireLease,
    BeginEnd,
    MergeOwnRow,
    ReadControl,
    ReadLeaderRow,
    Rejoin,
    ReleaseLease,
    Tell,
    WriteControl,
    WriteLeaderRow,
)
from samza_azure.group.answers import ControlRead
from samza_azure.group.control import Control, Noticed, RunPhase, signal
from samza_azure.group.decommission import APART_S, in_order, in_turn
from samza_azure.group.ending import Wait, verdict, waits_for
from samza_azure.group.learn import (
    heard_container_lost,
    heard_leave,
    heard_notice,
    heard_task,
    heard_withdrawn,
    learn,
    perform_locally,
    turn,
)
from samza_azure.group.membership import own_row
from samza_azure.group.moment import Moment
from samza_azure.group.notice import ASKED, PORT, Availability, Going, Left, Notice, going_again
from samza_azure.group.requests import (
    ACCEPTED,
    ALREADY_GOING,
    NOT_THERE,
    OTHER_NOTICE,
    STAYS,
    SUPERSEDED,
    answers,
    with_notices,
)
from samza_azure.group.rows import ProcessorRow, ProcessorState, Request, RequestKind, columns, processor_row
from samza_azure.group.view import Finish, Lease, LocalTask, View
from samza_azure.messages import Kill, LastBatch, Permit, Phase, ReleaseTask
from tests.group.situation import (
    CONTROL,
    DRAINING,
    NOW,
    ROWS,
    TIMING,
    commands_in,
    decide,
    leader,
    life_of,
    member,
    owner,
    report,
    row,
    starts,
    view_of,
)

GOES = Going(Availability.DECOMMISSIONING, "Preempt", 5, 1, 0, stays=True)
SEEN = frozenset(life_of(name) for name in ("p2", "p3"))


#: p2 has p3's task.
MOVED = replace(
    CONTROL,
    version=12,
    tasks={**CONTROL.tasks, "daily-0": replace(CONTROL.tasks["daily-0"], owner=owner("p2", 12), after=(owner("p3"),))},
)


def told(view: View, by: float | None = NOW + 30, source: str = PORT, now: float = NOW) -> View:
    """The view, after a notice."""
    heard_notice(view, source, Notice("Preempt", by, 5))
    goes_on(view, now)
    return view


def goes_on(view: View, now: float) -> None:
    turn(view, now, random=0.5, fresh_id="fresh", wall_ms=1)


def written(view: View, now: float) -> list[Control]:
    return [each.control for each in decide(view, now) if isinstance(each, WriteControl)]


def with_row(name: str, **more: object) -> dict[str, ProcessorRow]:
    return {**ROWS, name: replace(ROWS[name], **more)}  # type: ignore[arg-type]


# What it says and does.


def test_a_processor_with_a_notice_says_so_at_once_and_does_not_end() -> None:
    view = told(view_of("p3"))
    [beat] = [each for each in decide(view, NOW + 0.2) if isinstance(each, MergeOwnRow)]
    assert (beat.row.state, beat.row.going) == (
        ProcessorState.LEAVING,
        Going(
            Availability.DECOMMISSIONING,
            "Preempt",
            5,
            1,
            0,
            {"daily-0": "no other processor has got it yet"},
            stays=True,
        ),
    )
    assert verdict(view) is None
    assert commands_in(decide(view, NOW + 0.2)) == []


def test_it_releases_a_task_when_another_has_it_and_is_decommissioned_when_that_is_done() -> None:
    view = told(view_of("p3"))
    view.own.control = MOVED
    goes_on(view, NOW + 1)
    assert view.going is not None and view.going.left == {"daily-0": "its batch has not ended yet"}
    assert commands_in(decide(view, NOW + 1)) == [ReleaseTask("daily-0", NOW + 28)]
    heard_task(view, report("daily-0", Phase.RELEASED, repeated=700), NOW + 2)
    goes_on(view, NOW + 2)
    assert view.going == Going(Availability.DECOMMISSIONED, "Preempt", 5, 1, 1, repeated=700, stays=True)
    assert own_row(view).released == {"daily-0": 2}


def test_what_a_life_that_was_marked_dead_still_has_is_not_handed_over() -> None:
    """Otherwise an event would be approved while nobody else has the task."""
    view = told(view_of("p3"))
    perform_locally(view, Rejoin("marked dead"), NOW)
    view.own.control = CONTROL
    goes_on(view, NOW + 1)
    assert view.going is not None and (view.going.state, view.going.handed_over) == (Availability.DECOMMISSIONING, 0)


def test_a_second_notice_of_a_source_changes_nothing_and_another_source_holds_on() -> None:
    view = told(view_of("p3"))
    assert not heard_notice(view, PORT, Notice("again", NOW + 5))
    assert heard_notice(view, "event", Notice("Reboot", NOW + 20))
    assert view.deadline == NOW + 20
    assert heard_withdrawn(view, "event") and not heard_withdrawn(view, "event")
    assert (view.deadline, view.departs) == (NOW + 30, True)


def test_a_withdrawn_notice_brings_it_back_and_its_row_no_longer_says_it() -> None:
    view = told(view_of("p3"))
    [beat] = [each for each in decide(view, NOW + 0.2) if isinstance(each, MergeOwnRow)]
    view.own.written = beat.row
    heard_withdrawn(view, PORT)
    goes_on(view, NOW + 1)
    [back] = [each for each in decide(view, NOW + 1) if isinstance(each, MergeOwnRow)]
    assert (back.row.state, view.held) == (ProcessorState.ACTIVE, {})
    stored = {**columns(beat.row), **columns(back.row)}  # a merge leaves what it does not name
    assert processor_row("p3", "", stored).going is None


def test_what_a_row_says_of_going_survives_the_table() -> None:
    going = replace(GOES, tasks=4, handed_over=3, left={"a-0": "its batch has not ended yet"}, repeated=7, asked=True)
    stored = columns(replace(ROWS["p3"], state=ProcessorState.LEAVING, going=going))
    assert processor_row("p3", "", stored).going == going


def test_what_is_left_is_said_by_reason_with_a_few_names_of_each() -> None:
    """A row names 20 tasks, so the rest has no reason."""
    left = {f"a-{number}": str(Left.NOBODY) for number in range(4)} | {"b-0": str(Left.RUNS)}
    going = replace(GOES, tasks=9, handed_over=2, left=left, repeated=7)
    assert going.in_words(3) == (
        "2 of 9 tasks handed over (a-0, a-1, a-2 and 1 more: no other processor can take it; b-0: its batch has not "
        "ended yet; 2 more); 7 input rows are repeated"
    )
    assert replace(GOES, tasks=1, handed_over=1).in_words() == "1 of 1 tasks handed over"
    assert going_again(json.loads(json.dumps(asdict(going)))) == going  # as documents have it


@pytest.mark.parametrize("text", ['{"state": "GONE"}', "{", "7", '{"state": ["x"]}', '{"state": {}}', "x" * 40_000])
def test_a_foreign_row_that_says_nonsense_of_going_says_nothing(text: str) -> None:
    stored = {**columns(replace(ROWS["p3"], state=ProcessorState.LEAVING)), "going": text}
    assert processor_row("p3", "", stored).going is None


def test_the_largest_state_is_released_first_then_what_most_readers_wait_for() -> None:
    def task(name: str, size: int | None) -> LocalTask:
        return LocalTask(2, 1, NOW, report(name, last_batch=LastBatch(1, state_bytes=size)))

    view = told(view_of("p3"))
    tasks = {name: task(name, size) for name, size in (("daily-0", 5), ("clean-0", None), ("daily-1", 500))}
    assert in_order(view, tasks) == ["daily-1", "daily-0", "clean-0"]
    assert in_order(view, {name: task(name, None) for name in ("daily-0", "clean-0")}) == ["clean-0", "daily-0"]


def releases(view: View, tasks: dict[str, LocalTask], notice_s: float) -> list[float]:
    """After how many seconds each task is told to be released, if a turn comes whenever it is asked for."""
    now, begun = Moment(NOW, math.inf), list[float]()
    told(view, NOW + notice_s)
    while len(begun) < len(tasks):
        for task in in_turn(view, tasks, NOW + notice_s - 2, now):
            if tasks[task].releasing_since is None:
                tasks[task].releasing_since = float(now)
                begun.append(round(now - NOW, 3))
        assert len(begun) == len(tasks) or NOW < now.wake_at < math.inf, "the next turn comes"
        now = Moment(now.wake_at, math.inf)
    return begun


def owned(count: int) -> dict[str, LocalTask]:
    names = [f"daily-{number}" for number in range(count)]
    return {name: LocalTask(2, 1, NOW, report(name)) for name in names}


def test_releases_are_apart_while_there_is_time() -> None:
    """Its next owner starts one query after the other: what has been released and waits for that stands still."""
    tasks = owned(3)
    assert releases(view_of("p3", tasks=tasks), tasks, 30.0) == [0.0, APART_S, 2 * APART_S]


@pytest.mark.parametrize("count", [1, 9, 20, 65, 200, 1_000])
@pytest.mark.parametrize("notice_s", [2.5, 10.0, 30.0, 300.0])
@pytest.mark.parametrize("shutdown_s", [5.0, 30.0])
def test_all_releases_begin_soon_enough_for_the_notice_and_for_the_next_owners(
    count: int, notice_s: float, shutdown_s: float
) -> None:
    """A next owner that has waited for 1.5 times `task.shutdown.ms` begins without the release."""
    tasks = owned(count)
    view = view_of("p3", tasks=tasks)
    view = replace(view, settings=replace(view.settings, shutdown_s=shutdown_s))
    last = releases(view, tasks, notice_s)[-1]
    assert last <= 0.25 * (notice_s - 2) + 0.11 and last <= 0.5 * shutdown_s + 0.11


def test_a_processor_that_ends_and_a_life_that_was_marked_dead_release_all_at_once() -> None:
    tasks = owned(40)
    view = told(view_of("p3", tasks=tasks), NOW + 300)
    view.ending = Finish(0, "")
    assert len(in_turn(view, tasks, NOW + 298, Moment(NOW, math.inf))) == 40
    view = told(view_of("p3", tasks=tasks), NOW + 300)
    for each in tasks.values():
        each.former = True
    assert len(in_turn(view, tasks, NOW + 298, Moment(NOW, math.inf))) == 40


def test_a_notice_during_a_release_shortens_it_once() -> None:
    view = view_of("p3", tasks={"daily-0": LocalTask(2, 1, NOW, report("daily-0"), releasing_since=NOW)})
    view.own.control = MOVED
    told(view, NOW + 10)
    [release] = [each for each in decide(view, NOW + 0.1) if isinstance(each, Tell)]
    assert release.command == ReleaseTask("daily-0", NOW + 8)
    perform_locally(view, release, NOW + 0.1)
    assert commands_in(decide(view, NOW + 0.2)) == []


def test_a_container_that_ignores_its_release_is_ended_before_the_deadline() -> None:
    """What it was given up for may begin elsewhere then. Until that time it may close its writers by itself."""
    view = view_of("p3", tasks={"daily-0": LocalTask(2, 1, NOW, report("daily-0"), releasing_since=NOW)})
    view.own.control = MOVED
    told(view, NOW + 10)
    [release] = [each for each in decide(view, NOW) if isinstance(each, Tell)]
    perform_locally(view, release, NOW)
    assert commands_in(decide(view, NOW + 8.4)) == []
    [kill] = [each for each in decide(view, NOW + 8.5) if isinstance(each, Tell)]
    assert kill.command == Kill()
    perform_locally(view, kill, NOW + 8.5)
    assert commands_in(decide(view, NOW + 8.6)) == []
    heard_container_lost(view, NOW + 8.7)
    assert own_row(view).released == {"daily-0": 2}


def test_a_container_that_was_told_just_now_has_a_second_to_obey() -> None:
    view = view_of("p3", tasks={"daily-0": LocalTask(2, 1, NOW, report("daily-0"))})
    view.own.control = MOVED
    told(view, NOW)
    [release] = [each for each in decide(view, NOW) if isinstance(each, Tell)]
    perform_locally(view, release, NOW)
    assert commands_in(decide(view, NOW + 0.9)) == []
    assert commands_in(decide(view, NOW + 1)) == [Kill()]


def test_a_notice_of_0_s_gives_batches_up_at_once() -> None:
    view = told(view_of("p3"), NOW)
    heard_leave(view)
    [begin] = [each for each in decide(view, NOW) if isinstance(each, BeginEnd)]
    perform_locally(view, begin, NOW)
    assert commands_in(decide(view, NOW)) == [Permit(0.0), ReleaseTask("daily-0", NOW)]


# What the leader does.


def test_the_leader_gives_the_tasks_of_a_processor_that_will_go_to_others_at_once() -> None:
    members = with_row("p3", state=ProcessorState.LEAVING, going=GOES)
    [control] = written(leader(members=members), NOW)
    assert control.tasks["daily-0"].owner is not None and control.tasks["daily-0"].owner.processor != "p3"
    assert control.members == (member("p1"), member("p2"))
    assert control.noticed == {life_of("p3"): Noticed("p3", why="Preempt", by_ms=5)}
    kinds = {each.kind for each in control.events}
    assert "decommissioning" in kinds and "left" not in kinds


def test_a_task_that_nobody_else_can_take_stays_with_a_processor_that_will_go() -> None:
    gone = {name: replace(each, state=ProcessorState.LEAVING, going=GOES) for name, each in ROWS.items()}
    view = told(leader(members=gone))
    assert [control.tasks for control in written(view, NOW)] == [CONTROL.tasks]  # only the notices are written down
    fresh = row("p4", state=ProcessorState.ACTIVE, no_container=True)
    view.others.members = {**gone, "p4": fresh}
    assert [control.tasks for control in written(view, NOW)] == [CONTROL.tasks]
    view.others.members = {**gone, "p4": replace(fresh, no_container=False)}
    [control] = written(view, NOW)
    assert {each.owner.processor for each in control.tasks.values() if each.owner} == {"p4"}


def test_a_task_that_nobody_else_can_take_stays_before_the_rows_say_that_their_processors_will_go() -> None:
    """Otherwise the write that asks the last processor to go takes its tasks, and nothing gives them back."""
    asked = {life_of(name): Noticed(name, "u", "asked for by ada", 99) for name in ROWS}
    view = leader(replace(CONTROL, noticed=asked))
    assert [control.tasks for control in written(view, NOW) if control.tasks != CONTROL.tasks] == []
    view.others.members = {**ROWS, "p4": row("p4", state=ProcessorState.ACTIVE)}
    [control] = written(view, NOW)
    assert {each.owner.processor for each in control.tasks.values() if each.owner} == {"p4"}


def test_a_processor_that_ends_by_a_signal_keeps_no_task_that_nobody_can_take() -> None:
    ends = replace(GOES, stays=False)
    gone = {name: replace(each, state=ProcessorState.LEAVING, going=ends) for name, each in ROWS.items()}
    view = told(leader(members=gone))
    heard_leave(view)
    [begin] = [each for each in decide(view, NOW) if isinstance(each, BeginEnd)]
    perform_locally(view, begin, NOW)
    goes_on(view, NOW)
    [control] = written(view, NOW)
    assert not any(each.owner for each in control.tasks.values())


def test_a_leader_that_will_go_moves_its_tasks_then_hands_over_then_releases() -> None:
    view = told(leader(seen_alive=SEEN))
    [moved] = written(view, NOW)
    assert moved.leader == member("p1") and all(
        each.owner is not None and each.owner.processor != "p1" for each in moved.tasks.values()
    )
    view.own.control = moved
    [handed] = written(view, NOW + 0.1)
    assert (handed.leader, handed.successor) == (None, "p2")
    view.own.control = CONTROL
    late = NOW + TIMING.scan_s + TIMING.heartbeat_s
    view.own.accepted_at = late
    view.as_leader.too_large = {tuple(moved.members): late + 100}  # its tasks cannot be moved
    view.others.ages = {name: replace(age, read_at=late) for name, age in view.others.ages.items()}
    assert [each.leader for each in written(view, late)] == [None]


def test_a_leader_that_will_go_and_ends_with_its_run_cleans_up_and_leaves_before_it_hands_over() -> None:
    """A newcomer that it saw just then got the leadership amid the clean-up, before its row said LEFT."""
    drained = replace(DRAINING, phase=RunPhase.DRAINED, past=("run",), uncleaned=("run",))
    late = NOW + 20
    view = told(leader(drained, seen_alive=SEEN, scanned_at=late))
    view.own.accepted_at = late
    view.others.ages = {name: replace(age, read_at=late) for name, age in view.others.ages.items()}
    [begin] = [each for each in decide(view, late) if isinstance(each, BeginEnd)]
    perform_locally(view, begin, late)
    assert {each.leader for each in written(view, late)} <= {member("p1")}


@pytest.mark.parametrize(
    ("by", "leaves"),
    [(NOW + 15, True), (NOW - 15, False), (None, False)],
    ids=["its machine goes", "it should be gone", "it does not know when"],
)
def test_a_leader_that_ends_with_its_run_leaves_the_clean_up_to_the_next_before_its_machine_goes(
    by: float | None, leaves: bool
) -> None:
    """It died amid the clean-up, so the next leader found out by its silence."""
    drained = replace(DRAINING, phase=RunPhase.DRAINED, past=("run",), uncleaned=("run",))
    view = told(leader(drained, seen_alive=SEEN), by, now=NOW - 20)
    view.ending, view.ending_since = Finish(0, "Run run is drained."), NOW
    view.work.tasks.clear()
    late = NOW + 14
    assert waits_for(view, late - 0.1) is Wait.CLEAN_UP
    assert waits_for(view, late) is (Wait.OWN_ROW if leaves else Wait.CLEAN_UP)


def test_a_leader_lets_the_lease_go_only_with_the_word_that_nobody_leads() -> None:
    """Its heartbeat was under way, or it read the row first, so the vacancy was not written, and the successor waited
    for a silence of its predecessor.
    """
    view = told(leader(seen_alive=SEEN))
    view.leadership, view.handing_over, view.vacates = None, Lease("lease", NOW), True
    view.own.control, view.others.leader_read_at = replace(CONTROL, leader=None, successor="p2"), NOW - 100
    view.calls.busy["leader row"] = NOW
    assert not {WriteLeaderRow, ReleaseLease} & {type(each) for each in decide(view, NOW)}
    view.calls.busy.clear()
    kinds = {type(each) for each in decide(view, NOW)}
    assert {WriteLeaderRow, ReleaseLease} <= kinds and ReadLeaderRow not in kinds


def test_a_leader_that_will_go_leads_on_while_there_is_no_other() -> None:
    gone = {name: replace(each, state=ProcessorState.LEAVING, going=GOES) for name, each in ROWS.items()}
    view = told(leader(members=gone, seen_alive=SEEN))
    late = NOW + 10
    view.own.accepted_at = late
    assert [each.leader for each in written(view, late)] == [member("p1")]


def test_a_processor_that_will_go_is_no_successor_and_campaigns_only_after_others() -> None:
    view = leader(members=with_row("p2", state=ProcessorState.LEAVING, going=GOES))
    [leader_row] = [each.row for each in decide(view, NOW + 0.2) if isinstance(each, WriteLeaderRow)]
    assert leader_row.successors == ("p3",)
    vacant = replace(CONTROL, leader=None, successor=None)
    others, goer = view_of("p2", vacant), told(view_of("p2", vacant))
    for each in (others, goer):
        each.others.leaderless_since = NOW
    soon = NOW + TIMING.scan_s + 1e-3
    assert [type(each) for each in decide(others, soon) if isinstance(each, AcquireLease)] == [AcquireLease]
    assert not [each for each in decide(goer, soon) if isinstance(each, AcquireLease)]


@pytest.mark.parametrize("control", [CONTROL, DRAINING], ids=["running", "draining"])
def test_a_processor_that_comes_back_gets_tasks_again(control: Control) -> None:
    noticed = replace(control, noticed={life_of("p3"): Noticed("p3", why="Preempt")})
    noticed = replace(noticed, members=(member("p1"), member("p2")))
    noticed = replace(noticed, tasks={task: replace(each, owner=owner("p1")) for task, each in noticed.tasks.items()})
    rows = with_row("p3", tasks={})
    view = leader(noticed, members=rows)
    after = with_notices(noticed, (), view.present)
    assert after.noticed == {}
    view.as_leader.published_at = NOW - 100
    [control_] = written(view, NOW)
    has_some = any(each.owner is not None and each.owner.processor == "p3" for each in control_.tasks.values())
    assert has_some is (control is CONTROL)  # while a run drains, no task moves by choice
    assert "schedulable" in {each.kind for each in control_.events}


# Requests.


def asked(kind: RequestKind, who: str, *, at_ms: int = 10, answer: str = "") -> Request:
    lives = frozenset({life_of(who)[:8]})
    return Request(f"{kind}-{at_ms}", "etag", kind, "", answer, lives, "ada", at_ms, until_ms=99)


ROWS_OF_THREE = {name: replace(each, incarnation=f"{name} of {name}") for name, each in ROWS.items()}


def life(who: str) -> str:
    return f"{who} of {who}"


def request(kind: RequestKind, who: str, *, at_ms: int = 10, answer: str = "") -> Request:
    """A request; the lives of `situation` begin alike, so these do not."""
    return replace(asked(kind, who, at_ms=at_ms, answer=answer), incarnations=frozenset({life(who)[:8]}))


def said(control: Control, *requests: Request) -> list[str]:
    return [text for _, text in answers(control, requests, ROWS_OF_THREE)]


def test_a_request_is_obeyed_in_the_blob_then_answered_and_withdrawn_by_another() -> None:
    first = request(RequestKind.DECOMMISSION, "p2")
    assert said(CONTROL, first) == []
    control = with_notices(CONTROL, (first,), ROWS_OF_THREE)
    assert control.noticed == {life("p2"): Noticed("p2", first.key, "asked for by ada", 99)}
    assert signal(control) != signal(CONTROL)
    assert said(control, first) == [ACCEPTED]
    assert said(control, request(RequestKind.DECOMMISSION, "p2", at_ms=11)) == [ALREADY_GOING]
    back = request(RequestKind.RECOMMISSION, "p2", at_ms=12)
    assert said(control, back) == []
    after = with_notices(control, (replace(first, answer=ACCEPTED), back), ROWS_OF_THREE)
    assert (after.noticed, said(after, back)) == ({}, [STAYS])


def test_of_two_unanswered_requests_the_later_one_counts_whatever_was_obeyed() -> None:
    """Otherwise a leader that finds both would obey one after the other, forever."""
    first, back = request(RequestKind.DECOMMISSION, "p2"), request(RequestKind.RECOMMISSION, "p2", at_ms=12)
    for control in (CONTROL, with_notices(CONTROL, (first,), ROWS_OF_THREE)):
        after = with_notices(control, (first, back), ROWS_OF_THREE)
        assert after.noticed == {}
        assert said(after, first, back) == [SUPERSEDED, STAYS]


def test_requests_that_cannot_be_obeyed_are_refused_with_the_reason() -> None:
    assert said(CONTROL, request(RequestKind.DECOMMISSION, "p9")) == [NOT_THERE]
    here = replace(CONTROL, noticed={life("p2"): Noticed("p2", why="Preempt")})
    assert said(here, request(RequestKind.RECOMMISSION, "p2")) == [OTHER_NOTICE]


def test_a_processor_that_the_blob_asks_to_go_does_until_the_blob_says_no_more() -> None:
    view = view_of("p3")
    control = replace(CONTROL, revision=10, noticed={life_of("p3"): Noticed("p3", "u", "asked for by ada", 30_001)})
    learn(view, ReadControl(), ControlRead(control, "later"), sent_at=NOW, now=NOW)
    assert view.notices == {ASKED: Notice("asked for by ada", NOW + 30, 30_001)}
    goes_on(view, NOW)
    assert view.going is not None and view.going.asked
    both = ControlRead(replace(MOVED, revision=11, noticed=control.noticed), "moved")
    told_with_it = view_of("p3")  # the blob that asks it to go gives its task to another
    learn(told_with_it, ReadControl(), both, sent_at=NOW, now=NOW)
    goes_on(told_with_it, NOW)
    assert told_with_it.going is not None and (told_with_it.going.tasks, told_with_it.going.handed_over) == (1, 0)
    learn(view, ReadControl(), ControlRead(replace(CONTROL, revision=12), "last"), sent_at=NOW, now=NOW)
    assert not view.departs


def test_a_processor_that_is_asked_to_go_gets_no_task_even_before_its_row_says_so() -> None:
    control = replace(CONTROL, noticed={life_of("p3"): Noticed("p3", "u", "asked for by ada")})
    [after] = written(leader(control), NOW)
    assert after.tasks["daily-0"].owner is not None and after.tasks["daily-0"].owner.processor != "p3"


def test_an_entry_of_a_processor_that_has_gone_is_removed_and_what_it_left_is_said() -> None:
    control = replace(CONTROL, noticed={life_of("p3"): Noticed("p3", why="Preempt")})
    dead = with_row("p3", state=ProcessorState.DEAD, going=replace(GOES, tasks=4, handed_over=3))
    [after] = written(leader(control, members=dead), NOW)
    assert after.noticed == {}
    assert "p3 is gone, with 3 of 4 tasks handed over." in [each.text for each in after.events]


def test_the_history_names_what_a_processor_that_has_gone_left_behind_and_why() -> None:
    """As its row says, after it was stored and read."""
    control = replace(CONTROL, noticed={life_of("p3"): Noticed("p3", why="Preempt")})
    left = {f"daily-{number}": str(Left.RUNS) for number in range(5)}
    going = replace(GOES, tasks=6, handed_over=1, left=left)
    stored = columns(replace(ROWS["p3"], state=ProcessorState.LEAVING, going=going)) | {"state": "DEAD"}
    rows = {**ROWS, "p3": processor_row("p3", "etag", stored)}
    [after] = written(leader(control, members=rows), NOW)
    assert (
        "p3 is gone, with 1 of 6 tasks handed over (daily-0, daily-1, daily-2 and 2 more: its batch has not ended yet)."
    ) in [each.text for each in after.events]


def test_a_processor_that_will_go_starts_nothing_that_it_is_no_longer_given() -> None:
    view = told(view_of("p3"))
    view.work.tasks.clear()
    assert starts(view, NOW) == ["daily-0"]  # the blob still gives it: nobody else has it yet
    view.own.control = MOVED
    assert starts(view, NOW) == []
