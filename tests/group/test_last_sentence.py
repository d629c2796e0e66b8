"""What a processor that was asked to leave says in the end is what came of it, also when the storage is away."""

from dataclasses import replace

from samza_azure.group.actions import Finish, MergeOwnRow, Tell
from samza_azure.group.ending import FAREWELL_S, HANDED_OVER
from samza_azure.group.rows import ProcessorState
from samza_azure.group.tasks import PATIENCE
from samza_azure.group.view import LocalTask, View
from samza_azure.messages import Permit, Phase
from tests.group.situation import NOW, decide, report, view_of


def leaving(phase: Phase, *, left: bool) -> View:
    """p3, asked to leave long ago, with its one task in this phase."""
    view = view_of("p3", leaving=True, ending=Finish(0, HANDED_OVER), ending_since=NOW - 1_000)
    assert view.life.found is not None
    written = replace(view.life.found, state=ProcessorState.LEFT if left else ProcessorState.LEAVING)
    view.life.written = written
    view.work.tasks = {"daily-0": LocalTask(2, 1, NOW - 2_000, report("daily-0", phase), releasing_since=NOW - 1_000)}
    assert PATIENCE * view.settings.shutdown_s + FAREWELL_S < 1_000
    return view


def said(view: View) -> str:
    *_, finish = decide(view, NOW)
    assert isinstance(finish, Finish) and finish.code == 0
    return finish.message


def test_a_hand_over_that_was_heard_is_one() -> None:
    assert said(leaving(Phase.RELEASED, left=True)) == HANDED_OVER


def test_where_the_storage_took_no_last_word_nobody_was_told() -> None:
    text = said(leaving(Phase.RELEASED, left=False))
    assert text == (
        "Left the group, but could not write this to the storage: the others do not know; others get daily-0 when it "
        "has been silent for 8 s."
    )


def test_what_did_not_end_in_time_appends_nothing_after_the_last_word() -> None:
    """A clock that jumped ended the patience; LEFT was written, and the task went on until its container was gone."""
    view = leaving(Phase.RUNNING, left=False)
    view.ending_since = NOW - 10
    permit, last_word = (action for action in decide(view, NOW) if isinstance(action, Tell | MergeOwnRow))
    assert permit == Tell(Permit(0.0))
    assert isinstance(last_word, MergeOwnRow) and last_word.row.state is ProcessorState.LEFT


def test_a_task_that_did_not_end_is_named_and_its_doubt_with_it() -> None:
    text = said(leaving(Phase.RUNNING, left=False))
    assert "the others do not know" in text
    assert "daily-0 did not end in time; the next owner finds in the log whether the last batch is stored." in text
    assert said(leaving(Phase.RUNNING, left=True)).startswith("Left the group. daily-0 did not end in time")
