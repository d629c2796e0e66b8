"""Send to the executors of a cluster what functions may import: the modules beside the job file."""

import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

from pyspark.sql import SparkSession

ARCHIVE = "beside.zip"


def send_modules(spark: SparkSession, folder: Path, directory: Path) -> None:
    """Send the modules and packages of a folder. Call this before functions are made. The archive is in `directory`."""
    archive = directory / ARCHIVE
    with zipfile.ZipFile(archive, "w", strict_timestamps=False) as packed:
        for path in modules_in(folder):
            packed.write(path, path.relative_to(folder))
    ours = [*sys.path]
    spark.sparkContext.addPyFile(str(archive))
    sys.path[:] = ours  # here they are imported from where they are, so errors name their files


def modules_in(folder: Path) -> Iterator[Path]:
    """The Python files of the modules and packages in a folder. A folder without `__init__.py` is no package."""
    yield from sorted(folder.glob("*.py"))
    for package in sorted(each.parent for each in folder.glob("*/__init__.py")):
        yield from sorted(package.rglob("*.py"))
