"""The Python functions that Spark has pickled into a plan, made again in this process."""

import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pyspark import cloudpickle

_CLOUDPICKLE: Any = cloudpickle.cloudpickle  # untyped
#: Its dictionaries of the classes that were pickled, or made from a pickle.
_CLASSES = ("_DYNAMIC_CLASS_TRACKER_BY_CLASS", "_DYNAMIC_CLASS_TRACKER_BY_ID")


def function_of(udf: Any) -> Any:
    """A copy of the Python function that Spark has pickled. None: it is not in the plan, or cannot be made here."""
    try:
        with _classes_apart():
            return pickle.loads(udf.func().command().unsafeArray())[0]  # noqa: S301  # by this process, of this stage
    except Exception:  # noqa: BLE001  # the user's code may do anything
        return None


def machine_of(node: Any) -> Any:
    """A copy of what the plan of a transformWithState calls. None: it is not in the plan, or cannot be made here."""
    return getattr(getattr(function_of(node.functionExpr()), "__self__", None), "_stateful_processor", None)


@contextmanager
def _classes_apart() -> Iterator[None]:
    """Let cloudpickle make classes anew. It would find those of this process, and set their attributes to what is sent
    to workers, which lacks the session's objects.
    """
    known = {name: getattr(_CLOUDPICKLE, name) for name in _CLASSES}
    for name, each in known.items():
        setattr(_CLOUDPICKLE, name, type(each)())
    try:
        yield
    finally:
        for name, each in known.items():
            setattr(_CLOUDPICKLE, name, each)
