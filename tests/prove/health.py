"""The health of real processors is requested every second, while the storage and then a processor are frozen.

python tests/prove/health.py [--outage 120] [--freeze 60]

The storage is frozen: no answer of `/livez` may be other than 200, `/readyz` becomes 503 without storage and 200 again,
and no process of the fleet is another one afterwards. Then all processes of one processor are frozen and thawed, as
with their machine: it is never reported as dead, takes part again, and its processes are the same. What was seen is
printed. Four minutes.
"""

import argparse
import json
import re
import signal
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "examples" / "flights"), str(ROOT)]

from flights import write  # noqa: E402  (needs the path above)

from tests.end_to_end.real_processes import JobOnAzurite  # noqa: E402

NAMES = ("p0", "p1")
PATIENCE_S = 120.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--outage", type=float, default=120.0)
    parser.add_argument("--freeze", type=float, default=60.0)
    chosen = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="samza-azure-prove-"))
    write(directory / "flights.parquet")
    world = JobOnAzurite(directory, pq.read_table(directory / "flights.parquet"), more="\n[processor]\nport = 0\n")
    try:
        world.start(*NAMES)
        ready(world)
        before = {name: [process.pid for process in world.tree(name)[:2]] for name in NAMES}
        outage(world, chosen.outage)
        assert before == {name: [process.pid for process in world.tree(name)[:2]] for name in NAMES}
        print("the same processes as before")
        freeze(world, "p0", chosen.freeze)
        world.settled()
        assert before == {name: [process.pid for process in world.tree(name)[:2]] for name in NAMES}
        print("the same processes as before")
        return 0
    finally:
        world.close()


def outage(world: JobOnAzurite, seconds: float) -> None:
    """The storage does not answer for this long."""
    seen: Counter[str] = Counter()
    world.emulator_signal(signal.SIGSTOP)
    try:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            look(world, NAMES, seen)
            time.sleep(1.0)  # the pace of asking
    finally:
        world.emulator_signal(signal.SIGCONT)
    print(f"storage frozen for {seconds:.0f} s: {dict(seen)}", flush=True)
    assert all(f"{name} 503 storage" in seen for name in NAMES)
    begun = time.monotonic()
    ready(world)
    print(f"ready again {time.monotonic() - begun:.1f} s after it came back", flush=True)


def freeze(world: JobOnAzurite, name: str, seconds: float) -> None:
    """All processes of one processor are frozen for this long, as on a frozen machine."""
    processes = world.tree(name)
    for process in processes:
        process.suspend()
    time.sleep(seconds)  # it is this long that makes the case
    for process in processes:
        process.resume()
    ready(world)
    print(f"{name} frozen for {seconds:.0f} s: never said to be dead, and ready again", flush=True)


def ready(world: JobOnAzurite) -> None:
    """All are ready, and were alive at every look until then."""
    begun = time.monotonic()
    while True:
        seen: Counter[str] = Counter()
        look(world, NAMES, seen)
        if set(seen) == {f"{name} 200" for name in NAMES}:
            return
        assert time.monotonic() < begun + PATIENCE_S, seen
        time.sleep(1.0)  # the pace of asking


def look(world: JobOnAzurite, names: tuple[str, ...], seen: Counter[str]) -> None:
    """Ask each once. `seen` counts what `/readyz` says; `/livez` must say 200."""
    for name in names:
        port = re.findall(r"health on 127\.0\.0\.1, port (\d+)", world.fleet.log_file(name).read_text())[-1]
        status, document = ask(port, "/livez")
        assert status == 200, (name, document)
        status, document = ask(port, "/readyz")
        seen[f"{name} {status} {document.get('reason', '')}".strip()] += 1


def ask(port: str, route: str) -> tuple[int, dict[str, str]]:
    """Status and document."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{route}", timeout=20) as said:
            return said.status, json.load(said)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


if __name__ == "__main__":
    sys.exit(main())
