"""The example of a table runs, and says what it promises."""

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "table" / "append_and_compact.py"


@pytest.mark.long  # what it calls has tests in tests/storage
def test_the_example_of_a_table() -> None:
    ended = subprocess.run([sys.executable, str(EXAMPLE)], capture_output=True, text=True, timeout=200, check=False)
    assert ended.returncode == 0, ended.stderr
    said = ended.stdout
    assert "120 files were appended" in said
    assert "│ AA      │  1440 │" in said
    assert "│ UA      │  1440 │" in said
    assert "106" in said, "the largest delay of the second day: 59 + 47"
