"""Requests to the leader: a drain, its cancellation, a stop, and requests that cannot be obeyed."""

from dataclasses import replace

import pytest

from samza_azure.group.actions import (
    AnswerRequest,
    BeginEnd,
    CleanRun,
    DeleteMember,
    DeleteRequest,
    Finish,
    MergeOwnRow,
    ReadRequests,
    ScanMembers,
    Tell,
    WriteControl,
)
from samza_azure.group.age import Age
from samza_azure.group.answers import Answer, Trouble
from samza_azure.group.control import Control, Member, RunPhase, Stop, signal
from samza_azure.group.election import successors_of
from samza_azure.group.learn import heard_task, learn, perform_locally, started
from samza_azure.group.notification import REMEMBERED, DrainNotification, remembered, timed
from samza_azure.group.publish import next_control
from samza_azure.group.requests import FORGOTTEN_AFTER_S, ignored
from samza_azure.group.rows import ProcessorState, Request, RequestKind, request
from samza_azure.group.view import View
from samza_azure.messages import Drain, DrainStep, ReleaseTask
from samza_azure.outcomes import Refused
from tests.group.situation import CONTROL, NOW, ROWS, decide, leader, life_of, member, report, row, view_of

FREEZE = replace(
    CONTROL,
    phase=RunPhase.DRAINING,
    drain=DrainNotification("d", "run", step=DrainStep.FREEZE, history=("FREEZE",), at_ms=(1,)),
)
assert FREEZE.drain is not None
FLUSH = replace(FREEZE, drain=replace(FREEZE.drain, step=DrainStep.FLUSH, history=("FREEZE", "FLUSH"), at_ms=(1, 1)))
DRAINED = replace(FLUSH, phase=RunPhase.DRAINED, past=("run",))


def drain(key: str = "d", run_id: str = "run", answer: str = "") -> Request:
    return Request(key, f"etag of {key}", RequestKind.DRAIN, run_id, answer)


def cancel(key: str = "c", run_id: str = "run", answer: str = "") -> Request:
    return Request(key, f"etag of {key}", RequestKind.CANCEL, run_id, answer)


def stop(key: str = "s", answer: str = "", lives: tuple[str, ...] = ()) -> Request:
    return Request(key, f"etag of {key}", RequestKind.STOP, "run", answer, frozenset(life[:8] for life in lives))


def asked(control: Control, *requests: Request, **more: object) -> View:
    return leader(control, requests=requests, **more)


def answers(view: View, now: float = NOW + 0.05) -> dict[str, str]:
    return {action.key: action.answer for action in decide(view, now) if isinstance(action, AnswerRequest)}


def obey(control: Control, *requests: Request, **more: object) -> Control:
    return next_control(asked(control, *requests, **more), control, NOW)


# A drain.


@pytest.mark.parametrize("run_id", ["", "run"])
def test_a_drain_of_this_run_or_of_any_becomes_a_freeze(run_id: str) -> None:
    assert obey(CONTROL, drain(run_id=run_id)) == FREEZE


def test_a_drain_of_another_run_waits_for_it_and_an_answered_one_is_over() -> None:
    assert obey(CONTROL, drain(run_id="another"), drain(answer="cancelled")) == CONTROL
    assert answers(asked(CONTROL, drain(run_id="another"))) == {}


def test_an_answer_that_was_accepted_is_not_sent_again_before_the_requests_are_read() -> None:
    view = asked(FREEZE, drain())
    assert answers(view) == {"d": "accepted"}
    learn(view, AnswerRequest("d", "etag of d", "accepted"), "newer", sent_at=NOW, now=NOW + 0.01)
    assert answers(view) == {}
    assert view.as_leader.requests == (replace(drain(answer="accepted"), etag="newer"),)


