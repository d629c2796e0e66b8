"""Which packages are missing, and the command that installs them.

Some are checked at the start, since pyspark imports them only when a stage uses them.
pyspark notices a missing pandas when the DataFrame is created, and a missing protobuf only when the first batch fails.
"""

import importlib
from collections.abc import Iterable
from typing import Any

from samza_azure.application import Stage
from samza_azure.errors import PipelineRefused

#: The extra of `samza-azure` that brings a package in a version that fits, by what is imported.
EXTRAS = {"pandas": "pandas", "google.protobuf": "spark", "pyspark": "spark"}
#: The messages between transformWithState and its Python process.
_MESSAGES = "pyspark.sql.streaming.proto.StateMessage_pb2"


def to_install(module: str) -> str:
    """What to run if a module is missing, or is too old or too new."""
    extra = next((extra for name, extra in EXTRAS.items() if f"{module}.".startswith(f"{name}.")), None)
    wanted = f"samza-azure[{extra}]" if extra else module.partition(".")[0]
    return f"Run on each machine: pip install '{wanted}'"


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
            + to_install("google.protobuf")
        ) from error
