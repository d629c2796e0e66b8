"""What each processor reads, and how often, so that a large group does not overload the storage."""

from dataclasses import replace

from samza_azure.group import decide as deciding
from samza_azure.group.actions import (
    MergeOwnRow,
    ReadControl,
    ReadLeaderRow,
    ReadMember,
    ScanMembers,
)
from samza_azure.group.answers import ControlRead
from samza_azure.group.control import (
    Assignment,
    signal,
)
from samza_azure.group.learn import learn
from samza_azure.group.view import LocalTask
from samza_azure.outcomes import Missing
from tests.group.situation import (
    CONTROL,
    LEADER_ROW,
    NOW,
    ROWS,
    decide,
    kinds,
    leader,
    life_of,
    member,
    owner,
    report,
    row,
    view_of,
)


def test_the_time_of_a_read_is_remembered_while_a_processor_waits_for_the_row() -> None:
    """In a group whose members come and go for months there would be thousands."""
    waits = replace(CONTROL, tasks={**CONTROL.tasks, "daily-0": Assignment(owner("p3", 9), (owner("p2"),))})
    view = view_of("p3", read_at={"p1": NOW, "p2": NOW, "left-long-ago": NOW - 9999})
    learn(view, ReadControl(), ControlRead(waits, "waits"), sent_at=NOW, now=NOW)
    assert view.others.read_at == {"p2": NOW}
    learn(view, ReadControl(), ControlRead(CONTROL, "control"), sent_at=NOW, now=NOW)
    assert view.others.read_at == {}


def test_reading_is_asked_for_only_by_those_who_need_it() -> None:
    """A follower that is no successor reads the leader row with each heartbeat, and nothing else."""
    view = view_of("p3", leader_row=replace(LEADER_ROW, successors=("p2",)))
    assert kinds(decide(view, NOW + 1)) == []
    assert kinds(decide(view, NOW + 2)) == [MergeOwnRow, ReadLeaderRow]
    named = view_of("p2")
    assert kinds(decide(named, NOW + 1)) == [ScanMembers]
    assert kinds(decide(named, NOW + 2)) == [MergeOwnRow, ReadLeaderRow, ScanMembers]


def test_a_processor_that_has_just_joined_reads_the_other_rows_only_without_a_leader() -> None:
    """A thousand that join a thousand would otherwise read a million rows."""
    joined = {"control": None, "scanned_at": NOW - 60}
    assert ScanMembers not in kinds(decide(view_of("p3", leader_row=None, **joined), NOW))
    assert ScanMembers in kinds(decide(view_of("p3", leader_row=Missing(), **joined), NOW))


def test_a_successor_reads_at_the_scan_rate_once_the_leader_row_did_not_change() -> None:
    named = view_of("p2")
    learn(named, ReadLeaderRow(), named.others.leader_row, sent_at=NOW, now=NOW)  # type: ignore[arg-type]
    assert kinds(decide(named, NOW + 1)) == [ReadLeaderRow, ScanMembers]
    changed = replace(LEADER_ROW, etag="beats")
    learn(named, ReadLeaderRow(), changed, sent_at=NOW + 1, now=NOW + 1)
    assert ReadLeaderRow not in kinds(decide(named, NOW + 2))


def test_no_processor_of_a_very_large_group_reads_more_than_180_rows_a_second() -> None:
    many = {f"q{number}": row(f"q{number}") for number in range(2_000)}
    view = leader()
    view.others.members = ROWS | many
    assert ScanMembers not in kinds(decide(view, NOW + 11))
    assert ScanMembers in kinds(decide(view, NOW + 2_003 / 180))


CROWD = tuple(member(f"q{number:03}") for number in range(900))


def test_followers_of_a_very_large_group_read_the_control_blob_at_different_times() -> None:
    """A blob answers 500 calls a second: a follower that is no successor reads the leader row each 3.6 s, not each 2 s.
    Its heartbeats stay as they are."""
    follower = view_of("p3", replace(CONTROL, members=CROWD), leader_row=replace(LEADER_ROW, successors=("p2",)))
    assert kinds(decide(follower, NOW + 2)) == [MergeOwnRow]
    assert kinds(decide(follower, NOW + 3.6)) == [MergeOwnRow, ReadLeaderRow]
    named = view_of("p2", replace(CONTROL, members=CROWD))
    assert ReadLeaderRow in kinds(decide(named, NOW + 2))


def test_a_processor_of_a_very_large_group_reads_the_rows_it_waits_for_one_by_one() -> None:
    """A table partition carries 2,000 calls a second. Each of 900 reads one per 3.6 s, the least recently seen."""
    moved = {f"t-{n}": Assignment(owner("p3", 8), after=(owner(f"q{n}"),), first=False) for n in range(2)}
    unnamed = replace(LEADER_ROW, successors=("p2",), version=8)
    for crowd, expected in ((CROWD[:3], ["q0", "q1"]), (CROWD, ["q0"])):
        blob = replace(CONTROL, version=8, revision=10, members=crowd, tasks=moved)
        view = view_of("p3", leader_row=unnamed, scanned_at=NOW - 1)
        learn(view, ReadControl(), ControlRead(blob, "newer"), sent_at=NOW, now=NOW)
        assert [each.processor for each in decide(view, NOW) if isinstance(each, ReadMember)] == expected
    learn(view, ReadMember("q0"), row("q0"), sent_at=NOW, now=NOW)
    assert ReadMember not in kinds(decide(view, NOW + 3.5))
    assert ReadMember("q1") in decide(view, NOW + 3.6)
    learn(view, ReadMember("q1"), row("q1"), sent_at=NOW + 3.6, now=NOW + 3.6)
    assert ReadMember("q0") in decide(view, NOW + 7.2)


def test_processors_of_a_very_large_group_write_news_less_often() -> None:
    """All 900 change their rows with each version; each waits this long after its last write, no longer than a
    heartbeat."""
    news = LocalTask(2, 1, NOW, report("daily-0", batch=7))
    for crowd, gap in ((CROWD[:3], 0.1), (CROWD, 1.5), (CROWD * 9, 2.0)):
        view = view_of("p3", replace(CONTROL, members=crowd), tasks={"daily-0": news})
        assert MergeOwnRow not in kinds(decide(view, NOW + gap - 0.01))
        assert MergeOwnRow in kinds(decide(view, NOW + gap))


def test_the_control_blob_is_read_when_the_leader_row_says_there_is_news() -> None:
    newer = replace(LEADER_ROW, version=11, etag="news")
    assert decide(view_of("p3", leader_row=newer), NOW) == [ReadControl(unless_etag="control")]
    assert signal(CONTROL) == LEADER_ROW.signal
    assert life_of("p3") == "life of p3"


def test_asking_writes_nothing_and_says_when_to_ask_again() -> None:
    view = view_of("p2")
    before = repr(view)
    decision = deciding.decide(view, NOW)
    assert (decision.actions, decision.wake_at) == ([], NOW + 1.0), "it is a successor: it reads the leader row next"
    assert repr(view) == before