@pytest.mark.parametrize("answer", [Refused("UpdateConditionNotSatisfied"), Trouble.UNSETTLED])
def test_a_request_that_was_refused_or_lost_is_repeated_only_after_a_read(answer: Answer) -> None:
    view = asked(FREEZE, drain())
    learn(view, AnswerRequest("d", "etag of d", "accepted"), answer, sent_at=NOW, now=NOW + 0.01)
    assert answers(view, NOW + 0.9) == {}
    learn(view, ReadRequests(), (replace(drain(), etag="newer"),), sent_at=NOW + 1, now=NOW + 1)
    assert [action for action in decide(view, NOW + 1) if isinstance(action, AnswerRequest)] == [
        AnswerRequest("d", "newer", "accepted")
    ]


@pytest.mark.parametrize("comes", ["late", "never"])
def test_a_drain_whose_request_was_answered_as_cancelled_is_never_taken_up(comes: str) -> None:
    """The stop that cancels it is over before the leader knows that its answer is stored."""
    stopped = replace(CONTROL, stop=Stop("s", (member("p9"),)))
    view = asked(stopped, drain(), stop("s2"))
    [answer] = [action for action in decide(view, NOW) if isinstance(action, AnswerRequest)]
    assert answer.answer == "cancelled"
    started(view, answer, NOW)
    if comes == "never":
        learn(view, answer, Trouble.UNSETTLED, sent_at=NOW, now=NOW + 0.5)
        learn(view, ReadRequests(), (drain(), stop("s2", answer="already stopping")), sent_at=NOW + 1, now=NOW + 1)
        assert answers(view, NOW + 1) == {"d": "cancelled"}
    view.as_leader.requests = tuple(each for each in view.as_leader.requests if each.key == "d")
    assert next_control(view, replace(CONTROL, stop=None), NOW + 1) == CONTROL


def test_a_read_that_was_sent_before_an_answer_was_stored_does_not_take_it_back() -> None:
    view = asked(FREEZE, drain())
    learn(view, AnswerRequest("d", "etag of d", "accepted"), "newer", sent_at=NOW, now=NOW + 0.01)
    learn(view, ReadRequests(), (drain(),), sent_at=NOW - 0.1, now=NOW + 0.02)
    assert view.as_leader.requests == (replace(drain(answer="accepted"), etag="newer"),)


@pytest.mark.parametrize("by", ["this leader", "another"])
def test_a_row_that_replaces_an_answered_request_is_what_the_next_read_says(by: str) -> None:
    """The leader kept the old row, whose deletion is refused forever: after a drain it never finished its clean-up."""
    view = asked(FREEZE, drain(answer="accepted" if by == "another" else ""))
    if by == "this leader":
        learn(view, AnswerRequest("d", "etag of d", "accepted"), "newer", sent_at=NOW, now=NOW + 0.01)
    strange = request("d", "of a stranger", {"kind": "drain", "uuid": 7})
    learn(view, ReadRequests(), (strange,), sent_at=NOW + 1, now=NOW + 1.1)
    assert view.as_leader.requests == (strange,)


def test_a_second_stop_is_answered_after_the_drains_that_it_cancels() -> None:
    stopped = replace(CONTROL, stop=Stop("s", (member("p1"),)))
    assert answers(asked(stopped, drain(), stop("s2"))) == {"d": "cancelled"}
    assert answers(asked(stopped, drain(answer="cancelled"), stop("s2"))) == {"s2": "already stopping"}


def test_nothing_is_answered_while_a_write_of_the_control_blob_is_under_way() -> None:
    """It may take up the drain that a second stop, which was read after it was sent, would have withdrawn."""
    stopped = replace(CONTROL, stop=Stop("s", (member("p1"),)))
    view = asked(stopped, drain(), stop("s2"))
    write = WriteControl(FREEZE, "e1", "lease", False)
    started(view, write, NOW)
    assert answers(view) == {}
    learn(view, write, Trouble.UNSETTLED, sent_at=NOW, now=NOW + 0.01)
    assert answers(view) == {}


