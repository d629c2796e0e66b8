"""Mutants drawn from the pure packages, hunted by the general simulator, and by the tests where it is silent.

python tests/prove/drawn_mutants.py [--draw 60] [--from SEED] [--seconds 60] [--record 240] [--jobs 2] [--only WHERE …]

The mutants are not chosen but drawn from all places that `tests/mutation/places.py` knows. First the simulator
plays as it is, for `--record` seconds in each process, and it is recorded which game meets which place so that a change
there would show (`tests/mutation/steering.py`; kept in `build/` for as long as the code stays as it is). Fewer places
than the floor are an error. Then each mutant plays the games that meet its place, the densest first, for `--seconds` of
processor time at most, and is killed by the first in which an invariant is broken. What survives them, or is met by no
game, is shown to the tests of its package, which are a second net and counted apart.

Each verdict is printed and kept in `build/` as soon as it is there, so a list that is started again continues where it
ended; `--again` begins anew. A list of 60 takes at most `--draw` times `--seconds` of processor time, divided by
`--jobs`, and some minutes more for recordings and for games that are long.

The sums say how many were killed by a fleet, and how many by a piece that was played by itself.

Ends with 1 if more than a tenth of the mutants survive both and are not explained in EXPLAINED.
"""

import argparse
import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from random import Random

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.mutation.places import ROOT, Place, make, places
from tests.mutation.steering import ALONE, Game, Record, joined, kept, load, record

#: So many of all places the recorded games must meet. What they do not meet is what only the tests reach: bytes that
#: are damaged, rows of strangers, later releases.
FLOOR = 0.75
#: One game of a mutant that takes so many times as long as recorded, and so many seconds more, hangs.
HANGS, HANGS_S = 5.0, 30.0
#: Who does nothing at all for so many times its processor time, on however busy a machine, waits for ever.
WAITS = 20.0
_PRUNES = "if len(self.files) > self._prune_at or self._unpruned > PRUNE_BYTES:  # rarely, so it is cheap on average"
#: Survivors that were looked at, by file, change and the text of the line: why nothing can tell them from the original.
EXPLAINED: dict[tuple[str, str, str], str] = {
    ("samza_azure/logs/task_log.py", "widened", "if refusals == REFUSALS_MAX:"): "it rises by one at a time",
    (
        "samza_azure/group/election.py",
        "widened",
        "is_heard = view.life.accepted_at > now - 2 * view.timing.heartbeat_s",
    ): "it would have to be that very moment",
    (
        "samza_azure/group/learn.py",
        "widened",
        "same = before is not None and before.generation == start.generation",
    ): "a task is never given again under a lower version than before",
    (
        "samza_azure/group/learn.py",
        "widened",
        "same = known is not None and (known.generation, known.attempt) == (report.generation, report.attempt)",
    ): "both numbers only rise, so what is known is never above what is reported",
    (
        "samza_azure/logs/task_log.py",
        "widened",
        "if window.name != log.blob:",
    ): "the names of a log's blobs only rise",
    (
        "samza_azure/logs/reading.py",
        "widened",
        "if window.name != blob_name(prefix, index):",
    ): "the names of a log's blobs only rise",
    (
        "samza_azure/logs/reading.py",
        "widened",
        "if header is None or start + header.length != size:",
    ): "`Window.header` has refused a record that ends behind its blob",
    (
        "samza_azure/logs/record.py",
        "widened",
        "if text_at + text_length + _CRC.size != size:",
    ): "no JSON is whole without its last byte, nor with one of the CRC behind it",
    (
        "samza_azure/logs/record.py",
        "tripled",
        "return _unpack_files(zlib.decompress(data, bufsize=max(header.files_unpacked, 1)))",
    ): "it is the size of a buffer that grows",
    (
        "samza_azure/logs/restart_files.py",
        "widened",
        'if found and found["kind"] == "zip":',
    ): "no kind of file comes behind it in the alphabet",
    (
        "samza_azure/logs/source_log.py",
        "tripled",
        "position=log.end[1],",
    ): "it is part of a message",
    **dict.fromkeys(
        (
            ("samza_azure/logs/task_log.py", "widened", _PRUNES),
            ("samza_azure/logs/task_log.py", "dropped", "self._unpruned = 0"),
        ),
        "it decides when memory is freed, and whoever looks prunes first",
    ),
    (
        "samza_azure/logs/task_log.py",
        "widened",
        "idle = log.idle and log.writer == log.owner  # a new owner is not idle until it reports so",
    ): "a writer above ours has ended us before",
    (
        "samza_azure/logs/reading.py",
        "widened",
        "is_index_enough = header.length > LARGE and len(entries) < len(header.entries)",
    ): "it decides how much is read at a time, never what is found",
    (
        "samza_azure/logs/reading.py",
        "widened",
        "if entries and header.length <= CHUNK:  # small: one more read gets the rest of it and what follows",
    ): "of a record of just that length the rest is read by itself: the same bytes",
    (
        "samza_azure/logs/reading.py",
        "and/or",
        "if entries and header.length <= CHUNK:  # small: one more read gets the rest of it and what follows",
    ): "it decides how much is read at a time, never what is found",
    (
        "samza_azure/logs/reading.py",
        "and/or",
        "is_index_enough = header.length > LARGE and len(entries) < len(header.entries)",
    ): "it decides how much is read at a time, never what is found",
    (
        "samza_azure/logs/operations.py",
        "dropped",
        "self._start = 0",
    ): "the first read sets it, and a window whose blob was missing is at its end for good",
    (
        "samza_azure/logs/operations.py",
        "widened",
        "if position > self._size:",
    ): "where it is the same, `at_end` has just returned",
}
#: The second net.
TESTS = {f"samza_azure/{name}": [f"tests/{name}"] for name in ("group", "logs", "streams")}


