"""Commands as processes of their own, forked from one that has imported what commands import.

What runs is what `samza-azure` runs, with an environment, a folder and files for its output of its own. Only the start
is shorter: half of the processor time of a command are imports. What a start does is tested where commands are started
as people start them, as in `test_mistakes.py` and `test_without_spark.py`.
"""

import multiprocessing
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from samza_azure.cli import COMMANDS, main

#: The others start processes or serve a page, and load what most commands do not need.
LOADED = sorted(COMMANDS.keys() - {"run", "dev", "guard", "azurite", "master", "worker", "executor", "ui"})
MODULES = ["azure.storage.blob.aio", "azure.data.tables.aio", "pyarrow.parquet", "pyarrow.csv", __name__]
processes = multiprocessing.get_context("forkserver")


def run(
    *arguments: str, env: Mapping[str, str], cwd: Path | None = None, timeout: float = 120.0
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    processes.set_forkserver_preload([*(f"samza_azure.commands.{name}" for name in LOADED), *MODULES])
    with tempfile.TemporaryDirectory() as folder:
        said = [str(Path(folder, name)) for name in ("stdout", "stderr")]
        process = processes.Process(
            target=_live, args=(arguments, dict(env), str(cwd or Path.cwd()), said), daemon=True
        )
        process.start()
        process.join(timeout)
        if process.exitcode is None:
            process.kill()
            raise subprocess.TimeoutExpired(arguments, timeout)
        out, progress = (Path(path).read_text() for path in said)
    return subprocess.CompletedProcess(arguments, process.exitcode, out, progress)


def _live(arguments: tuple[str, ...], environment: dict[str, str], folder: str, said: list[str]) -> None:
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    for number, path in enumerate(said, 1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), number)
    sys.argv = ["samza-azure", *arguments]
    main()