def test_a_drain_is_answered_once_the_control_blob_has_it() -> None:
    assert answers(asked(CONTROL, drain())) == {}
    assert answers(asked(FREEZE, drain(), drain("later"))) == {"d": "accepted", "later": "already draining"}
    assert answers(asked(DRAINED, drain("later"))) == {"later": "already drained"}


def test_nothing_is_obeyed_before_the_requests_were_read_under_this_leadership() -> None:
    view = asked(CONTROL, drain(), stop(), requests_read_at=NOW - 200)
    assert next_control(view, CONTROL, NOW) == CONTROL


@pytest.mark.parametrize(
    "columns",
    [
        {"uuid": "u", "drainMode": "SAVEPOINT", "runId": "run"},
        {"uuid": "u", "drainMode": "DEFAULT"},
        {"uuid": "u", "runId": "run"},
        {"uuid": "u", "runId": "run", "drainMode": True},
        {"runId": "run", "drainMode": "DEFAULT"},
        {"uuid": "", "runId": "run", "drainMode": "DEFAULT"},
        {"uuid": 7, "runId": "run", "drainMode": "DEFAULT"},
    ],
)
def test_a_drain_without_a_uuid_a_run_or_a_known_mode_is_ignored(columns: dict[str, str | int]) -> None:
    asked_for = request("u", "e", {"kind": "drain", **columns})
    assert obey(CONTROL, asked_for) == CONTROL
    assert ignored(CONTROL, [asked_for]) == 1


def test_a_drain_keeps_its_requester_and_the_times_of_its_steps() -> None:
    frozen = obey(CONTROL, replace(drain(), by="ada@here", asked_ms=7)).drain
    assert frozen is not None
    assert (frozen.by, frozen.asked_ms, frozen.at_ms) == ("ada@here", 7, (1,))
    later = replace(frozen, history=("FREEZE", "FLUSH"))
    assert timed(later, frozen, 9) == replace(later, at_ms=(1, 9))
    assert timed(frozen, frozen, 9) == frozen
    assert timed(replace(later, at_ms=()), None, 9) == replace(later, at_ms=(9, 9))
    by_an_earlier_version = replace(frozen, at_ms=())
    assert timed(by_an_earlier_version, by_an_earlier_version, 9) == by_an_earlier_version
    assert timed(replace(later, at_ms=()), by_an_earlier_version, 9) == replace(later, at_ms=(0, 9))


def test_the_next_run_remembers_the_drains_of_the_last_five() -> None:
    drains: tuple[DrainNotification, ...] = ()
    for number in range(REMEMBERED + 1):
        drains = remembered(drains, DrainNotification(f"d{number}", "run", ends={"in/0": (0, 5)}))
    assert [each.uuid for each in drains] == ["d1", "d2", "d3", "d4", "d5"]
    assert all(each.ends == {} for each in drains)
    assert remembered(drains, None) == drains


# Its cancellation.


CANCELLED = replace(CONTROL, withdrawn=("c",))


def test_a_cancelled_freeze_leaves_the_run_as_it_was() -> None:
    assert obey(FREEZE, cancel()) == CANCELLED
    assert obey(FREEZE, cancel(run_id="")) == CANCELLED
    assert obey(FREEZE, cancel(run_id="another")) == FREEZE


def test_a_cancellation_after_flush_is_refused() -> None:
    assert obey(FLUSH, cancel()) == FLUSH
    assert answers(asked(FLUSH, cancel())) == {"c": "refused: the run flushes already"}
    assert answers(asked(DRAINED, cancel())) == {"c": "already drained"}


def test_the_write_that_cancels_is_conditional_like_the_one_that_flushes_so_only_one_of_them_is_accepted() -> None:
    [write] = [action for action in decide(asked(FREEZE, cancel()), NOW) if isinstance(action, WriteControl)]
    assert (write.etag, write.control.drain) == ("control", None)


