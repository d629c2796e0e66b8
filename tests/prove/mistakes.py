"""The mistakes of a first hour, made in front of `check`, `run` and `dev`: real processes on Azurite, with Spark.

python tests/prove/mistakes.py [--only NAME ...]

They are those of `tests/commands/mistakes.py`. All three must show each, `dev` on a terminal of 100 columns, with its
file, and its line or its key in the job file, and end with 2. Then the remedy is pasted: `check` finds no mistake, with
`run` all tasks run, and so they do with the `dev --reload` that has shown the mistake. Many mistakes have the same
right job, which is run once. What failed is printed. A quarter of an hour.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from samza_azure.commands.azurite.emulator import Azurite  # noqa: E402  (needs the path above)
from samza_azure.errors import SamzaAzureError  # noqa: E402
from tests.commands.mistakes import MISTAKES  # noqa: E402
from tests.commands.plays import Play  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", choices=[*MISTAKES], default=[*MISTAKES], metavar="NAME")
    chosen = parser.parse_args().only
    failed: list[str] = []
    passed: set[tuple[str, str, bool]] = set()  # what `check` has found right, with Spark or without
    ran: set[tuple[str, str]] = set()

    def tried(what: str, act: Callable[[], None]) -> None:
        begun = time.monotonic()
        try:
            act()
        except (AssertionError, SamzaAzureError, subprocess.TimeoutExpired) as error:
            failed.append(f"{what}: {error}")
            print(f"  {failed[-1]}", flush=True)
        else:
            print(f"  {what}: {time.monotonic() - begun:.1f} s", flush=True)

    with Azurite().start() as azurite, tempfile.TemporaryDirectory(prefix="samza-azure-prove-") as directory:
        for number, name in enumerate(chosen):
            print(name, flush=True)
            play = Play(Path(directory) / f"shop{number}", azurite.connection_string, MISTAKES[name])
            play.mistaken()
            tried(f"{name}: check refuses it", play.is_refused_by_check)
            tried(f"{name}: run refuses it", play.is_refused_by_run)
            tried(f"{name}: dev refuses it", play.is_refused_by_dev)
            right = play.remedied()
            if (*right, play.mistake.needs_spark) not in passed:
                passed.add((*right, play.mistake.needs_spark))
                tried(f"{name}: check finds the remedy right", play.passes_check)
            if right not in ran:
                ran.add(right)
                tried(f"{name}: run runs the remedy", play.runs)
                tried(f"{name}: dev runs the remedy when it is saved", play.is_mended_in_dev)
    print(f"{len(chosen)} mistakes in check, run and dev; {len(ran)} different remedied jobs were run")
    for each in failed:
        print(f"FAILED {each}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