def played(place: str, games: list[tuple[Game, float]], seconds: float) -> str:
    """Play until an invariant is broken: what became of the mutant. In a process of its own."""
    make(place)
    try:
        import samza_azure.sim.world  # noqa: F401
    except Exception as error:  # noqa: BLE001  # a mutant that cannot be imported is seen at once
        return f"killed import {type(error).__name__}: {error}"
    end, count = time.process_time() + seconds, 0
    for game, usual_s in games:
        signal.signal(signal.SIGVTALRM, lambda *_, game=game: (print(f"killed {game} hangs", flush=True), os._exit(0)))
        signal.setitimer(signal.ITIMER_VIRTUAL, HANGS * usual_s + HANGS_S)
        violation = game.violation()
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        count += 1
        if violation is not None:
            return f"killed {game} as game {count}: {violation.splitlines()[0][:150]}"
        if time.process_time() > end:
            break
    return f"survives {count} games"


def hunt(place: Place, known: Record, seconds: float, *, also_tests: bool = True) -> tuple[str, str]:
    """The verdict, and the test or game that gave it."""
    games = [[str(game), known.seconds[game]] for game in known.best(place.key)]
    said = f"survives: met by none of {len(known.seconds)} games"
    if games:
        longest = seconds + max(HANGS * usual + HANGS_S for _, usual in games)
        one = ("--one", place.key, json.dumps(games), "--seconds", str(seconds))
        said = own_process(*one, within_s=WAITS * longest)
    if said.startswith("killed"):
        return "killed", said.partition(" ")[2]
    if not said.startswith("survives"):
        return "unknown", said
    if not also_tests:
        why = EXPLAINED.get((place.path, place.what, place.text))
        return ("explained", why) if why else ("survives", said)
    tests = next(folders for package, folders in TESTS.items() if place.path.startswith(package))
    options = ["-q", "-x", "--no-header", "--timeout=120", "-p", "no:cacheprovider", "-p", "tests.mutation.plugin"]
    environment = os.environ | {"MUTANT": place.key, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "pytest", *options, *tests]
    process = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    if process.returncode:
        told = [line for line in process.stdout.splitlines() if line.startswith(("FAILED", "ERROR", "E  "))]
        return "by a test", f"{told[-1][:150] if told else process.stdout[-150:]}; {said}"
    why = EXPLAINED.get((place.path, place.what, place.text))
    return ("explained", why) if why else ("survives", said)


def killer(verdict: str) -> str:
    """Whether it was a fleet, a piece of one by itself, or neither: it cannot be imported, or breaks the simulator."""
    scenario, colon, _ = verdict.partition(":")
    if not colon or not scenario.lstrip("-").isdecimal():
        return "neither"
    return "a piece" if int(scenario) == ALONE else "a fleet"


def own_process(*arguments: str, within_s: float) -> str:
    """What this script says in a process of its own, which may also hang."""
    command = [sys.executable, __file__, *arguments]
    try:
        process = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=within_s)
    except subprocess.TimeoutExpired:
        return f"no verdict within {within_s:.0f} s"
    lines = [line for line in process.stdout.splitlines() if line.startswith(("killed", "survives"))]
    return lines[-1] if lines else f"killed the simulator itself fails: {(process.stdout.strip() or 'silence')[-150:]}"