def test_a_cancellation_is_answered_after_it_was_obeyed_and_after_the_drains_that_it_withdraws() -> None:
    """Else a leader that dies in between leaves a drain that the next one takes up again."""
    assert answers(asked(FREEZE, cancel())) == {}
    view = asked(CANCELLED, drain(), cancel())
    assert next_control(view, CANCELLED, NOW) == CANCELLED
    assert answers(view) == {"d": "cancelled"}
    assert answers(asked(CANCELLED, drain(answer="cancelled"), cancel())) == {"c": "cancelled"}


def test_a_cancellation_is_written_down_before_it_is_answered_even_if_nothing_is_frozen() -> None:
    """Found by the model (tests/model/drain.py). Otherwise a deposed leader that has not noticed would answer
    "cancelled" for a drain that goes on under the next one; so would a leader whose FREEZE was not answered and lands
    after all."""
    assert answers(asked(CONTROL, drain(), cancel())) == {}
    assert answers(asked(CONTROL, drain(answer="accepted"), cancel())) == {}
    assert obey(CONTROL, drain(), cancel()) == CANCELLED
    assert obey(CONTROL, cancel()) == CANCELLED


def test_a_thousand_foreign_cancellations_are_obeyed_a_few_at_a_time() -> None:
    many = [cancel(f"c{number:04}") for number in range(1000)]
    after = obey(FREEZE, *many)
    assert after == replace(CONTROL, withdrawn=tuple(f"c{number:04}" for number in range(8)))
    assert obey(after, *many) == after
    answered = [replace(each, answer="cancelled") for each in many[:8]]
    assert obey(after, *answered, *many[8:]).withdrawn == tuple(f"c{number:04}" for number in range(8, 16))


def test_a_drain_asked_for_after_the_cancellation_was_answered_begins_anew() -> None:
    after = obey(CONTROL, drain(answer="accepted"), cancel(answer="cancelled"), drain("again"))
    assert after.drain == DrainNotification("again", "run", step=DrainStep.FREEZE, history=("FREEZE",), at_ms=(1,))


def test_the_container_gets_the_end_of_the_freeze() -> None:
    frozen = view_of("p1", FREEZE)
    perform_locally(frozen, Tell(Drain(DrainStep.FREEZE, "d")), NOW)
    frozen.own.control = CONTROL
    assert [action.command for action in decide(frozen, NOW) if isinstance(action, Tell)] == [Drain(None)]


# A stop.

EVERYBODY = (member("p1"), member("p2"), member("p3"))
STOPPED = replace(CONTROL, stop=Stop("s", EVERYBODY))


def test_a_stop_names_all_members() -> None:
    assert obey(CONTROL, stop()) == STOPPED
    assert obey(CONTROL, stop(lives=(life_of("p1"),))) == STOPPED


def test_before_flush_a_stop_cancels_the_freeze_and_after_it_a_stop_is_refused() -> None:
    assert obey(FREEZE, stop()) == STOPPED
    assert obey(FLUSH, stop()) == FLUSH
    assert answers(asked(FLUSH, stop())) == {"s": "refused: the run flushes already"}


def test_a_stop_is_answered_once_the_control_blob_has_it_and_withdraws_the_drains_of_before() -> None:
    assert answers(asked(CONTROL, stop())) == {}
    assert answers(asked(STOPPED, stop(), stop("later"))) == {"s": "accepted", "later": "already stopping"}
    assert answers(asked(STOPPED, drain(), stop())) == {"d": "cancelled"}
    assert answers(asked(STOPPED, drain(), stop(answer="accepted"))) == {}  # it is for the next start


def test_a_stop_meant_for_former_members_does_not_stop_later_ones() -> None:
    """There was no leader when it was requested; it must not end the fleet that finds it a week later."""
    view = asked(CONTROL, stop(lives=("an earlier life",)))
    assert next_control(view, CONTROL, NOW) == CONTROL
    assert answers(view) == {"s": "nobody is left to stop"}


