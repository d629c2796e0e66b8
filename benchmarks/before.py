"""This commit beside an older one, in one run.

python benchmarks/before.py [COMMIT] [--rounds 3] [--times 8] [--profiles fast default]
python benchmarks/before.py [COMMIT] --virtual [--rounds 1] [--times 80]
python benchmarks/before.py COMMIT --scripts demo throughput hand_over … [--rounds 3]

The older one is taken out of git into a scratch directory, and its own scripts measure it. Both take turns, round by
round, so that what else the machine does meets both. Without --scripts it is fail-over, joins and price; without a
commit beside the last one before the lifecycle of processors was mended (2026-11-22). Price is what `explain` says
that a group costs while nothing happens; `tests/sim/test_cost.py` of either commit counts that these are the calls.

With --virtual it is fail-over and joins in virtual time, in the fleet of `scale.py`: a killing begins at any moment
between two heartbeats, which makes seconds of difference, so only many of them tell two commits apart.

With --scripts it is the figures of these benchmarks, in their quick form, and of the demo.

Ends with 1 if a median is worse by more than the tolerance that is printed.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).parents[1]
BEFORE = "6503dbb"
#: How much longer a median may take and still count as the same. Scripts that run once or twice vary more.
PART, SECONDS, SCRIPTS_PART = 0.05, 0.1, 0.1
#: Runs in a tree of its own, with its own modules: only what both commits have is named here.
MEASURE = """
import json, os, random, signal, sys
sys.path.insert(0, "benchmarks")
import coordination
from coordination import PROFILES, joins, losses
from samza_azure import explain
profile, times = sys.argv[1], int(sys.argv[2])
# Without this, each join begins when the leader's last scan was about as old as at the join before.
join, beat_s = coordination.join, PROFILES[profile].heartbeat_s
coordination.join = lambda members, count, quiet_s: join(members, count, quiet_s + random.uniform(0, beat_s))
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
    cost = explain.coordination(PROFILES[profile], count)
    found[f"an idle month of a group of {count}, dollars"] = [cost.dollars_per_month]
with open(os.environ["SAID"], "w") as file:
    json.dump(found, file)
"""
#: The same in virtual time. The class of the fleet has had two names.
VIRTUAL = """
import asyncio, json, os, random, sys
sys.path.insert(0, "benchmarks")
import scale
profile, times = sys.argv[1], int(sys.argv[2])
scale.say, scale.LOOK_S, scale.TASKS_EACH, scale.TIMING = (lambda what: None), 0.02, 5, scale.PROFILES[profile]
kind = next(each for each in vars(scale).values() if hasattr(each, "decided"))
names = ("leader killed, s until the next one leads", "leader killed, s until its tasks run elsewhere")
found = {name: [] for name in (*names, "a fourth joins three, s until balanced")}

async def play(fleet, dice):
    timing, loop = scale.TIMING, fleet.loop
    for number in range(3):
        await fleet.join(f"p{number}", dice.random())
    await fleet.heal("the start")
    await asyncio.sleep(timing.debounce_s + dice.uniform(1, 2) * timing.heartbeat_s)
    await fleet.join("p3", 0)
    found["a fourth joins three, s until balanced"].append(await fleet.heal("the join"))
    await asyncio.sleep(timing.debounce_s + dice.uniform(1, 2) * timing.heartbeat_s)
    leader, begun = fleet.control.leader.processor, loop.time()
    fleet.kill(leader)
    while fleet.control.leader.processor == leader:
        await asyncio.sleep(scale.LOOK_S)
    found[names[0]].append(loop.time() - begun)
    await fleet.heal("the kill")
    found[names[1]].append(loop.time() - begun)
    for name in list(fleet.living):
        fleet.kill(name)
    await asyncio.sleep(1)

for number in range(times):
    fleet = kind(4)
    fleet.loop.run_until_complete(play(fleet, random.Random(number)))
with open(os.environ["SAID"], "w") as file:
    json.dump(found, file)
"""
#: The same for a script that returns claims.
CLAIMS = """
import json, os, sys
from importlib import import_module
sys.path.insert(0, "benchmarks")
claims = import_module(sys.argv[1]).measure(True)
with open(os.environ["SAID"], "w") as file:
    json.dump([[claim.what, claim.figure] for claim in claims], file)
