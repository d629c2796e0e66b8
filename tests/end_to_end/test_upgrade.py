"""Version 1 is drained in mid-stream, and version 2, with another stage and schema, goes on: `examples/upgrade`."""

import re
import subprocess
import sys

import pytest

from .real_processes import ROOT


@pytest.mark.long
def test_an_upgrade_in_mid_stream_puts_out_a_batch_of_each_version() -> None:
    """The example compares row for row, with a Spark batch of each version over the rows that it has read."""
    example = ROOT / "examples" / "upgrade" / "upgrade.py"
    ended = subprocess.run([sys.executable, str(example)], capture_output=True, text=True, timeout=550, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr[-3000:]
    before, after = map(int, re.findall(r"source rows: (\d+) of version 1, (\d+) of version 2", ended.stdout)[0])
    assert (before > 0, after > 0, before + after) == (True, True, 20_000)
    assert "\nequal\n" in ended.stdout
