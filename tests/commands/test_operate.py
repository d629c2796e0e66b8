"""The commands of samza-azure in docs/operate.md, run on Azurite: on the example's job, by a fleet without Spark.

Run to their effect: explain, produce, status, ui, stop, and drain --wait. Run only to their refusal, since no task of
this fleet writes a log or keeps a drain waiting: drain --cancel, export and delete; their effects are shown by
`test_asking.py`, `test_commands.py` and `test_deleting.py`. The lines of other tools (az, kubectl, systemctl) are
not run: `tests/infra/test_lines.py` compares what they name with the templates.
"""

import os
import select
import shlex
import signal
import subprocess
import sys
import uuid
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from samza_azure import AzureJobCoordinatorFactory, Config, SharedTasks
from samza_azure.commands.azurite.emulator import Azurite
from samza_azure.commands.dev import VARIABLE
from samza_azure.errors import Verdict
from tests.commands.forked import run
from tests.infra.test_operate import COMMANDS

PATIENCE_S = 120.0
EXAMPLE = Path(__file__).parents[2] / "examples" / "flights"

#: Without a query: no command of the page is about Spark, and each analysis would start Java.
STREAM = """
[streams.daily-delays]
partitions = 4
schema = "carrier string, ts timestamp, dep_delay double"
"""
CHECKPOINTS = "https://flightsfunctions.blob.core.windows.net/azure-webjobs-eventhub"
PIPELINE = """
from samza_azure import Application

app = Application()


@app.task("flights", output="daily-delays")
class Delays:
    def process(self, envelope, collector):
        collector.send(envelope.row)
"""


class Page:
    """The folder in which its commands are run, and those that were."""

    def __init__(self, folder: Path, connection: str) -> None:
        self.folder, self.left = folder, set(COMMANDS)
        self.environment = {**os.environ, VARIABLE: connection}
        job = (EXAMPLE / "job.toml").read_text().replace('"default"', '"fast"').partition("[streams.by-carrier]")[0]
        job = job.replace("[app]", f'[app]\nid = "{uuid.uuid4().hex[:8]}"') + STREAM
        (folder / "job.toml").write_text(job)
        (folder / "pipeline.py").write_text(PIPELINE)
        self.config = Config.load(folder / "job.toml", environment=self.environment)

    def fleet(self) -> SharedTasks:
        """One processor."""
        return SharedTasks(AzureJobCoordinatorFactory().get_job_coordinator("p0", self.config), "part", 2)

    def run(self, line: str, **names: str) -> tuple[int, str]:
        """A command of the page, with the test's names; its exit code, and what it said.

        It is run once more if Azurite did not answer in time, which happens on a busy machine.
        """
        for _ in range(2):
            ended = run(*self._words(line, names), env=self.environment, cwd=self.folder)
            if ended.returncode != Verdict.UNREACHABLE:
                break
        return ended.returncode, ended.stdout + ended.stderr

    def look(self, line: str, says: str) -> None:
        """A command that goes on until it is interrupted, on a terminal of its own: until it says something."""
        ours, its = os.openpty()
        command = [sys.executable, "-m", "samza_azure", *self._words(line, {})]
        with subprocess.Popen(
            command, cwd=self.folder, env=self.environment, stdin=its, stdout=its, stderr=its, start_new_session=True
        ) as process:
            os.close(its)
            said = b""
            while says.encode() not in said:
                assert select.select([ours], [], [], PATIENCE_S)[0], said
                said += os.read(ours, 65536)  # an error once the command has ended
            process.send_signal(signal.SIGINT)
            with suppress(OSError):
                while os.read(ours, 65536):
                    pass
        os.close(ours)

    def _words(self, line: str, names: dict[str, str]) -> list[str]:
        """What is behind the name of the program."""
        self.left.discard(line)
        _, *arguments = shlex.split(line)
        return [names.get(each, each) for each in arguments]


#: Each starts a JVM on a machine of its own: tests/end_to_end/test_cluster.py runs both commands, by other addresses.
CLUSTER = {"samza-azure master --host 10.0.0.4", "samza-azure worker --master spark://10.0.0.4:7077"}


def test_each_command_of_the_page_runs(emulator: Azurite, tmp_path: Path) -> None:
    page = Page(tmp_path, emulator.connection_string)
    at = pa.array([datetime(2024, 1, 1, tzinfo=UTC)] * 3, pa.timestamp("us", tz="UTC"))
    rows = pa.table({"carrier": ["AA"] * 3, "ts": at, "dep_delay": [1.0, 2.0, 3.0], "dest": ["a", "b", "c"]})
    pq.write_table(rows, tmp_path / "flights.parquet")
    for line in ("samza-azure explain job.toml", "samza-azure explain job.toml --processors 3"):
        code, said = page.run(line)
        assert code == 0 and "the status page while it is open" in said, said
    code, said = page.run("samza-azure produce job.toml flights flights.parquet --key dest")
    assert code == 0, said
    code, said = page.run("samza-azure check job.toml --against-run")
    assert code == 0 and "No run has begun yet: the first start begins one." in said, said
    with page.fleet():
        page.look("samza-azure status job.toml --watch", "RUNNING")
        page.look("samza-azure ui job.toml --port 8421", "http://127.0.0.1:8421/")
        code, said = page.run("samza-azure stop job.toml --wait")
        assert code == 0, said
    fleet = page.fleet()
    fleet.start()
    code, said = page.run("samza-azure drain job.toml --wait --timeout 1800")
    assert code == 0, said
    code, said = page.run("samza-azure status job.toml")
    assert code == 0 and "DRAINED" in said, said
    # What has an effect only on a job whose tasks write: other tests of this folder show that.
    for line, names, says in (
        ("drain job.toml --cancel", {}, "drain"),
        ("decommission job.toml worker-3 --by 5min --wait", {}, "There is no processor of this name"),
        ("decommission job.toml --wait", {}, "No processor of this job answers on this machine"),
        ("recover job.toml", {}, "Nothing to recover"),
        ("recover job.toml --yes", {}, "Nothing to recover"),
        ("export job.toml daily-delays --to before.parquet", {}, "No log holds the stream 'daily-delays'"),
        ("export job.toml daily-delays --to all.parquet", {}, "No log holds the stream 'daily-delays'"),
        ("positions job.toml orders --spark checkpoint", {}, "'orders' is no stream from outside"),
        (f"positions job.toml orders --checkpoints {CHECKPOINTS} --group functions", {}, "is no stream from outside"),
        ("positions job.toml orders --group former", {}, "'orders' is no stream from outside"),
        ("delete job.toml --run ID", {"ID": "1"}, "No drained run has the id '1'"),
        ("delete job.toml --stream ID --reader NAME", {"ID": "flights", "NAME": "gone"}, "has no reader 'gone'"),
    ):
        code, said = page.run(f"samza-azure {line}", **names)
        assert code == (0 if line.startswith("recover") else 2) and says in said, (line, code, said)
    assert page.left == CLUSTER
