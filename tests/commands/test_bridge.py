"""A bridge: a program without an end that brings rows from outside into a source stream, each once, and is killed."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pytest

from samza_azure import ConfigError, Reader, SourceWriter
from samza_azure.commands.azurite.emulator import Azurite

JOB = """
app = { name = "bridge", main = "none:none" }
azure.storage.connect = "${CONNECT}"

[streams.s]
schema = "v bigint"
partitions = 3
"""
#: Rows outside have numbers, and are asked for from a number on. It ends when it has brought them all, but for SIGTERM.
BRIDGE = """
import random, sys
import pyarrow as pa
from samza_azure import SourceWriter

job, end, dice = sys.argv[1], int(sys.argv[2]), random.Random(sys.argv[3])
with SourceWriter.from_job(job, "s", once="bridge", flush_rows=700) as writer:
    at = writer.resume()
    print(at, flush=True)
    while at < end:
        rows = pa.table({"v": range(at, min(end, at + dice.randrange(1, 900)))})
        writer.write(rows)
        if dice.random() < 0.5:
            writer.flush()
        at += rows.num_rows
        print(at, flush=True)
"""


def bridge(job: Path, end: int, seed: int) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", BRIDGE, str(job), str(end), str(seed)]
    return subprocess.Popen(command, env=os.environ.copy(), stdout=subprocess.PIPE, text=True)


@pytest.mark.long  # tests/storage/test_once.py goes on after each kill
def test_a_bridge_that_is_killed_again_and_again_brings_each_row_once(
    emulator: Azurite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`once` was for finite inputs: nothing said how far an open key had come, so all rows had to be given again."""
    monkeypatch.setenv("CONNECT", emulator.connection_string)
    job, dice, begun = tmp_path / "job.toml", random.Random(19), list[int]()
    job.write_text(JOB)
    for seed in range(2):
        with bridge(job, 1 << 40, seed) as process:
            assert process.stdout is not None
            begun.append(int(process.stdout.readline()))
            for _ in range(dice.randrange(1, 9)):  # the next write is under way
                process.stdout.readline()
            time.sleep(dice.uniform(0.0, 0.03))  # at any moment of it
            process.send_signal(signal.SIGKILL)
    assert begun == sorted(begun) and begun[-1] > 0
    with SourceWriter.from_job(job, "s", once="bridge") as writer:
        at = writer.resume()
    end = at + 5_000
    for again in range(2):
        with bridge(job, end + again * 100, again) as process:
            assert process.stdout is not None
            first, *_ = process.stdout
            assert int(first) == (at, end)[again], "what close leaves open goes on there"
        assert process.returncode == 0
    found = sorted(v for rows in Reader.from_job(job, "s", until_now=True) for v in rows["v"].to_pylist())
    assert found == list(range(end + 100))


def test_what_cannot_resume_is_refused(emulator: Azurite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONNECT", emulator.connection_string)
    job = tmp_path / "job.toml"
    job.write_text(JOB.replace('"bridge"', '"refused"'))
    with pytest.raises(ConfigError, match="give once=KEY"):
        SourceWriter.from_job(job, "s").resume()
    with SourceWriter.from_job(job, "s", once="k") as writer:
        writer.write(pa.table({"v": [1]}))
        with pytest.raises(ConfigError, match="before its first row"):
            writer.resume()
    with pytest.raises(ConfigError, match="has ended with 1 rows"):
        SourceWriter.from_job(job, "s", once="k").resume()
    writer = SourceWriter.from_job(job, "s", once="open")
    assert writer.resume() == 0
    with pytest.raises(ConfigError, match="Leave the key out"):
        writer.write(pa.table({"v": [1]}), "v")