def test_a_stop_counts_only_incarnations_that_were_seen_to_write() -> None:
    view = asked(CONTROL, stop(lives=("4" * 32,)))
    comer = row("p4", incarnation="4" * 32, adopted=0)
    learn(view, ScanMembers(), (*ROWS.values(), comer), sent_at=NOW, now=NOW)
    assert (next_control(view, CONTROL, NOW), answers(view)) == (CONTROL, {})
    learn(view, ScanMembers(), (*ROWS.values(), replace(comer, etag="a beat")), sent_at=NOW, now=NOW)
    assert next_control(view, CONTROL, NOW).stop == Stop("s", (*EVERYBODY, Member("p4", "4" * 32)))


def test_everybody_named_commits_and_goes_with_code_0_and_the_leader_goes_last() -> None:
    follower = view_of("p3", STOPPED)
    assert [a.verdict for a in decide(follower, NOW) if isinstance(a, BeginEnd)] == [
        Finish(0, "Run run is stopped. The next start resumes it.")
    ]
    view = asked(STOPPED, stop(answer="accepted"))
    [begin] = [action for action in decide(view, NOW) if isinstance(action, BeginEnd)]
    perform_locally(view, begin, NOW)
    assert Tell(ReleaseTask("clean-0")) in decide(view, NOW)
    perform_locally(view, Tell(ReleaseTask("clean-0")), NOW)
    heard_task(view, replace(report("clean-0"), phase="RELEASED"), NOW)  # type: ignore[arg-type]
    assert all(a.row.state is not ProcessorState.LEFT for a in decide(view, NOW + 1) if isinstance(a, MergeOwnRow))
    view.others.members = {name: replace(each, state=ProcessorState.LEFT) for name, each in ROWS.items()}
    [last] = [action for action in decide(view, NOW + 1) if isinstance(action, MergeOwnRow)]
    assert last.row.state is ProcessorState.LEFT


def test_a_stopping_leader_waits_only_for_processors_that_had_tasks() -> None:
    ending = Finish(0, "Run run is stopped.")
    view = asked(STOPPED, stop(answer="accepted"), ending=ending, ending_since=NOW, tasks={})
    view.others.members = {name: replace(each, state=ProcessorState.LEFT) for name, each in ROWS.items()} | {
        "p4": row("p4")
    }
    [last] = [action for action in decide(view, NOW) if isinstance(action, MergeOwnRow)]
    assert last.row.state is ProcessorState.LEFT
    assert successors_of(view, STOPPED) == ("p4",)
    assert successors_of(view, replace(STOPPED, stop=Stop("s", (member("p4"),)))) == ()


def test_a_leader_that_is_stopped_after_the_drain_cleans_up_before_it_goes() -> None:
    drained = replace(DRAINED, stop=STOPPED.stop, uncleaned=("run",))
    view = asked(drained, stop(answer="accepted"), ending=Finish(0, "stopped"), ending_since=NOW, tasks={})
    view.others.members = {name: replace(each, state=ProcessorState.LEFT) for name, each in ROWS.items()}
    acts = decide(view, NOW)
    assert CleanRun("run") in acts
    assert all(a.row.state is not ProcessorState.LEFT for a in acts if isinstance(a, MergeOwnRow))
    view.own.control = replace(drained, uncleaned=())
    [last] = [action for action in decide(view, NOW) if isinstance(action, MergeOwnRow)]
    assert last.row.state is ProcessorState.LEFT


@pytest.mark.parametrize("later", ["a later life", "or one that sorts behind"])
def test_the_next_start_clears_the_stop_whatever_its_incarnations(later: str) -> None:
    stopped = replace(STOPPED, stop=Stop("s", (member("p2"), member("p3"))))
    view = asked(stopped, stop(answer="accepted"))
    view.others.members = {name: replace(ROWS[name], incarnation=later) for name in ("p2", "p3")}
    assert next_control(view, stopped, NOW).stop is None


