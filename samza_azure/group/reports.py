"""The report of a task's current owner.

A row may still report tasks that its processor had before, in this incarnation or an earlier one. Only the report of
the incarnation and generation that the control blob names counts. This is the only place where that is decided.
"""

from collections.abc import Mapping

from samza_azure.group.control import Owner
from samza_azure.group.rows import ProcessorRow
from samza_azure.messages import TaskReport


def counts(owner: Owner | None, row: ProcessorRow, report: TaskReport) -> bool:
    """Whether this report in this row is that of the task's owner."""
    if owner is None or row.processor != owner.processor:
        return False
    return row.incarnation == owner.incarnation and report.generation == owner.generation


def report_of(task: str, owner: Owner | None, rows: Mapping[str, ProcessorRow]) -> TaskReport | None:
    """The report of the task's owner. None if there is no owner, or if it has not reported yet."""
    row = rows.get(owner.processor) if owner is not None else None
    report = row.tasks.get(task) if row is not None else None
    return report if row is not None and report is not None and counts(owner, row, report) else None
