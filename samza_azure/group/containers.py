"""Whose tasks move because a container has ended or hangs, and whose wait for the next one.

The next container needs a start of Java. A task moves in a few seconds, so it goes to a processor that has a container.
There it stays: when the first processor has a container again, the tasks are balanced as after a join.
"""

from collections.abc import Mapping

from samza_azure.group.control import Control
from samza_azure.group.moment import reached
from samza_azure.group.rows import ProcessorRow, ProcessorState
from samza_azure.group.view import View


def ready(able: Mapping[str, ProcessorRow]) -> Mapping[str, ProcessorRow]:
    """Those that have a container; all of them if none has one."""
    return {processor: row for processor, row in able.items() if not row.no_container} or able


def awaited(view: View, control: Control, able: Mapping[str, ProcessorRow], now: float) -> set[str]:
    """The tasks that stay with their owner for now, although it or the only other processor has no container.

    They move after `job.coordinator.debounce`, since the next container may be quick. If all containers start again at
    once, the first one that is ready must not get everything: there is somebody to move to only when one has had its
    container for a death timeout, the time for which the tasks of a dead processor wait as well.
    A task that each processor with a container has given up waits, too: these would fail it again and again.
    """
    missing = {processor for processor, row in able.items() if row.no_container}
    if not missing:
        return set()
    somebody = any(_settled(view, row, now) for processor, row in able.items() if processor not in missing)
    stay = {processor for processor in missing if not (somebody and _is_over(view, able[processor], now))}
    there = able.keys() - missing
    gave_up = {task for task, each in control.given_up.items() if there <= {each.owner.processor}}
    owned = {
        task: each.owner
        for task, each in control.tasks.items()
        if each.owner is not None
        and each.owner.processor in able
        and able[each.owner.processor].incarnation == each.owner.incarnation
    }
    return {task for task, owner in owned.items() if owner.processor in stay or task in gave_up}


def kept(view: View, control: Control, able: Mapping[str, ProcessorRow]) -> set[str]:
    """The tasks that stay with an owner that will go, for as long as no other processor has a container to run them."""
    if any(not row.no_container for row in ready(able).values()):
        return set()
    return {
        task
        for task, each in control.tasks.items()
        if each.owner is not None
        and (row := view.present.get(each.owner.processor)) is not None
        and row.incarnation == each.owner.incarnation
        and _will_stay(row, control)
        and not row.no_container
    }


def _will_stay(row: ProcessorRow, control: Control) -> bool:
    """Whether it goes only with its machine. One that the blob asks to go just now has not read that yet."""
    if row.state is not ProcessorState.LEAVING:
        return row.incarnation in control.noticed
    return row.going is not None and row.going.stays


def _settled(view: View, row: ProcessorRow, now: float) -> bool:
    """Whether it has had a container for long enough that others, which lost theirs with it, would have one, too."""
    seen = view.others.containers.get(row.incarnation)
    if seen is None:
        return True
    return seen.ready and reached(seen.since + view.timing.heartbeat_timeout_s, now)


def _is_over(view: View, row: ProcessorRow, now: float) -> bool:
    """Whether it has had no container for the debounce."""
    seen = view.others.containers.get(row.incarnation)
    return seen is not None and not seen.ready and reached(seen.since + view.timing.debounce_s, now)