def test_while_a_stop_is_in_force_no_task_moves_no_run_begins_and_no_drain_is_taken_up() -> None:
    view = asked(STOPPED, stop(answer="accepted"), drain())
    view.others.members = {**view.others.members, "p3": replace(ROWS["p3"], state=ProcessorState.LEFT)}
    assert next_control(view, STOPPED, NOW + 60) == STOPPED
    drained = replace(DRAINED, stop=STOPPED.stop, fingerprint="another")
    assert next_control(asked(drained, active_run=""), drained, NOW) == drained


def test_a_request_that_drained_the_last_run_does_not_drain_the_next_one() -> None:
    """Its answer was lost until the next run had begun. It named no run."""
    asked_before = drain(run_id="")
    begun = replace(CONTROL, run_id="next", past=("run",), drains=(DrainNotification(asked_before.key, "run"),))
    assert obey(begun, asked_before).phase is RunPhase.RUNNING
    assert answers(asked(begun, asked_before)) == {asked_before.key: "accepted"}


def test_processors_that_wait_for_an_upgrade_after_a_drain_can_be_stopped() -> None:
    assert obey(DRAINED, stop(), active_run="").stop == STOPPED.stop


def test_a_processor_that_joins_during_a_stop_is_stopped_too() -> None:
    view = asked(STOPPED, stop(answer="accepted"))
    view.others.members = {**view.others.members, "p4": row("p4", adopted=0)}
    after = next_control(view, STOPPED, NOW)
    assert after.stop == Stop("s", (*EVERYBODY, member("p4")))
    assert signal(after) != signal(STOPPED)
    view.others.members = {**view.others.members, "p3": replace(ROWS["p3"], state=ProcessorState.LEFT)}
    assert next_control(view, after, NOW) == after
    view.others.members = {**view.others.members, "p5": row("p5", adopted=0)}
    grown = next_control(view, after, NOW)
    assert grown.stop == Stop("s", (member("p1"), member("p2"), member("p4"), member("p5")))
    assert BeginEnd not in map(type, decide(view_of("p2", replace(STOPPED, stop=Stop("s", (member("p1"),)))), NOW))


def test_the_next_start_clears_the_stop_and_resumes_the_run() -> None:
    left = {name: replace(each, state=ProcessorState.LEFT) for name, each in ROWS.items()}
    view = asked(STOPPED, stop(answer="accepted"), incarnation="new")
    view.own.written = replace(ROWS["p1"], incarnation="new")
    view.others.members = left
    after = next_control(view, STOPPED, NOW)
    assert (after.stop, after.run_id, after.phase) == (None, "run", RunPhase.RUNNING)
    assert {each.owner.incarnation for each in after.tasks.values() if each.owner} == {"new"}


def test_but_not_before_the_request_is_answered_or_it_would_be_obeyed_again() -> None:
    view = asked(STOPPED, stop(), incarnation="new")
    view.own.written, view.others.members = replace(ROWS["p1"], incarnation="new"), {}
    assert next_control(view, STOPPED, NOW) == STOPPED
    assert answers(view) == {"s": "accepted"}


def test_a_stop_is_not_over_while_the_row_of_a_member_may_be_that_of_a_live_processor() -> None:
    """The leader of that time was killed. Its row is marked first; then no member is left."""
    view = asked(STOPPED, stop(answer="accepted"), incarnation="new")
    view.own.written, view.others.members = replace(ROWS["p1"], incarnation="new"), {"p3": ROWS["p3"]}
    assert next_control(view, STOPPED, NOW) == STOPPED
    view.others.members = {"p3": replace(ROWS["p3"], state=ProcessorState.DEAD)}
    assert next_control(view, STOPPED, NOW).stop is None


# Requests that cannot be obeyed.

STRANGE = (
    request("x", "e", {"kind": "dance"}),
    request("y", "e", {"kind": "drain", "body": "x" * 100_000}),
    request("z", "e", {"kind": True, "runId": 7}),
    drain("other", run_id="another"),
)


