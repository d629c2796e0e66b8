"""A jar of classes that a container would otherwise compile, and of Janino, which compiles them and Spark's own.

Janino's jars are signed, and Java keeps no class of a signed jar in its archive. So the training run (`training.py`)
writes their classes into a jar of our own, and what our sources compile to beside them; `java.py` puts it in front of
Spark's jars. Each source has a package that is named by its text: a class of another text is never taken for it, and
what is not in the jar is compiled at the start as before (`janino.py`).
"""

import os
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from pyspark.sql import SparkSession

from samza_azure.spark.jvm import (
    application_end,
    context,
    cpu_time,
    exchanges,
    executors,
    leftovers,
    local_files,
    ml_functions,
    predicates,
    searches,
    selectors,
    shuffles,
    sink,
)
from samza_azure.spark.jvm.janino import compiled_to, package_of
from samza_azure.spark.jvm.java import TRAINING_TIMEOUT_S, launch, spark_jars
from samza_azure.spark.jvm.session import connect_session, jvm_of
from samza_azure.spark.jvm.settings import settings_of

MODULES: tuple[ModuleType, ...] = (
    application_end, context, cpu_time, exchanges, executors, leftovers, local_files, ml_functions, predicates,
    searches, selectors, shuffles, sink,
)  # fmt: skip
COMPILER = ("commons-compiler-*.jar", "janino-*.jar")
#: What Janino reads beside its classes.
KEPT = (".class", ".properties")


def is_current(jar: Path) -> bool:
    """Whether the jar has the classes of all sources as they are now."""
    if not jar.exists():
        return False
    with zipfile.ZipFile(jar) as file:
        names = {name.rpartition("/")[0] for name in file.namelist()}
    return names >= {package_of(each.SOURCE).replace(".", "/") for each in MODULES}


def write(jar: Path) -> None:
    """Compile all sources, and write the jar. It appears when it is complete."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        settings = settings_of({}, directory)
        jvm = launch(settings, os.environ, directory, [], start_timeout_s=TRAINING_TIMEOUT_S)
        spark = connect_session("precompiled", settings, jvm)
        fresh = jar.with_suffix(".jar-new")
        with zipfile.ZipFile(fresh, "w") as file:
            for entry, data in (*_compiler(), *_ours(spark)):
                file.writestr(entry, data)
        spark.stop()
        jvm.end()
    fresh.rename(jar)


def _compiler() -> Iterator[tuple[str, bytes]]:
    for pattern in COMPILER:
        for each in sorted(spark_jars().glob(pattern)):
            with zipfile.ZipFile(each) as file:
                yield from ((name, file.read(name)) for name in file.namelist() if name.endswith(KEPT))


def _ours(spark: SparkSession) -> Iterator[tuple[str, bytes]]:
    for each in MODULES:
        for name, data in compiled_to(jvm_of(spark), each.SOURCE).items():
            yield f"{name.replace('.', '/')}.class", data


if __name__ == "__main__":
    write(Path(sys.argv[1]))
