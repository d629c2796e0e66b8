"""The jobs of `examples/ported`: the plain job and the one that was carried over emit the same rows.

Both run on one session here, so that five jobs take seconds; `examples/ported/compare.py` runs them as users do.
"""

import runpy
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from samza_azure.application import Application
from samza_azure.config import Config
from samza_azure.spark.pipeline.module import load

from .compare import MakeFleet, Row, put_out, streamed

PORTED = Path(__file__).parents[2] / "examples" / "ported"
sys.path[:0] = [str(PORTED)]

from compare import OUTPUTS, changed_lines, multiset, read  # noqa: E402  (needs the path above)
from rows import JOBS, arrivals, write  # noqa: E402

#: Pieces of each stream; between them the tasks change their owners.
PIECES = 2


@contextmanager
def as_spark_has_it(spark: SparkSession) -> Iterator[None]:
    """The session as Spark has it by default in what plain queries depend on; what they set goes afterwards."""
    changed = ("spark.sql.streaming.noDataMicroBatches.enabled", "spark.sql.streaming.stateStore.providerClass")
    before = {name: spark.conf.get(name, None) for name in changed}
    spark.conf.set(changed[0], "true")
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, value)


def plain_rows(job: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[Row]:
    """What `plain.py` writes."""
    write(job, folder)
    monkeypatch.setattr(sys, "argv", ["plain.py", str(folder)])
    runpy.run_path(str(PORTED / job / "plain.py"), run_name="__main__")  # its classes travel by value, as a script's do
    return read(folder / "output")


def loaded(job: str, monkeypatch: pytest.MonkeyPatch) -> Application:
    """The application as a container loads it; each of the five modules is called pipeline."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.delitem(sys.modules, "pipeline", raising=False)
    variable = {"AZURE_STORAGE_CONNECTION_STRING": "UseDevelopmentStorage=true"}
    return load(Config.load(PORTED / job / "job.toml", environment=variable))


def pieces_of(job: str, run_streams: dict[str, str | None]) -> list[tuple[str, list[Row]]]:
    """The rows of each stream in pieces, in turn, their event times as times."""
    pieces = []
    for stream, rows in arrivals(job).items():
        time = run_streams[stream]
        parsed = [{**row, time: datetime.fromisoformat(row[time])} for row in rows]
        size = -(-len(parsed) // PIECES)
        pieces += [(number, stream, parsed[number * size : (number + 1) * size]) for number in range(PIECES)]
    return [(stream, rows) for _, stream, rows in sorted(pieces, key=lambda piece: piece[0])]


@pytest.mark.long  # drawn pipelines of the same operators are compared with a batch, too
@pytest.mark.parametrize("job", JOBS)
def test_the_job_that_was_carried_over_puts_out_the_same_rows(
    job: str, fleet: MakeFleet, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "plain").mkdir()
    with as_spark_has_it(spark):
        plain = plain_rows(job, tmp_path / "plain", monkeypatch)
    application, text = loaded(job, monkeypatch), (PORTED / job / "job.toml").read_text()
    own = {name: f"{name}-{job}" for name in arrivals(job)}  # all tests share one account, and two jobs read `events`
    for name, renamed in own.items():
        text = text.replace(f"[streams.{name}]", f"[streams.{renamed}]")
    application.stages = [replace(each, inputs=tuple(own[name] for name in each.inputs)) for each in application.stages]
    run = fleet(application, "".join(text.partition("[streams.")[1:]) + "\n[task]\ncommit.ms = 0\n")
    event_times = {name: run.config.streams[renamed].event_time for name, renamed in own.items()}
    streamed(run, [(own[stream], rows) for stream, rows in pieces_of(job, event_times)])
    assert multiset(put_out(run, OUTPUTS[job])) == multiset(plain)
    assert len(plain) > 100
    assert run.late == 0


@pytest.mark.parametrize("job", JOBS)
def test_the_documents_say_how_many_lines_changed(job: str) -> None:
    changed = changed_lines(job)
    row = f"| {changed.plain} | {changed.taken_out} | {changed.put_in} | {changed.job_file} |\n"
    assert row in (PORTED.parents[1] / "docs" / "pipelines.md").read_text()
