"""Five Structured Streaming jobs and the same jobs carried over: equal rows? how many lines changed?

python examples/ported/compare.py [JOB…]

Each `plain.py` runs on plain Spark, over files. Each `pipeline.py` runs on a storage emulator, by the commands that a
user types: produce, run (two processors), drain, export. Both have the same rows, except for the closing rows that
the plain jobs need (see `rows.py`). It ends with 1 if any job's rows differ.
"""

import difflib
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from rows import JOBS, is_closing, write

from samza_azure.commands.azurite.emulator import Azurite
from samza_azure.commands.dev import VARIABLE
from samza_azure.commands.fleet import Fleet, all_running
from samza_azure.spark.jvm.java import find_java

HERE = Path(__file__).parent
PATIENCE_S = 180.0
#: The stream that each job writes.
OUTPUTS = {
    "windowed_counts": "counts",
    "sessions": "sessions",
    "joined_streams": "joined",
    "deduplication": "distinct-events",
    "stateful_function": "silences",
}
#: Spread over some seconds, so that the tasks make several batches of them.
ROWS_PER_S = 400
#: For a few rows on one machine. What the job's own lines say is left as it is.
SPARK = "--master local[2] --conf spark.sql.shuffle.partitions=2 --conf spark.ui.enabled=false pyspark-shell"


@dataclass(frozen=True, slots=True)
class Changed:
    """What carrying a job over took, in lines that are not empty; that a line moved to the right is no change."""

    plain: int
    taken_out: int
    put_in: int
    job_file: int


def main(jobs: Iterable[str]) -> int:
    """Compare, and print a table; the exit code."""
    table = [
        "| job | rows | equal | lines of `plain.py` | taken out | put in | lines of `job.toml` |",
        "|" + "---|" * 7,
    ]
    exit_code = 0
    with Azurite(say=say).start() as emulator:
        os.environ[VARIABLE] = emulator.connection_string
        for job in jobs:
            work = Path(tempfile.mkdtemp(prefix=f"samza-azure-{job}-"))
            produced = write(job, work)
            plain, ported = plain_rows(job, work), ported_rows(job, work, produced)
            equal, changed = plain == ported, changed_lines(job)
            table.append(
                f"| {job} | {ported.total():,} | {'yes' if equal else 'NO'} | {changed.plain} | "
                f"{changed.taken_out} | {changed.put_in} | {changed.job_file} |"
            )
            if equal:
                say(f"{job}: equal, {ported.total():,} rows")
                shutil.rmtree(work)
            else:
                say(f"{job}: DIFFERENT, in {work}")
                say(f"only plain: {some(plain - ported)}\nonly carried over: {some(ported - plain)}")
                exit_code = 1
    print("\n".join(table))
    return exit_code


def plain_rows(job: str, work: Path) -> Counter[str]:
    """What the plain job writes."""
    say(f"{job}: plain Spark")
    java = find_java(os.environ)
    where = {"JAVA_HOME": str(java.home), "PYSPARK_PYTHON": sys.executable, "TZ": "UTC"}
    environment = {**os.environ, **where, "PYSPARK_SUBMIT_ARGS": SPARK}
    command = [sys.executable, str(HERE / job / "plain.py"), str(work)]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if ended.returncode != 0:
        raise SystemExit(f"{job}/plain.py failed:\n{ended.stderr[-4000:]}")
    return multiset(read(work / "output"))


def ported_rows(job: str, work: Path, produced: dict[str, Path]) -> Counter[str]:
    """What the job writes that was carried over."""
    say(f"{job}: two processors")
    for name in ("pipeline.py", "job.toml"):
        shutil.copy(HERE / job / name, work / name)
    fleet = Fleet(work / "job.toml", work / "logs")
    try:
        for processor in ("one", "two"):
            fleet.start(processor)
        fleet.wait_until("all tasks run", all_running, PATIENCE_S)
        for stream, file in produced.items():
            command(work, "produce", stream, str(file), "--rate", str(ROWS_PER_S))
        fleet.wait_until("all rows are read", lambda shown: fleet.unread(shown) == 0, PATIENCE_S)
        command(work, "drain", "--wait", "--timeout", str(PATIENCE_S))
        codes = fleet.exit_codes(PATIENCE_S)
        if set(codes.values()) != {0}:
            raise SystemExit(f"{job}: the processors exited with {codes}; their logs are in {work / 'logs'}")
    finally:
        fleet.stop()
    command(work, "export", OUTPUTS[job], "--to", str(work / "ported.parquet"))
    return multiset(read(work / "ported.parquet"))


def command(work: Path, name: str, *rest: str) -> None:
    """A command of samza-azure on this job."""
    ended = subprocess.run(
        [sys.executable, "-m", "samza_azure", name, str(work / "job.toml"), *rest],
        capture_output=True,
        text=True,
        check=False,
    )
    if ended.returncode != 0:
        raise SystemExit(f"samza-azure {name} failed:\n{ended.stderr}")


def read(path: Path) -> list[dict[str, Any]]:
    """The rows of a Parquet file, or of a folder of them."""
    return pq.read_table(path, coerce_int96_timestamp_unit="us").to_pylist()


def multiset(rows: Iterable[dict[str, Any]]) -> Counter[str]:
    """The rows without their order, without those of the closing rows, and all times alike in UTC."""
    return Counter(repr(_in_utc(row)) for row in rows if not is_closing(row))


def _in_utc(value: Any) -> Any:
    if isinstance(value, dict):
        return sorted((name, _in_utc(each)) for name, each in value.items())
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat() if value.tzinfo else value.isoformat() + "+00:00"
    return value


def changed_lines(job: str) -> Changed:
    """Counted between the two files."""
    plain, ported = (lines(HERE / job / name) for name in ("plain.py", "pipeline.py"))
    matcher = difflib.SequenceMatcher(None, plain, ported, autojunk=False)
    kept = sum(block.size for block in matcher.get_matching_blocks())
    return Changed(len(plain), len(plain) - kept, len(ported) - kept, len(lines(HERE / job / "job.toml")))


def lines(path: Path) -> list[str]:
    """Those that are not empty, without what stands before and behind them."""
    return [line.strip() for line in path.read_text().splitlines() if line.strip()]


def some(rows: Counter[str]) -> list[str]:
    """A few of them."""
    return sorted(rows.elements())[:3]


def say(text: str) -> None:
    """Progress."""
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    unknown = set(sys.argv[1:]) - set(JOBS)
    if unknown:
        raise SystemExit(f"There is no job {', '.join(sorted(unknown))}. Jobs: {', '.join(JOBS)}.")
    sys.exit(main(sys.argv[1:] or JOBS))
