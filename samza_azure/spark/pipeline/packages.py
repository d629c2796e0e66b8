"""Packages that pyspark asks for only when a stage uses them. Which one is missing is said at the start.

pyspark notices a missing pandas when the DataFrame is made, and a missing protobuf when the first batch dies.
"""

import importlib
import traceback
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyspark
from pyspark.errors import PySparkImportError

from samza_azure.application import Stage
from samza_azure.errors import PipelineRefused

#: As in pyproject.toml.
PANDAS, PROTOBUF = "pandas>=2.2,<3", "protobuf>=6.33.5"
#: What the messages between a transformWithState and its Python process are made of.
_MESSAGES = "pyspark.sql.streaming.proto.StateMessage_pb2"
_PYSPARK = str(Path(pyspark.__file__).parent)


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


def in_one_sentence(error: BaseException) -> str:
    """An error of the user's code. If pyspark lacks pandas for it: which operator needs that, and the line to run."""
    if not isinstance(error, PySparkImportError) or "pandas" not in str(error).lower():
        return f"{type(error).__name__}: {error}"
    frames = traceback.extract_tb(error.__traceback__)
    operator = next((frame.name for frame in frames if frame.filename.startswith(_PYSPARK)), "a function")
    return f"{operator} needs the package pandas ({error}) Run on each machine: pip install '{PANDAS}'"
