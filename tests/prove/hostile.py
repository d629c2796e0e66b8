"""10,000 cases of hostile contents in valid frames, each against the code that reads them.

python tests/prove/hostile.py [--cases 10000] [--seed 1000] [--jobs N]

Each job is a process of its own that may use 3 GiB of addresses beyond what it has when its first case begins, so a
reader that believes a size fails. Prints how the cases ended, the most memory, and any file outside of a case's
directory; ends with 1 if anything is wrong. A failing case prints its seed: --seed N --cases 1 plays it again.
"""

import argparse
import os
import resource
import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from tests.hostile.contents import play  # noqa: E402  (needs the path above)

ROOM = 3 << 30
#: The most that the memory of a job may grow by.
GROWTH_MAX = 1 << 30
#: Cases of one job before the next ones are given out.
AT_ONCE = 50

#: The most memory of this process when its first case begins, in KiB.
AT_FIRST = [0]

Ends = tuple[Counter[tuple[str, bool]], list[str], int]


def begin() -> None:
    """Bound this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * os.sysconf("SC_PAGE_SIZE") + ROOM
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    AT_FIRST[0] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def run(seeds: range) -> Ends:
    """Play the cases of these seeds: how they ended, what was wrong, and by how many bytes the memory has grown since
    the first case."""
    ends: Counter[tuple[str, bool]] = Counter()
    wrong = []
    with tempfile.TemporaryDirectory() as folder:
        for seed in seeds:
            directory = Path(folder) / str(seed)
            directory.mkdir()
            try:
                verdict = play(seed, directory)
                ends[verdict.play, verdict.is_accepted] += 1
            except BaseException:  # noqa: BLE001  # whatever a reader raises that is no SamzaAzureError
                wrong.append(f"seed {seed}: {traceback.format_exc()[-1500:]}")
            shutil.rmtree(directory)
            if stray := [path.name for path in Path(folder).iterdir()]:
                wrong.append(f"seed {seed}: files beside its directory: {stray}")
    return ends, wrong, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - AT_FIRST[0]) << 10


def main() -> int:
    """Play all cases."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1_000)
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    given = parser.parse_args()
    began, ends, wrong, grown = time.monotonic(), Counter[tuple[str, bool]](), list[str](), 0
    last = given.seed + given.cases
    parts = [range(first, min(first + AT_ONCE, last)) for first in range(given.seed, last, AT_ONCE)]
    with ProcessPoolExecutor(given.jobs, mp_context=get_context("spawn"), initializer=begin) as processes:
        for found, failures, more in processes.map(run, parts):
            ends += found
            wrong += failures
            grown = max(grown, more)
            print("\n".join(failures), end="\n" if failures else "", flush=True)
    for name in sorted({name for name, _ in ends}):
        print(f"{name:8} {ends[name, False]:6} refused {ends[name, True]:6} accepted and right")
    print(f"{given.cases} cases in {time.monotonic() - began:.0f} s; memory grew by at most {grown >> 20} MiB in a job")
    if grown > GROWTH_MAX:
        wrong.append(f"more than {GROWTH_MAX >> 20} MiB")
    print(f"{len(wrong)} wrong" if wrong else "nothing wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