class Log:
    """The verdicts so far, a line each, of one state of the code and one way to ask."""

    def __init__(self, path: Path) -> None:
        self._path, self._lock = path, threading.Lock()
        self.found: dict[str, tuple[str, str]] = {}
        for line in path.read_text().splitlines() if path.exists() else ():
            key, verdict, more = json.loads(line)
            self.found[key] = verdict, more

    def add(self, place: Place, verdict: str, more: str) -> None:
        """At once, so that nothing is lost with the process."""
        with self._lock:
            self.found[place.key] = verdict, more
            with self._path.open("a") as file:
                file.write(json.dumps([place.key, verdict, more]) + "\n")

    def clear(self) -> None:
        """Forget them."""
        self._path.unlink(missing_ok=True)
        self.found.clear()


def recorded(first: int, seconds: float, jobs: int) -> Record:
    """What the code as it is meets; from `build/` if it was recorded before."""
    path = kept(first, seconds)
    if not path.exists():
        starts = [first + number * 1_000_000 for number in range(jobs)]
        command = [sys.executable, __file__, "--record", str(seconds), "--from"]
        parts = [subprocess.Popen([*command, str(start), "--part"], stdout=subprocess.PIPE) for start in starts]
        found = [json.loads(part.communicate()[0] or "{}") for part in parts]
        assert all(part.returncode == 0 for part in parts), "the simulator finds something without any change"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps({name: each for part in found for name, each in part.items()}))
        return joined(found)
    return load(path)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draw", type=int, default=60)
    parser.add_argument("--from", dest="first", type=int, default=None, help="draws the mutants by this; else fresh")
    parser.add_argument("--games", type=int, default=1, help="the first seed that is played")
    parser.add_argument("--seconds", type=float, default=60.0, help="of processor time, for each mutant at most")
    parser.add_argument("--record", type=float, default=240.0, help="of processor time, in each process")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", nargs="*", metavar="FILE:LINE", help="all mutants of these lines")
    parser.add_argument("--simulator", action="store_true", help="ask no test")
    parser.add_argument("--again", action="store_true", help="forget the verdicts of an earlier run of the same code")
    parser.add_argument("--unmet", action="store_true", help="only say which places no game meets")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--part", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.part:
        json.dump(record(asked.first, asked.record), sys.stdout)
        return 0
    if asked.one:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        games = [(Game.of(name), float(usual)) for name, usual in json.loads(asked.one[1])]
        print(played(asked.one[0], games, asked.seconds), flush=True)
        return 0
    known, everywhere = recorded(asked.games, asked.record, asked.jobs), list(places())
    met = [place for place in everywhere if known.met.get(place.key)]
    print(f"{len(known.seconds)} games meet {len(met)} of {len(everywhere)} places, floor {FLOOR:.0%}", flush=True)
    if asked.unmet:
        for place in everywhere:
            if not known.met.get(place.key):
                print(f"{place.where} {place.what}: {place.text}")
        return 0
    first = asked.first if asked.first is not None else Random().randrange(1 << 31)
    chosen = [each for each in everywhere if each.where in (asked.only or ())]
    chosen = chosen or Random(first).sample(everywhere, asked.draw)
    print(f"{len(chosen)} of {len(everywhere)} mutants, drawn from {first}", flush=True)
    tally, killers = Counter[str](), Counter[str]()
    log = Log(kept(asked.games, asked.record).with_suffix(f".{asked.seconds:g}.{asked.simulator}.verdicts"))
    if asked.again:
        log.clear()

    def verdict_on(place: Place) -> tuple[str, str]:
        if place.key not in log.found:
            log.add(place, *hunt(place, known, asked.seconds, also_tests=not asked.simulator))
        return log.found[place.key]

    with ThreadPoolExecutor(asked.jobs) as pool:
        verdicts = {pool.submit(verdict_on, place): place for place in chosen}
        for done in as_completed(verdicts):
            place, (verdict, more) = verdicts[done], done.result()
            tally[verdict] += 1
            killers[killer(more)] += verdict == "killed"
            number = f"{sum(tally.values()):3} of {len(chosen)}"
            print(f"{number} {verdict:9} {place.where} {place.what}: {place.text}\n          {more}", flush=True)
    print(", ".join(f"{verdict}: {times}" for verdict, times in tally.most_common()))
    print("killed by", ", ".join(f"{who}: {times}" for who, times in killers.most_common() if times))
    print(f"killed by the simulator {tally['killed'] / len(chosen):.0%}, by it or a test", end=" ")
    print(
        f"{(tally['killed'] + tally['by a test']) / (len(chosen) - tally['explained']):.0%} of what can be told apart"
    )
    return 1 if tally["survives"] + tally["unknown"] > 0.1 * len(chosen) or len(met) < FLOOR * len(everywhere) else 0


if __name__ == "__main__":
    sys.exit(main())
