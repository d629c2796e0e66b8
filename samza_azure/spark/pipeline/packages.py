"""Packages that pyspark asks for only when a stage uses them. Which one is missing is said at the start.

pyspark notices a missing pandas when the DataFrame is made, and a missing protobuf when the first batch dies.
"""

import importlib
from collections.abc import Iterable
from typing import Any

from samza_azure.application import Stage
from samza_azure.errors import PipelineRefused

#: As in pyproject.toml.
PANDAS, PROTOBUF = "pandas>=2.2,<3", "protobuf>=6.33.5"
#: What the messages between a transformWithState and its Python process are made of.
_MESSAGES = "pyspark.sql.streaming.proto.StateMessage_pb2"


def check_packages(stage: Stage, nodes: Iterable[Any]) -> None:
    """Refuse a plan with an operator whose package is missing or too old."""
    kinds = (str(node.getClass().getSimpleName()) for node in nodes)
    if not any(kind.startswith("TransformWithState") for kind in kinds):
        return
    try:
        importlib.import_module(_MESSAGES)
    except Exception as error:
        raise PipelineRefused(
            f"Stage {stage.name} uses transformWithState, which needs the package protobuf ({error}). "
            f"Run on each machine: pip install '{PROTOBUF}'"
        ) from error
