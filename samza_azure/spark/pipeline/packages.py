"""Check at the start for packages that pyspark imports only when a stage uses them.

pyspark notices a missing pandas when the DataFrame is created, and a missing protobuf only when the first batch fails.
"""

import importlib
from collections.abc import Iterable
from typing import Any

from samza_azure.application import Stage
from samza_azure.errors import PipelineRefused

#: As in pyproject.toml.
PANDAS, PROTOBUF = "pandas>=2.2,<3", "protobuf>=6.33.5"
#: The messages between transformWithState and its Python process.
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
