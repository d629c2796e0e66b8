"""What a task that failed says, and what is left out."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from py4j import java_gateway
from pyspark import cloudpickle
from pyspark.errors import PySparkException, PythonException, StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from samza_azure.errors import ConfigError
from samza_azure.tasks.failure import drop_frames, in_short, reported
from samza_azure.user_code import is_ours

_CLOUDPICKLE: Any = cloudpickle.cloudpickle  # untyped


@pytest.fixture(autouse=True)
def by_value() -> Iterator[None]:
    """Functions go to Python workers as those of a user's module do."""
    _CLOUDPICKLE.register_pickle_by_value(sys.modules[__name__])
    yield
    _CLOUDPICKLE.unregister_pickle_by_value(sys.modules[__name__])


def helper(text: str) -> int:
    return int(text)


def number(text: str, unit: str | None) -> int:
    return helper(text)


def replaced(text: str) -> int:
    text = f"{text}{text}"
    return int(text)


def doubled(values: pd.Series) -> pd.Series:
    raise ValueError("no doubles today")


def of_many(*values: object) -> int:
    raise KeyError("a")


class Odd:
    """A value that cannot be shown."""

    def __repr__(self) -> str:
        raise RuntimeError


def with_defaults(text: str, odd: Odd = Odd(), *, base: int = 10) -> int:  # noqa: B008
    return int(text, base)


@pytest.mark.parametrize(
    ("function", "columns", "said", "where", "called_with"),
    [
        (number, ["text", None], "ValueError: invalid literal", "helper", "text='x7', unit=None"),
        (replaced, ["text"], "ValueError: invalid literal", "replaced", "text='x7x7'"),
        (doubled, ["n"], "ValueError: no doubles today", "doubled", "values=0 1.5 Name: _0, dtype: float64"),
        (of_many, ["text", "n"], "KeyError: 'a'", "of_many", "values=('x7', 1.5)"),
        (with_defaults, ["text"], "ValueError: invalid literal", "with_defaults", "text='x7', base=10"),
        (lambda text: helper(f"{text}!"), ["text"], "ValueError: invalid literal", "helper", "text='x7'"),
    ],
)
def test_a_function_of_the_users_is_named_with_the_values_it_was_called_with(
    spark: SparkSession, function: Any, columns: list[str | None], said: str, where: str, called_with: str
) -> None:
    rows = spark.createDataFrame([("x7", 1.5)], "text string, n double")
    make = F.pandas_udf if function is doubled else F.udf
    call = make(function, "double")  # type: ignore[call-overload]

    with pytest.raises(PySparkException) as raised:
        rows.select(call(*(F.lit(None) if name is None else F.col(name) for name in columns))).collect()

    first, second, third = in_short(raised.value).splitlines()
    assert first.startswith(said)
    assert second.startswith(f"in {where}, {Path(__file__)}, line ")
    assert third == f"Called with {called_with}"


def test_long_values_are_cut(spark: SparkSession) -> None:
    rows = spark.createDataFrame([("x" * 5_000,)], "text string")

    with pytest.raises(PySparkException) as raised:
        rows.select(F.udf(of_many, "int")(*["text"] * 20)).collect()

    assert len(in_short(raised.value).splitlines()[-1]) <= 520


WORKER = """An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "{folder}/pipeline.py", line 8, in price
    return float(text)
           ^^^^^^^^^^^
  File "{folder}/common.py", line 3, in checked
  File "{library}", line 90, in inner
    raise ValueError(
ValueError: two lines
    of a message
Called with text='a'
"""


def test_the_innermost_line_of_the_users_code_is_named(tmp_path: Path) -> None:
    """Also where its source is not at hand, and a library raises the error; Java's frames are no part of it."""
    error = PythonException(
        WORKER.format(library=pd.__file__, folder=tmp_path) + "\n\tat py4j.Protocol\n\tat java.Thread"
    )

    assert in_short(error).splitlines() == [
        "ValueError: two lines",
        "    of a message",
        f"in checked, {tmp_path}/common.py, line 3",
        "Called with text='a'",
    ]


@pytest.mark.parametrize(
    ("error", "short"),
    [
        (
            StreamingQueryException("Broken pipe\n=== Streaming Query ===\nIdentifier: clean-0\nLogical Plan: …"),
            "StreamingQueryException: Broken pipe",
        ),
        (PythonException('An exception was thrown from the Python worker:\n  File "<string>", line 1, in f\nE'), None),
        (PythonException("An exception was thrown from the Python worker:\n"), None),
        (ConfigError("Name a stream."), "Name a stream."),
        (KeyError("a"), "KeyError: 'a'"),
        (
            ValueError("[STATEFUL_PROCESSOR_INCORRECT_TIME_MODE_TO_ASSIGN_TTL] use TimeMode.ProcessingTime()"),
            (
                "ValueError: [STATEFUL_PROCESSOR_INCORRECT_TIME_MODE_TO_ASSIGN_TTL] use TimeMode.ProcessingTime()\n"
                "State that expires by the clock is refused: "
                'use timeMode "EventTime" and a timer that clears the state.'
            ),
        ),
        (OSError(), "OSError: "),
    ],
)
def test_other_errors_are_named_with_their_kind(error: Exception, short: str | None) -> None:
    assert in_short(error) == (short if short is not None else f"PythonException: {error}")