def test_a_request_that_cannot_be_obeyed_is_counted_and_not_answered() -> None:
    view = asked(CONTROL, *STRANGE)
    assert ignored(CONTROL, (*STRANGE, drain(), stop(answer="accepted"))) == 4
    assert next_control(view, CONTROL, NOW) == CONTROL
    assert answers(view) == {}


def test_requests_are_forgotten_after_a_day_in_which_they_were_read_unchanged() -> None:
    view = asked(CONTROL, *STRANGE[:2], drain(answer="accepted"))
    view.as_leader.request_ages = {
        "x": Age("e", FORGOTTEN_AFTER_S, 86_400, NOW),
        "y": Age("e", FORGOTTEN_AFTER_S - 1, 86_400, NOW),
        "d": Age("etag of d", FORGOTTEN_AFTER_S, 86_400, NOW),
    }
    deleted = [action for action in decide(view, NOW) if isinstance(action, DeleteRequest)]
    assert deleted == [DeleteRequest("x", "e"), DeleteRequest("d", "etag of d")]


def test_old_requests_are_forgotten_by_the_clock_of_the_service_but_never_one_that_may_yet_be_obeyed() -> None:
    """No leader of a nightly job saw them for a day. A drain that was requested while nobody ran waits for the next."""
    view = asked(CONTROL)
    day = FORGOTTEN_AFTER_S
    asked_for = (
        *(replace(each, age_s=day) for each in (*STRANGE[:1], drain(answer="accepted"), drain("waits"))),
        replace(drain("fresh", answer="accepted"), age_s=day - 1),
    )
    learn(view, ReadRequests(), asked_for, sent_at=NOW, now=NOW)
    deleted = {action.key for action in decide(view, NOW) if isinstance(action, DeleteRequest)}
    assert deleted == {"x", "d"}


def test_thousands_of_requests_are_answered_a_few_at_a_time() -> None:
    view = asked(FREEZE, *(drain(f"later {number}") for number in range(5_000)))
    assert len(answers(view)) == 8
    view.calls.busy = {f"request later {number}": NOW for number in range(6)}
    assert list(answers(view)) == ["later 6", "later 7"]


def test_a_row_with_an_empty_key_is_neither_answered_nor_waited_for() -> None:
    """Its answer and its deletion were refused by the adapter, each time."""
    view = asked(FREEZE)
    learn(view, ReadRequests(), (replace(drain("x"), key=""),), sent_at=NOW, now=NOW)
    assert view.as_leader.requests == ()


def test_a_day_of_not_reading_makes_no_request_old() -> None:
    view = asked(CONTROL)
    for now in (NOW, NOW + 1, NOW + 2, NOW + 90_000):
        learn(view, ReadRequests(), STRANGE, sent_at=now, now=now)
    assert view.as_leader.request_ages["x"].seconds == 1 + 1 + 2


KEPT = {"past": ("old",), "uncleaned": ("old",), "kept": {"old": 3}}


@pytest.mark.parametrize("control", [replace(CONTROL, **KEPT), replace(DRAINED, **KEPT)], ids=["runs", "is drained"])
def test_an_answer_stays_while_an_earlier_run_cannot_be_deleted_whole(control: Control) -> None:
    """The command reads it once a second. It was deleted on the next turn, so the command reported that no processor
    answers."""
    view = asked(control, cancel(answer="cancelled"), clean_kept=("old", 3), requests_read_at=NOW)
    view.others.members = {**ROWS, "p2": row("p2"), "p3": row("p3", state=ProcessorState.DEAD)}
    assert not [each for each in decide(view, NOW + 0.05) if isinstance(each, DeleteRequest | DeleteMember)]


def test_rows_left_in_the_table_do_not_delay_the_end_of_an_earlier_run() -> None:
    view = asked(replace(CONTROL, past=("old",), uncleaned=("old",)), cancel(answer="cancelled"), clean_done="old")
    assert isinstance(view.control, Control)
    assert next_control(view, view.control, NOW + 0.05).uncleaned == ()
