"""What works where only the base packages are installed: all that runs no query. `pip install samza-azure` brings no
pyspark, no pandas and no numpy."""

import os
import re
import subprocess
import sysconfig
import tomllib
import venv
from collections.abc import Callable, Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from samza_azure.commands.azurite.emulator import Azurite

ROOT = Path(__file__).parents[2]
Run = Callable[..., tuple[int, str, str]]


def base_packages() -> Iterator[Distribution]:
    """What is installed for `samza-azure` without an extra, and for that."""
    left, known = ["samza-azure"], set[str]()
    while left:
        name = left.pop()
        if name in known:
            continue
        known.add(name)
        try:
            found = distribution(name)
        except PackageNotFoundError:
            continue  # of another platform
        yield found
        wanted = map(Requirement, found.requires or ())
        left += [each.name for each in wanted if each.marker is None or each.marker.evaluate({"extra": ""})]


@pytest.fixture
def run(tmp_path: Path, emulator: Azurite) -> Run:
    """Runs Python in an environment with these packages only."""
    packages = tmp_path / "packages"
    packages.mkdir()
    folder = Path(sysconfig.get_path("purelib"))
    names = {each.parts[0] for found in base_packages() for each in found.files or ()}
    for name in names - {"..", "__pycache__"}:
        (packages / name).symlink_to(folder / name)
    venv.create(tmp_path / "venv")
    [site] = (tmp_path / "venv").glob("lib/python*/site-packages")
    (site / "these.pth").write_text(f"{ROOT}\n{packages}\n")
    environment = {**os.environ, "AZURE_STORAGE_CONNECTION_STRING": emulator.connection_string}
    environment.pop("PYTHONPATH", None)

    def python(*arguments: str) -> tuple[int, str, str]:
        command = [str(tmp_path / "venv" / "bin" / "python"), *arguments]
        ended = subprocess.run(
            command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
        )
        return ended.returncode, ended.stdout, ended.stderr

    return python


def test_produce_and_export_work_without_spark_and_run_names_the_extra(run: Run, tmp_path: Path) -> None:
    job = tmp_path / "job.toml"
    text = (ROOT / "examples" / "flights" / "job.toml").read_text()
    job.write_text(text.replace('name = "flights"', 'name = "sparkless"'))
    (tmp_path / "pipeline.py").write_text((ROOT / "examples" / "flights" / "pipeline.py").read_text())
    (tmp_path / "rows.csv").write_text("carrier,ts,dep_delay\nUA,2013-01-01 05:00:00,1\n")
    program = """
import importlib.util, pyarrow as pa, datetime as dt
from samza_azure import AzureJobCoordinatorFactory, Reader, SourceWriter
assert importlib.util.find_spec("pyspark") is None
writer = SourceWriter.from_job("job.toml", "flights")
writer.write(pa.table({"carrier": ["AA"], "ts": [dt.datetime(2013, 1, 1, tzinfo=dt.UTC)], "dep_delay": [2.0]}))
writer.close()
print(sum(table.num_rows for table in Reader.from_job("job.toml", "flights", until_now=True)))
"""
    assert run("-c", program)[:2] == (0, "1\n")
    command = ["-m", "samza_azure"]
    assert run(*command, "produce", "job.toml", "flights", "rows.csv")[:2] == (0, "1 rows into flights\n")
    assert run(*command, "export", "job.toml", "flights", "--to", "out.csv")[:2] == (0, "2 rows to out.csv\n")
    for name in ("check", "run"):
        code, _, said = run(*command, name, "job.toml")
        assert (code, "pip install 'pyspark" in said) == (2, True), said


#: A source task and a handler more.
CLICKS = """
[streams.clicks]
system = "tail"
options.path = "clicks.jsonl"
partitions = 1
schema = "n bigint"
[streams.seen]
schema = "n bigint"
"""
PASS = """
@app.task("clicks", output="seen")
class Pass:
    def process(self, envelope, collector):
        collector.send(envelope.row)
"""


def test_a_job_of_handlers_is_checked_runs_and_drains_without_spark(run: Run, tmp_path: Path) -> None:
    """And its container, with tasks of both kinds, takes less than 150 MiB."""
    for name, more in (("job.toml", CLICKS), ("pipeline.py", PASS)):
        (tmp_path / name).write_text((ROOT / "examples" / "lowlevel" / name).read_text() + more)
    (tmp_path / "clicks.jsonl").write_text("".join(f'{{"n": {n}}}\n' for n in range(1000)))
    (tmp_path / "rows.csv").write_text("carrier,ts,dep_delay\nUA,2013-01-01 05:00:00,180\nAA,2013-01-01 05:00:00,1\n")
    command = ["-m", "samza_azure"]
    code, said, error = run(*command, "check", "job.toml")
    assert (code, "alerts: text string, number bigint" in said) == (0, True), said + error
    assert run(*command, "produce", "job.toml", "flights", "rows.csv")[0] == 0
    program = """
import pathlib, subprocess, sys, time
from samza_azure import Reader
command = [sys.executable, "-m", "samza_azure"]
processor = subprocess.Popen([*command, "run", "job.toml", "--log-file", "log"])
try:
    while subprocess.run([*command, "status", "job.toml"], capture_output=True).returncode:
        assert processor.poll() is None
        time.sleep(1)  # the pace of asking
    rows = 0
    for table in Reader.from_job("job.toml", "seen"):
        rows += table.num_rows
        if rows == 1000:
            break
    for child in pathlib.Path(f"/proc/{processor.pid}/task/{processor.pid}/children").read_text().split():
        if "samza_azure.container" in pathlib.Path(f"/proc/{child}/cmdline").read_text():
            print(pathlib.Path(f"/proc/{child}/status").read_text())
    subprocess.run([*command, "drain", "job.toml", "--when-caught-up", "--wait"], check=True, capture_output=True)
    assert processor.wait(60) == 0
finally:
    processor.kill()
for table in Reader.from_job("job.toml", "alerts", until_now=True):
    print(table["text"].to_pylist(), table["number"].to_pylist())
"""
    code, said, error = run("-c", program)
    log = tmp_path / "log"
    assert code == 0, error + (log.read_text() if log.exists() else "")
    assert [said.count(text) for text in ("UA of 01 January, 05:00 is 3.0 hours late", "told in this run")] == [1, 4]
    [kib] = re.findall(r"VmRSS:\s+(\d+) kB", said)
    print(f"a container without Spark: {int(kib) >> 10} MiB")
    assert int(kib) >> 10 < 150


def test_the_base_installation_has_no_spark() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert not any(each.startswith(("pyspark", "protobuf")) for each in project["dependencies"])
    assert any(each.startswith("pyspark") for each in project["optional-dependencies"]["spark"])
