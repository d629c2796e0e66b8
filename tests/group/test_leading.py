"""The leader's turn: it renews, it finds out that it no longer leads, it hands over."""

from dataclasses import replace

from samza_azure.group.actions import (
    AcquireLease,
    MarkDead,
    ReadControl,
    ReadLeaderRow,
    ReadRequests,
    ReleaseLease,
    RenewLease,
    StepDown,
    WriteControl,
    WriteLeaderRow,
)
from samza_azure.group.age import Age
from samza_azure.group.answers import ControlRead
from samza_azure.group.control import Control, signal
from samza_azure.group.decide import lead
from samza_azure.group.learn import learn, perform_locally
from samza_azure.group.rows import Request, RequestKind
from samza_azure.group.view import Campaign, Failing, Leadership, Lease
from samza_azure.outcomes import Refused
from tests.group.situation import (
    CONTROL,
    LEADER_ROW,
    NOW,
    decide,
    kinds,
    leader,
    life_of,
    view_of,
)
from tests.group.transcript import Story


def test_a_write_whose_answer_was_lost_is_settled_by_reading() -> None:
    won = replace(CONTROL, revision=10, nonce="ours")
    view = leader(unsettled=WriteControl(won, "control", "lease"))
    assert ReadControl(lease_id="lease") in decide(view, NOW)
    learn(view, ReadControl(lease_id="lease"), ControlRead(won, "newer"), sent_at=NOW, now=NOW)
    assert (view.leads, view.calls.unsettled, view.control, view.own.control_etag) == (True, None, won, "newer")


def test_a_leader_with_nothing_to_do_waits() -> None:
    assert decide(leader(), NOW + 0.05) == []


def test_a_leader_renews_its_lease_and_steps_down_before_the_service_can_end_it() -> None:
    assert RenewLease("lease") in decide(leader(), NOW + 20)
    assert StepDown in kinds(decide(leader(), NOW + 55))
    view = leader()
    learn(view, RenewLease("lease"), None, sent_at=NOW + 20, now=NOW + 23)
    assert view.lease == Lease("lease", NOW + 20)


def test_a_leader_whose_renewal_is_refused_no_longer_acts_as_leader() -> None:
    view = leader()
    learn(view, RenewLease("lease"), Refused("LeaseIsBrokenAndCannotBeRenewed"), sent_at=NOW, now=NOW)
    assert not view.leads
    as_leader = {RenewLease, WriteLeaderRow, WriteControl, MarkDead, ReadRequests, ReleaseLease}
    assert as_leader.isdisjoint(kinds(decide(view, NOW + 3)))


def test_a_leader_that_sees_a_later_epoch_in_the_leader_row_asks_whether_its_lease_still_holds() -> None:
    view = leader(leader_row=replace(LEADER_ROW, epoch=4))
    assert decide(view, NOW) == [ReadControl(lease_id="lease")]
    learn(view, ReadControl(lease_id="lease"), Refused("LeaseIdMismatchWithBlobOperation"), sent_at=NOW, now=NOW)
    assert not view.leads


def test_a_leader_row_with_a_wrong_epoch_is_overwritten() -> None:
    lie = replace(LEADER_ROW, epoch=1 << 40, etag="lie")
    view = leader(leader_row=lie)
    learn(view, ReadControl(lease_id="lease"), ControlRead(CONTROL, "control"), sent_at=NOW, now=NOW + 0.05)
    (written,) = [action for action in decide(view, NOW + 0.1) if isinstance(action, WriteLeaderRow)]
    assert (written.row.epoch, written.etag) == (3, "lie")


def test_a_leader_that_cannot_act_hands_over_to_a_live_processor_that_can() -> None:
    unable: dict[str, object] = {"plan": None, "since": NOW - 5}
    view = leader(**unable, seen_alive=frozenset({life_of("p3")}))
    [write] = [action for action in lead(view, NOW) if isinstance(action, WriteControl)]
    assert (write.control.leader, write.control.successor) == (None, "p3")
    assert lead(leader(**unable), NOW + 2), "nobody was heard: it goes on as well as it can"
    silent = {"p3": Age("row of p3", 5.0, 5, NOW)}
    for other in (
        leader(**unable),
        leader(plan=None, since=NOW - 4.9, seen_alive=view.others.seen_alive),
        leader(since=NOW - 5, seen_alive=view.others.seen_alive),
        leader(**unable, seen_alive=view.others.seen_alive, ages=silent),
    ):
        assert WriteControl not in kinds(lead(other, NOW))
    failing = {"control": Failing(1, NOW + 9)}
    away = leader(**unable, seen_alive=view.others.seen_alive, failing=failing, leader_row_sent_at=NOW - 2)
    assert WriteLeaderRow in kinds(lead(away, NOW)), "the blob is away: it beats on"
    lost = leader(**unable, seen_alive=view.others.seen_alive, unsettled=write)
    assert lead(lost, NOW) == [ReadControl(lease_id="lease")]


def test_a_leader_that_handed_over_releases_the_lease_and_lets_the_successor_lead(story: Story) -> None:
    story.remark("p1 leads, and its container has not come up for 5 s. p3 has a pipeline and was just heard.")
    view = leader(plan=None, since=NOW - 5, seen_alive=frozenset({life_of("p3")}))
    story.turn(view, NOW, {WriteControl: "vacant", RenewLease: None})
    vacant = view.control
    assert isinstance(vacant, Control)
    assert (view.leads, vacant.leader, vacant.successor) == (False, None, "p3")
    story.turn(view, NOW + 0.1, {WriteLeaderRow: "vacated", ReleaseLease: None})

    assert AcquireLease not in kinds(story.turn(view, NOW + 1.9))

    successor = view_of("p3")
    row_ = replace(LEADER_ROW, signal=signal(vacant), control_etag="vacant", beat=71, etag="vacated")
    story.turn(successor, NOW + 2, {ReadLeaderRow: row_})
    story.turn(successor, NOW + 2, {ReadControl: ControlRead(vacant, "vacant")})
    story.turn(successor, NOW + 2, {AcquireLease: None})
    story.turn(successor, NOW + 2, {ReadControl: ControlRead(vacant, "vacant")})
    story.turn(successor, NOW + 2, {WriteControl: "taken"})
    assert successor.leads


def test_a_leader_that_led_before_knows_nothing_of_its_former_leadership() -> None:
    """Requests that it had read then used to be answered again, under ETags of that time."""
    view = leader(requests=(Request("d", "etag", RequestKind.DRAIN),), clean_tries=3)
    perform_locally(view, StepDown("The lease was not renewed in time."), NOW)
    assert view.leadership is None
    view.candidacy.campaign = Campaign("control", lease=Lease("won", NOW + 50), read=True)
    won = replace(CONTROL, epoch=4, revision=10)
    learn(view, WriteControl(won, "control", "won"), "newer", sent_at=NOW + 51, now=NOW + 51)
    assert view.leadership == Leadership(Lease("won", NOW + 50), since=NOW + 51, barrier_since=NOW + 51)
