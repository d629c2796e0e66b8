"""Fail-over, joins and price beside an older commit, in one run: python benchmarks/before.py [COMMIT] [--rounds 3].

The older one is taken out of git into a scratch directory, and its own `coordination.py` measures it. Both take turns,
round by round, so that what else the machine does meets both. Without a commit it is the last one before the lifecycle
of processors was mended (2026-11-22). Price is what `explain` says of an idle hour; `tests/sim/test_cost.py` of either
commit counts that these are the calls. Ends with 1 if a median is worse by more than 5 % and a tenth of a second.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).parents[1]
BEFORE = "6503dbb"
#: How much longer a median may take and still count as the same.
PART, SECONDS = 0.05, 0.1
#: Runs in a tree of its own, with its own modules: only what both commits have is named here.
MEASURE = """
import json, os, signal, sys
sys.path.insert(0, "benchmarks")
import coordination
from coordination import PROFILES, joins, losses
from dataclasses import asdict
from samza_azure import explain
profile, times = sys.argv[1], int(sys.argv[2])
found = {}
for who, the_leader in (("leader", True), ("follower", False)):
    lost = losses(profile, signal.SIGKILL, times, 2, the_leader=the_leader)
    if the_leader:
        found["leader killed, s until the next one leads"] = [each.led for each in lost]
    found[f"{who} killed, s until its tasks run elsewhere"] = [each.ran for each in lost]
joined = joins(profile, 16, max(1, times // 2))
found["a fourth joins three, s until balanced"] = [each.took for each in joined]
found["  tasks that move"] = [each.moves for each in joined]
found["  s that a task which stays stands still"] = [each.pause for each in joined]
for count in (3, 10, 100):
    cost = asdict(explain.coordination(PROFILES[profile], count))
    for what, times in cost.items():
        found[f"an idle hour of {count}: {what}"] = [times]
with open(os.environ["SAID"], "w") as file:
    json.dump(found, file)
"""


@contextmanager
def tree_of(commit: str) -> Any:
    """The files of a commit, beside ours."""
    with tempfile.TemporaryDirectory(prefix="samza-azure-before-") as folder:
        archive = subprocess.run(["git", "archive", commit], cwd=ROOT, capture_output=True, check=True).stdout
        subprocess.run(["tar", "-x", "-C", folder], input=archive, check=True)
        yield Path(folder)


def measured(tree: Path, profile: str, times: int) -> dict[str, list[float]]:
    """One round in one tree."""
    with tempfile.NamedTemporaryFile() as said:
        environment = os.environ | {"PYTHONPATH": f"{tree}{os.pathsep}{tree / 'benchmarks'}", "SAID": said.name}
        command = [sys.executable, "-c", MEASURE, profile, str(times)]
        subprocess.run(command, cwd=tree, env=environment, check=True)
        found: dict[str, list[float]] = json.loads(Path(said.name).read_text())
        return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commit", nargs="?", default=BEFORE)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--times", type=int, default=8, help="kills of each kind in a round")
    parser.add_argument("--profiles", nargs="+", default=["fast", "default"])
    asked = parser.parse_args()
    found: dict[tuple[str, str], dict[str, list[float]]] = defaultdict(dict)
    begun = time.monotonic()
    with tree_of(asked.commit) as before:
        for number in range(asked.rounds):
            for profile in asked.profiles:
                for name, tree in (("before", before), ("now", ROOT)):
                    for what, values in measured(tree, profile, asked.times).items():
                        found[profile, what].setdefault(name, []).extend(values)
                    print(f"{time.monotonic() - begun:5.0f} s  round {number + 1}: {profile}, {name}", flush=True)
    table = Table("profile", "what", f"before, {asked.commit}", "now", "not worse")
    worse = 0
    for (profile, what), values in found.items():
        if not {"before", "now"} <= values.keys():
            continue
        then, now = (statistics.median(values[name]) for name in ("before", "now"))
        fine = now <= then * (1 + PART) + (SECONDS if " s " in f" {what} " else 0.0)
        worse += not fine
        table.add_row(profile, what, *(shown(values[name]) for name in ("before", "now")), "yes" if fine else "NO")
    Console(width=140).print(table)
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    print(f"{worse} worse; load {load}; medians (of how many), {time.monotonic() - begun:.0f} s in all")
    return 1 if worse else 0


def shown(values: list[float]) -> str:
    """The median, and what it is of."""
    return f"{statistics.median(values):.2f} ({len(values)})"


if __name__ == "__main__":
    sys.exit(main())
