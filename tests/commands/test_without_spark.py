"""What works where pyspark is not installed: all that runs no pipeline. `pip install samza-azure` brings none."""

import os
import subprocess
import sysconfig
import tomllib
import venv
from collections.abc import Callable
from pathlib import Path

import pytest

from samza_azure.commands.azurite.emulator import Azurite

ROOT = Path(__file__).parents[2]
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(tmp_path: Path, emulator: Azurite) -> Run:
    """Runs Python in an environment with the packages of this one, except pyspark."""
    packages = tmp_path / "packages"
    packages.mkdir()
    for each in Path(sysconfig.get_path("purelib")).iterdir():
        if not each.name.startswith("pyspark"):
            (packages / each.name).symlink_to(each)
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


def test_a_job_of_handlers_is_checked_runs_and_drains_without_spark(run: Run, tmp_path: Path) -> None:
    for name in ("job.toml", "pipeline.py"):
        (tmp_path / name).write_text((ROOT / "examples" / "lowlevel" / name).read_text())
    (tmp_path / "rows.csv").write_text("carrier,ts,dep_delay\nUA,2013-01-01 05:00:00,180\nAA,2013-01-01 05:00:00,1\n")
    command = ["-m", "samza_azure"]
    code, said, error = run(*command, "check", "job.toml")
    assert (code, "alerts: text string, number bigint" in said) == (0, True), said + error
    assert run(*command, "produce", "job.toml", "flights", "rows.csv")[0] == 0
    program = """
import subprocess, sys
from samza_azure import Reader
command = [sys.executable, "-m", "samza_azure"]
processor = subprocess.Popen([*command, "run", "job.toml", "--log-file", "log"])
try:
    while subprocess.run([*command, "status", "job.toml"], capture_output=True).returncode:
        assert processor.poll() is None
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


def test_the_base_installation_has_no_spark() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert not any(each.startswith(("pyspark", "protobuf")) for each in project["dependencies"])
    assert any(each.startswith("pyspark") for each in project["optional-dependencies"]["spark"])
