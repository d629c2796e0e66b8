"""A processor whose container ends again and again: the account says why it ended, not only its log."""

import json
import os
from pathlib import Path
from typing import Any

from samza_azure.commands.azurite.emulator import Azurite
from tests.commands.forked import run

JOB = """
app = {{ name = "flights", main = "pipeline:app" }}
azure.storage.connect = "${{CONNECT}}"
job.coordinator.profile = "fast"
processor = {{ id = "p1", dir = "{}" }}
task.restart.limit = 1
streams.numbers = {{ partitions = 1, schema = "n long" }}
streams.same = {{ partitions = 1, schema = "n long" }}
"""
PIPELINE = """
import os

from samza_azure import Application

app = Application()


@app.task("numbers", output="same")
class Ends:
    def __init__(self):
        os._exit(7)

    def process(self, envelope, collector):
        pass
"""
REASON = "The container ended 2 times in a row (it exited with code 7)."


def test_status_says_why_a_processor_gave_up(tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text(JOB.format(tmp_path / "state"))
    (tmp_path / "pipeline.py").write_text(PIPELINE)
    with Azurite().start() as emulator:
        environment = {**os.environ, "CONNECT": emulator.connection_string}
        ended = run("run", "job.toml", env=environment, cwd=tmp_path)
        assert ended.returncode == 1 and REASON in ended.stderr
        shown = (run("status", "job.toml", *form, env=environment, cwd=tmp_path).stdout for form in (["--json"], []))
        document: dict[str, Any] = json.loads(next(shown))
        assert "p1 ended with exit code 1" in next(shown)
    [row] = document["processors"]
    assert (row["state"], row["failure"]["exit_code"]) == ("LEFT", 1)
    assert row["failure"]["message"].startswith(REASON)
