"""What an error of Spark's or of Java's says beside its English."""

from typing import Any

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException

#: What calls to a JVM raise that ends meanwhile, for example without memory: its connections break first.
BROKEN = (Py4JError, ConnectionError)


def condition_of(error: BaseException) -> str:
    """Spark's name of an error's kind. Empty: it has none."""
    return (isinstance(error, PySparkException) and error.getCondition()) or ""


def parameters_of(error: BaseException) -> dict[str, str]:
    """What the message of an error of Spark's is about, by the names that its condition gives them."""
    return (isinstance(error, PySparkException) and error.getMessageParameters()) or {}


def is_of_java(error: BaseException) -> bool:
    """Whether it has the text of an error of Java, with its stack."""
    return isinstance(error, Py4JJavaError)


def message_of(error: BaseException) -> str:
    """What an error says. The text of an error of Java names a call of py4j first, and goes on with Java's stack."""
    if not isinstance(error, Py4JJavaError):
        return str(error)
    return str(error.java_exception.getMessage() or error.java_exception)


def plan_of_error(error: BaseException) -> Any:
    """The operator that Spark refuses. None: it does not say."""
    try:
        plan = error._origin.plan()  # type: ignore[attr-defined]
        return plan.get() if plan.isDefined() else None
    except Exception:  # noqa: BLE001  # an error of Java that is about no plan
        return None
