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
from tests.commands.mistakes import JOB, MISTAKES, PIPELINE, Mistake

LATE = {name: mistake for name, mistake in MISTAKES.items() if mistake.needs_spark}
_numbers = itertools.count()  # a module is imported once


@pytest.mark.parametrize("mistake", LATE.values(), ids=LATE.keys())
def test_a_mistake_is_reported_with_its_place_and_a_fix_to_paste(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mistake: Mistake
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))

    def analyse(text: str) -> None:
        module = f"first_hour_{next(_numbers)}"
        job, pipeline = (each.replace(mistake.right, text).replace("MODULE", module) for each in (JOB, PIPELINE))
        (tmp_path / f"{module}.py").write_text(pipeline)
        (tmp_path / "job.toml").write_text(job)
        config = Config.load(tmp_path / "job.toml", reaches_storage=False)
        analyse_pipeline(spark, load(config), config, tmp_path / "analysis")

    with pytest.raises(PipelineRefused) as caught:
        analyse(mistake.wrong)
    message = re.sub(r"first_hour_\d+", "MODULE", in_full(caught.value))
    for part in (*mistake.told, mistake.advised):
        assert part in message
    analyse(mistake.remedy or mistake.right)
