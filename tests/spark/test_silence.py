"""A container that hangs under a living supervisor is replaced, whichever part of it hangs."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from .child import QUICK_JAVA
from .test_container import job  # noqa: F401 - a fixture

WITHOUT_SPARK = """
from samza_azure import Application
app = Application()

@app.task("numbers")
class Nothing:
    def process(self, envelope, collector): ...
"""
JAVA, PYTHON = "java", "python"


@pytest.fixture
def processor(job: Path, parts: list[str]) -> Iterator["subprocess.Popen[str]"]:  # noqa: F811
    """One `samza-azure run` that has little patience with its container. It has a JVM if that is to hang."""
    if JAVA not in parts:
        (job.parent / "pipeline.py").write_text(WITHOUT_SPARK)
        job.write_text(job.read_text().replace('name = "test"', 'name = "silent"'))
    job.write_text(f"{job.read_text()}[task]\nshutdown.ms = 4000\n[processor]\ndir = '{job.parent / 'own'}'\n")
    command = [sys.executable, "-m", "samza_azure", "run", str(job)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**os.environ, **QUICK_JAVA})
    yield process
    process.kill()
    process.wait()


def hears(process: "subprocess.Popen[str]", text: str) -> None:
    """Read what it says until this comes."""
    assert process.stderr is not None
    said = []
    for line in process.stderr:
        said.append(line)
        if text in line:
            return
    pytest.fail(f"It ended without {text!r}: {said}")


def below(process: int, name: str) -> psutil.Process:
    """The one with this name in its tree."""
    return next(each for each in psutil.Process(process).children(recursive=True) if each.name().startswith(name))


@pytest.mark.parametrize(
    "parts", [[PYTHON], pytest.param([JAVA, PYTHON], marks=pytest.mark.long)], ids=["no JVM", "JVM first"]
)
def test_a_container_that_says_nothing_is_killed_and_another_one_starts(
    processor: "subprocess.Popen[str]", parts: list[str]
) -> None:
    """A JVM that hangs is in `tests/end_to_end/test_faults.py` as well."""
    for part in parts:
        hears(processor, "container ready")
        stopped = below(processor.pid, part)

        stopped.send_signal(signal.SIGSTOP)

        hears(processor, "container ended (it or its JVM did not answer for 4 s)")
    os.kill(processor.pid, signal.SIGTERM)
    assert processor.wait(60) == 0
