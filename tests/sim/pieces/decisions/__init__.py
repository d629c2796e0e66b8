"""What a processor decides, question by question, for a drawn state of what it knows.

Part of `pieces`. A fleet meets few of the states that are possible. Here any is drawn, and each question is answered a
second time, as plainly as its description: who may lead, what is asked of the leader, what a drain waits for, when a
task may start, who is too silent. Times are small numbers, so that equal ones are drawn, too.
"""

from random import Random

from samza_azure.group.control import Control

from .drain import check_drain
from .drawn import Drawn
from .election import check_election
from .ending import check_ending
from .history import check_history
from .housekeeping import check_house
from .membership import check_members
from .next_run import check_runs
from .publish import check_publish
from .requests import check_requests
from .tasks import check_tasks
from .view import check_view


def check_decisions(dice: Random) -> None:
    """Plain: each question, for some states."""
    drawn = Drawn(dice)
    for _ in range(6):
        view = drawn.view()
        control = view.control if isinstance(view.control, Control) else drawn.control()
        view.life.control = control if dice.random() < 0.6 else view.life.control
        check_view(view)
        check_requests(drawn, view, control)
        check_drain(drawn, view, control)
        check_runs(view, control)
        check_tasks(view)
        check_election(view, control)
        check_house(view, control)
        check_members(view, control)
        check_ending(drawn, view)
        check_publish(drawn, view, control)
        check_history(drawn, view, control)


__all__ = ["check_decisions"]
