"""What a pipeline is made of: functions of DataFrames, named streams between them.

Nothing here knows Spark: the functions are kept, not called.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from samza_azure.errors import PipelineRefused

StageFunction = TypeVar("StageFunction", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Stage:
    """One DataFrame -> DataFrame function, the streams it reads, the stream it writes."""

    name: str
    inputs: tuple[str, ...]
    output: str
    partition_by: tuple[str, ...]
    output_mode: Literal["append", "update"]
    function: Callable[..., Any]
    tasks: int | None = None


class Application:
    """A pipeline. Stages are registered by decorating their functions."""

    def __init__(self) -> None:
        self.stages: list[Stage] = []

    def stage(
        self,
        *inputs: str,
        output: str,
        partition_by: str | Sequence[str] = (),
        output_mode: Literal["append", "update"] = "append",
        tasks: int | None = None,
    ) -> Callable[[StageFunction], StageFunction]:
        """Register a function of as many DataFrames as there are inputs, in that order.

        `partition_by` names the columns whose values decide the partition of the output stream; without it the
        stage writes one partition per task, for `export` and other readers outside the pipeline.
        `tasks` is the number of tasks that share the partitions of the inputs; without it `task.count` says so, or
        there is one per partition. What has to see all rows, as an aggregate without a key, runs on one.
        """
        keys = (partition_by,) if isinstance(partition_by, str) else tuple(partition_by)

        def register(function: StageFunction) -> StageFunction:
            self._add(Stage(function.__name__, inputs, output, keys, output_mode, function, tasks))
            return function

        return register

    def _add(self, stage: Stage) -> None:
        if not stage.inputs:
            raise PipelineRefused(f'Stage {stage.name} reads no stream. Name one: @app.stage("input", output=…).')
        if stage.output_mode not in ("append", "update"):
            raise PipelineRefused(
                f"Stage {stage.name} has output mode {stage.output_mode!r}. Use 'append' or 'update': "
                "with any other each batch would be the whole table."
            )
        if stage.tasks is not None and (type(stage.tasks) is not int or stage.tasks < 1):
            raise PipelineRefused(f"Stage {stage.name} has tasks={stage.tasks!r}. Use a whole number from 1 on.")
        for other in self.stages:
            if other.name == stage.name:
                raise PipelineRefused(f"Two stages are called {stage.name}. Rename one of the functions.")
            if other.output == stage.output:
                raise PipelineRefused(
                    f"Stages {other.name} and {stage.name} both write the stream {stage.output!r}. "
                    "Give each an output of its own."
                )
        self.stages.append(stage)
