"""Threads of another process that run after others."""

import os
import subprocess
from pathlib import Path

from samza_azure.machine import lower_threads


def test_only_the_threads_of_that_name_are_lowered() -> None:
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as child:
        while (Path("/proc") / str(child.pid) / "comm").read_text() != "cat\n":
            pass  # it is still this program
        nice = os.getpriority(os.PRIO_PROCESS, child.pid)
        assert (lower_threads(child.pid, "dog", nice + 5), lower_threads(child.pid, "ca", nice + 5)) == (0, 1)
        assert os.getpriority(os.PRIO_PROCESS, child.pid) == nice + 5
        child.communicate()
    assert lower_threads(child.pid, "ca", 5) == 0
