"""The jar of classes that containers need not compile."""

import zipfile
from importlib import import_module
from pathlib import Path

from pyspark.sql import SparkSession

import samza_azure.spark.jvm as room
from samza_azure.spark.jvm import precompiled


def test_it_has_the_classes_of_all_sources() -> None:
    names = [path.stem for path in Path(room.__path__[0]).glob("*.py") if "SOURCE" in path.read_text()]
    modules = {import_module(f"{room.__name__}.{name}") for name in names}
    assert {each for each in modules if hasattr(each, "SOURCE")} == {*precompiled.MODULES}


def test_it_is_current_for_sources_of_the_same_text(spark: SparkSession, tmp_path: Path) -> None:
    jar, other = tmp_path / "classes.jar", tmp_path / "other.jar"
    assert not precompiled.is_current(jar)
    classes = dict(precompiled._ours(spark))
    for path, left_out in ((jar, "none"), (other, "/Sessions")):
        with zipfile.ZipFile(path, "w") as file:
            for name, data in classes.items():
                if left_out not in name:
                    file.writestr(name, data)
    assert precompiled.is_current(jar)
    assert not precompiled.is_current(other)
