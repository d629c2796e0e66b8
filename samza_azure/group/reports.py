"""What a task's present owner says of it.

A row may still tell of tasks that its processor had, in this life or a former one. Only the word of the very life and
generation that the control blob names counts: the one place where that is decided.
"""

from collections.abc import Mapping

from samza_azure.group.control import Owner
from samza_azure.group.rows import ProcessorRow
from samza_azure.messages import TaskReport


def counts(owner: Owner | None, row: ProcessorRow, report: TaskReport) -> bool:
    """Whether this report in this row is the word of the task's owner."""
    if owner is None or row.processor != owner.processor:
        return False
    return row.incarnation == owner.incarnation and report.generation == owner.generation


def report_of(task: str, owner: Owner | None, rows: Mapping[str, ProcessorRow]) -> TaskReport | None:
    """What the task's owner says of it; None if nobody owns it, or the owner has not said anything yet."""
    row = rows.get(owner.processor) if owner is not None else None
    report = row.tasks.get(task) if row is not None else None
    return report if row is not None and report is not None and counts(owner, row, report) else None