LOST = (
    "An error occurred while calling o1897.onDisk.\n: Job aborted due to stage failure: Task 0 in stage 3.0 failed 4 "
    "times, most recent failure: Lost task 0.3 in stage 3.0 (TID 9) (127.0.0.2 executor 0): "
)
NO_PYTHON = 'java.io.IOException: Cannot run program "python3": error=2, No such file or directory'
ANOTHER = (
    "PySparkRuntimeError: [PYTHON_VERSION_MISMATCH] Python in worker has different version: 3.12 than that in driver"
)


@pytest.mark.parametrize(
    ("of_spark", "advice", "where"),
    [
        (
            f"{LOST}{NO_PYTHON}\n\tat java.base/java.lang.ProcessBuilder.start(ProcessBuilder.java:1143)"
            + "\n\tat x" * 999,
            "An executor runs Python functions with the python3 on its PATH, and there is none.",
            f"Lost task 0.3 in stage 3.0 (TID 9) (127.0.0.2 executor 0): {NO_PYTHON}",
        ),
        (
            f"{WORKER.partition('  File')[0]}{ANOTHER}\nPlease check environment variables PYSPARK_PYTHON",
            "The python3 on the PATH of an executor is another one than the processor's.",
            ANOTHER,
        ),
    ],
)
def test_of_an_executor_without_the_processors_python_it_says_what_to_do_first(
    of_spark: str, advice: str, where: str
) -> None:
    """Java's stack would leave no room for it. `end_to_end/clusters.py:play_without_python` has the real thing."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    to_do = (
        f"Put Python {version} with pyarrow and what the functions import first on the PATH of each worker, as "
        "samza-azure worker does, or of the image of pods."
    )
    assert in_short(StreamingQueryException(of_spark)).splitlines()[:2] == [f"{advice} {to_do}", where]


@pytest.mark.parametrize(
    ("name", "has"),
    [
        ("executors-need-java-17-and-this-is-java-25", "Java 25"),
        ("executors-need-java-17", "no Java that says its version"),
    ],
)
def test_of_an_executor_with_another_java_it_says_what_has_to_change(name: str, has: str) -> None:
    said = f"java.io.IOException: Server returned HTTP response code: 403 for URL: http://10.0.0.4:7080/{name}"
    first, where = in_short(StreamingQueryException(f"{LOST}{said}" + "\n\tat x" * 999)).splitlines()
    assert first.startswith(f"An executor has {has}, and the processor has Java 17. ")
    assert first.endswith("change that of all processors and workers.")
    assert where == f"Lost task 0.3 in stage 3.0 (TID 9) (127.0.0.2 executor 0): {said}"


@pytest.mark.parametrize("why", ["error=12, Cannot allocate memory", "error=13, Permission denied"])
def test_a_python_that_is_there_and_does_not_start_is_not_called_missing(why: str) -> None:
    of_spark = f'{LOST}java.io.IOException: Cannot run program "python3": {why}'
    assert in_short(StreamingQueryException(of_spark)) == f"StreamingQueryException: {of_spark}"


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        ("/srv/shop/pipeline.py", True),
        ("/srv/ann/.local/lib/python3.11/site-packages/py4j/java_gateway.py", False),  # pip install --user
        ("/usr/lib/python3/dist-packages/numpy/__init__.py", False),
        (java_gateway.__file__, False),
        ("<string>", False),
    ],
)
def test_installed_packages_are_not_the_users_code(file: str, expected: bool) -> None:
    assert is_ours(file) is expected


def test_a_reported_error_has_a_bounded_length_and_no_secret() -> None:
    error = ValueError("a secret " * 4_000)

    found = reported(error, lambda text: text.replace("secret", "***"))

    assert len(found.message) == 4_096
    assert len(found.traceback) == 12_288
    assert "secret" not in found.message + found.traceback


def test_the_frames_of_causes_that_form_a_circle_are_dropped_once() -> None:
    """It went round forever, in a thread of its own for each failed try."""
    first, second = ValueError("first"), KeyError("second")
    first.__cause__, second.__cause__ = second, first
    drop_frames(first)
    try:
        raise first from first
    except ValueError as error:
        drop_frames(error)
    drop_frames(None)
