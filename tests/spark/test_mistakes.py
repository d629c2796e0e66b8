"""The mistakes of a first hour that need Spark to be found: what is said, and its advice in the place of the mistake.

`tests/commands/test_checking.py` does the same with those that `check --quick` finds.
"""

import itertools
import re
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from samza_azure.config import Config
from samza_azure.errors import PipelineRefused, in_full
from samza_azure.spark.pipeline.module import load
from samza_azure.spark.pipeline.pipeline import analyse_pipeline
from tests.commands.mistakes import COUNTED, JOB, MISTAKES, PIPELINE, Mistake

LATE = {name: mistake for name, mistake in MISTAKES.items() if mistake.needs_spark}
_numbers = itertools.count()  # a module is imported once


@pytest.fixture(autouse=True)
def _same_path_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))


def analyse(spark: SparkSession, folder: Path, job: str, pipeline: str) -> None:
    module = f"first_hour_{next(_numbers)}"
    (folder / f"{module}.py").write_text(pipeline.replace("MODULE", module))
    (folder / "job.toml").write_text(job.replace("MODULE", module))
    config = Config.load(folder / "job.toml", reaches_storage=False)
    analyse_pipeline(spark, load(config), config, folder / "analysis")


@pytest.mark.parametrize(
    "mistake",
    [pytest.param(each, marks=[pytest.mark.long] * (place % 2)) for place, each in enumerate(LATE.values())],
    ids=LATE.keys(),
)
def test_a_mistake_is_reported_with_its_place_and_a_fix_to_paste(
    spark: SparkSession, tmp_path: Path, mistake: Mistake
) -> None:
    def with_text(text: str) -> tuple[str, str]:
        return JOB.replace(mistake.right, text), PIPELINE.replace(mistake.right, text)

    with pytest.raises(PipelineRefused) as caught:
        analyse(spark, tmp_path, *with_text(mistake.wrong))
    message = re.sub(r"first_hour_\d+", "MODULE", in_full(caught.value))
    for part in (*mistake.told, mistake.advised):
        assert part in message
    analyse(spark, tmp_path, *with_text(mistake.remedy or mistake.right))


OTHERS = """
@app.stage("refunds", output="sorted")
def by_amount(refunds):
    return refunds.sort("amount")

@app.stage("sorted", "clean", output="never")
def never(rows, others):
    return rows.sort("amount")
"""


def test_all_mistakes_of_a_pipeline_are_reported_at_once_without_what_follows_from_them(
    spark: SparkSession, tmp_path: Path
) -> None:
    """In names, in a stage, in one behind it that is only called, and in one that is analysed."""
    job = JOB.replace('key = "id"', 'key = "ids"') + '[streams.refunds]\nschema = "id string, amount int"\n'
    pipeline = PIPELINE.replace('"amount > 0"', '"amount > 0").select("id", "ts"').replace(
        COUNTED, 'rows.where("amount > 0")'
    )
    with pytest.raises(PipelineRefused) as caught:
        analyse(spark, tmp_path, job, pipeline + OTHERS)
    said = str(caught.value).splitlines()
    assert said[0] == "The pipeline has 3 mistakes:"
    found = [each.partition(": ")[0].partition(", but")[0].strip() for each in said[1:]]
    assert [re.sub(r"/.*/(first_hour_\d+|job)", "", each) for each in found] == [
        "streams.orders.key has 'ids'",
        ".toml, line 12",
        "Stage hourly cannot be analysed",
        ".py, line 12",
        "Stage by_amount cannot run as a stream",
        ".py, line 16",
    ]


@pytest.mark.parametrize("reads", ["claen", "sorted", "clean"])
def test_the_keys_of_a_handler_are_checked_whatever_is_in_front_of_it(
    spark: SparkSession, tmp_path: Path, reads: str
) -> None:
    """Its columns are declared. In front of it is a stream that there is not, one of a refused stage, a right one."""
    job = f'{JOB}[streams.refunds]\nschema = "id string, amount int"\n[streams.told]\nschema = "id string"\n'
    handler = f'@app.task("{reads}", output="told", partition_by="ids")\nclass Tells:\n'
    handler += "    def process(self, envelope, collector): ...\n"
    with pytest.raises(PipelineRefused, match=r"Task Tells has partition_by 'ids', but streams.told.schema has"):
        analyse(spark, tmp_path, job, f"{PIPELINE}{OTHERS}\n{handler}")
