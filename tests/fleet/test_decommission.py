"""Processors that are told that they will go, as processes on Azurite; each log is exact all along."""

from typing import Any

import pytest

from samza_azure.commands.requests import answer_to, ask_notice
from samza_azure.group.requests import ACCEPTED, STAYS
from samza_azure.group.rows import RequestKind

from .group_members import GroupOnAzurite, incarnations, undisturbed


def ask(group: GroupOnAzurite, name: str, kind: RequestKind, answer: str) -> None:
    """Ask the leader, as the command does, and wait until it has obeyed."""
    rows = group.account.rows()
    asked = group.runner.run(ask_notice(rows, kind, incarnations(group.status())[name]))
    said = {"": ""}

    def is_answered() -> bool:
        said[""] = group.runner.run(answer_to(rows, asked.key)) or ""
        return said[""] == answer

    group.until(lambda: f"the answer was {said['']!r}", is_answered)


def of(shown: dict[str, Any], name: str) -> dict[str, Any]:
    found: dict[str, Any] = next(each for each in shown["processors"] if each["id"] == name)
    return found


@pytest.mark.parametrize("leads", [True, pytest.param(False, marks=pytest.mark.long)], ids=["the leader", "a follower"])
def test_a_processor_hands_over_all_it_has_stays_without_tasks_and_comes_back(
    group: GroupOnAzurite, leads: bool
) -> None:
    before = group.settled()
    victim = before["leader"] if leads else group.followers[0]
    had = of(before, victim)["tasks"]
    ask(group, victim, RequestKind.DECOMMISSION, ACCEPTED)
    shown = before

    def is_done() -> bool:
        nonlocal shown
        shown = group.status()
        runs = all(task["owner"] != victim and task["phase"] == "RUNNING" for task in shown["tasks"])
        return of(shown, victim)["decommission"]["state"] == "DECOMMISSIONED" and runs

    group.until(lambda: str(shown), is_done)
    going = of(shown, victim)["decommission"]
    assert (going["tasks"], going["handed_over"], going["left"]) == (len(had), len(had), {})
    assert undisturbed(before, shown) == {task["name"] for task in before["tasks"]} - set(had)
    assert shown["leader"] != victim
    group.exact(shown)
    ask(group, victim, RequestKind.RECOMMISSION, STAYS)
    after = group.settled()
    assert incarnations(after) == incarnations(before)
    assert "schedulable" in [each["kind"] for each in after["events"]]