"""
DEMO = "demo"
#: A number with its unit in a figure; of these units more is better.
FIGURE = re.compile(r"([-+]?[\d,]*\.?\d+) ?(rows/s|per CPU second|ms|s|MB|%)(?![\w/])")
MORE_IS_BETTER = ("rows/s", "per CPU second")
#: What a figure is of may contain how much it was this time.
AMOUNT = re.compile(r"[\d,]+ (records|KiB)")
#: Figures of plain Spark, which the benchmark compares with.
NOT_OURS = "Parquet sink"
DEMO_LINE = re.compile(r"^ *[\d.]+ s  (.+): ([\d.]+ s)$", re.MULTILINE)


@contextmanager
def tree_of(commit: str) -> Any:
    """The files of a commit, beside ours."""
    with tempfile.TemporaryDirectory(prefix="samza-azure-before-") as folder:
        archive = subprocess.run(["git", "archive", commit], cwd=ROOT, capture_output=True, check=True).stdout
        subprocess.run(["tar", "-x", "-C", folder], input=archive, check=True)
        yield Path(folder)


def measured(tree: Path, code: str, profile: str, times: int) -> dict[str, list[float]]:
    """One round of fail-over and joins in one tree."""
    found: dict[str, list[float]] = said_by(tree, code, profile, str(times))
    return found


def figures_of(tree: Path, script: str) -> dict[str, list[float]]:
    """The figures of one script, or of the demo, in one tree: by what they are of, and their unit."""
    if script == DEMO:
        demo = [sys.executable, "examples/flights/demo.py"]
        told = subprocess.run(demo, cwd=tree, env=environment_of(tree), stdout=subprocess.PIPE, text=True, check=True)
        claims = DEMO_LINE.findall(told.stdout)
    else:
        claims = said_by(tree, CLAIMS, script)
    found: dict[str, list[float]] = {}
    times = Counter[str]()
    for what, figure in claims:
        name = AMOUNT.sub(r"\1", what)
        times[name] += 1
        which = f" ({times[name]})" if times[name] > 1 else ""
        for number, unit in FIGURE.findall(figure):
            if NOT_OURS not in what:
                # The first of each unit: scripts put what they claim before what they add, as a median before its p95.
                found.setdefault(f"{script}: {name}{which}, {unit}", [float(number.replace(",", ""))])
    return found


def said_by(tree: Path, code: str, *arguments: str) -> Any:
    """What code says that runs in one tree."""
    with tempfile.NamedTemporaryFile() as said:
        environment = environment_of(tree) | {"SAID": said.name}
        subprocess.run([sys.executable, "-c", code, *arguments], cwd=tree, env=environment, check=True)
        return json.loads(Path(said.name).read_text())


def environment_of(tree: Path) -> dict[str, str]:
    """With the modules of this tree."""
    return os.environ | {"PYTHONPATH": f"{tree}{os.pathsep}{tree / 'benchmarks'}"}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commit", nargs="?", default=BEFORE)
    parser.add_argument("--rounds", type=int, default=None)
    parser.add_argument("--times", type=int, default=None, help="kills of each kind in a round")
    parser.add_argument("--virtual", action="store_true", help="in virtual time")
    parser.add_argument("--profiles", nargs="+", default=["fast", "default"])
    parser.add_argument("--scripts", nargs="+", metavar="SCRIPT", help=f"benchmarks of both commits, or `{DEMO}`")
    asked = parser.parse_args()
    code, rounds, times = (VIRTUAL, 1, 80) if asked.virtual else (MEASURE, 3, 8)
    rounds, times = asked.rounds or rounds, asked.times or times
    found: dict[tuple[str, str], dict[str, list[float]]] = defaultdict(dict)
    begun = time.monotonic()
    with tree_of(asked.commit) as before:
        trees = [("before", before), ("now", ROOT)]
        for number in range(rounds):
            for each in asked.scripts or asked.profiles:
                for name, tree in trees if number % 2 == 0 else reversed(trees):
                    figures = figures_of(tree, each) if asked.scripts else measured(tree, code, each, times)
                    for what, values in figures.items():
                        found[each, what].setdefault(name, []).extend(values)
                    print(f"{time.monotonic() - begun:5.0f} s  round {number + 1}: {each}, {name}", flush=True)
    part = SCRIPTS_PART if asked.scripts else PART
    table = Table("of", "what", f"before, {asked.commit}", "now", "not worse")
    worse = 0
    for (each, what), of_both in found.items():
        if not {"before", "now"} <= of_both.keys():
            continue
        then, now = (statistics.median(of_both[name]) for name in ("before", "now"))
        more_is_better = what.endswith(MORE_IS_BETTER)
        slack = SECONDS if " s " in f" {what} " else 0.0
        fine = now >= then * (1 - part) if more_is_better else now <= then * (1 + part) + slack
        worse += not fine
        table.add_row(each, what, *(shown(of_both[name]) for name in ("before", "now")), "yes" if fine else "NO")
    Console(width=160).print(table)
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    print(
        f"{worse} worse by more than {part:.0%} (and, of seconds, {SECONDS} s); load {load}; medians (of how many), "
        f"{time.monotonic() - begun:.0f} s in all"
    )
    return 1 if worse else 0


def shown(values: list[float]) -> str:
    """The median, and what it is of."""
    return f"{statistics.median(values):,.2f} ({len(values)})"


if __name__ == "__main__":
    sys.exit(main())
