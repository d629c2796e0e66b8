"""The kinds of tasks. Only this file knows which classes there are: a new kind is a file, a value of `TaskKind`
with its facts, a line here, and the stage that `pipeline` adds for it.

A class is imported when the first task of its kind is made, so a container loads only what its pipeline needs.
"""

from importlib import import_module
from typing import cast

from samza_azure.messages import StartTask, TaskKind
from samza_azure.tasks.context import ContainerContext
from samza_azure.tasks.life import TaskLife

CLASSES = {
    TaskKind.QUERY: "samza_azure.spark.query.task:QueryTask",  # by name: nothing here leans on Spark
    TaskKind.HANDLER: "samza_azure.tasks.handler_task:HandlerTask",
    TaskKind.TABLE: "samza_azure.tasks.table_task:TableTask",
    TaskKind.FILES: "samza_azure.tasks.delivery_task:DeliveryTask",
    TaskKind.OUTLET: "samza_azure.tasks.outlet_task:OutletTask",
    TaskKind.SOURCE: "samza_azure.tasks.source_task:SourceTask",
}


def task_of(context: ContainerContext, start: StartTask, tried_bytes: int | None = None) -> TaskLife:
    """Make a task of the stage's kind. `tried_bytes` of input in one batch were too much for this machine before."""
    module, _, name = CLASSES[context.pipeline.plan.stage_of(start.task).kind].partition(":")
    return cast(TaskLife, getattr(import_module(module), name)(context, start, tried_bytes))
