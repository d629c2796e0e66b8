"""Mutants drawn from all that coordinates and stores, and what notices them: a test, or an invariant of the simulator.

python tests/prove/drawn_mutants.py [--draw 60] [--from SEED] [--part 1/2] [--jobs 2] [--until SECONDS] [--only WHERE …]

The mutants are not chosen: they are drawn from all changes that `tests/mutation/operators.py` makes of `group`, `logs`,
`streams`, `segments`, `tables`, `storage`, `stream_io`, `host` and `library`. A copy of the tree is taken first, so the
code may be worked on meanwhile, and a mutant is never written into it: the processes load its text instead
(`tests/mutation/hook.py`).

1. What each test and each game of the simulator reaches is recorded once, a file of tests at a time, also in the
   processes that it starts (`tests/mutation/reach.py`). Records are kept in `build/mutants`, and recreated only for
   files of tests that have changed.
2. A mutant is shown to the cheap tests that reach its block, then to the games that do, then to the tests that need
   Azurite, processes or Spark, the cheapest first, each kind for a limited time.
3. A test that fails is run again without the mutant. If it fails there, too, it does not count.
4. A game counts if it breaks an invariant that `docs/invariants.md` states, and for nothing else.

Each verdict is printed and kept as soon as it is there, so that a run that is started again continues where it ended.
`--part 1/2` and `--part 2/2` share a draw between two processes, `--until` ends a part in time to be started again, and
`--record` only records. The same seed draws the same mutants from the same code.

Ends with 1 if fewer than nine of ten are noticed. What is explained in EXPLAINED does not count as drawn. Neither
mutmut nor cosmic-ray fits: they know nothing of games, nor of what the processes of a test reach.
"""

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from random import Random
from threading import get_ident
from typing import Any

import psutil

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from tests.mutation.hook import MUTANT, REACH, TESTED  # noqa: E402
from tests.mutation.operators import Change, changes  # noqa: E402
from tests.mutation.reach import Block, Table, prepare  # noqa: E402

PACKAGES = ("group", "logs", "streams", "segments", "tables", "storage", "stream_io", "host", "library")
#: The share of the mutants that must be noticed.
BAR = 0.9
#: Tests that need nothing else, those on Azurite and with processes, and those that need Spark.
CHEAP, STORAGE, SPARK = "cheap", "storage", "spark"
GAMES = "games"
KINDS = (CHEAP, GAMES, STORAGE, SPARK)
_KINDS = {
    SPARK: ("tests/spark", "tests/end_to_end"),
    STORAGE: ("tests/storage", "tests/live", "tests/fleet", "tests/library", "tests/page", "tests/commands"),
}
#: Here a file takes minutes.
_LONG = ("tests/sim", "tests/fleet")
#: These look at text, not at behaviour; or play the simulator, whose games are played by themselves.
_LEFT_OUT = ("tests/test_docs.py", "tests/test_tidy.py", "tests/test_readme.py", "tests/typing", "tests/infra")
#: A mutant is shown to the tests of a kind for so long, by what they took when they were recorded.
LIMITS_S = {CHEAP: 25.0, STORAGE: 60.0, SPARK: 120.0}
#: So many of the cheapest tests are tried by themselves: most mutants do not survive them.
FEW = 20
#: For so long it is shown to games.
GAMES_S = 20.0
#: What takes so many times as long as recorded, and so many seconds more, hangs. The machine may be busy.
HANGS, HANGS_S = 4.0, 60.0
#: Mutants that were looked at, by file, kind of change and the line's text: why nothing can tell them apart.
EXPLAINED: dict[tuple[str, str, str], str] = {
    ("samza_azure/segments/partitions.py", "comparison", "if taken_start < end and start < taken_end:"): (
        "where one ends as the other starts, both ways leave the same runs and empty ones, which from_runs drops"
    ),
    ("samza_azure/segments/segment.py", "another default", "rows: int = 0"): "each file that is written has its count",
    ("samza_azure/library/shared_tasks.py", "another constant", "self._until = 0.0"): (
        "both are over a second after the machine has started"
    ),
    (
        "samza_azure/storage/connection.py",
        "another constant",
        "pages = self._synchronous().container.list_blobs(results_per_page=1, raw_response_hook=note).by_page()",
    ): "only the Date of the answer is read",
    (
        "samza_azure/tables/compaction.py",
        "argument left out",
        "for partition, file in zip(group, made or [None], strict=True)",
    ): "the group has as many partitions as files were made",
    (
        "samza_azure/streams/offset.py",
        "arguments swapped",
        "if type(blob) is not int or type(position) is not int or min(blob, position) < 0 or not _is_time(frontier):",
    ): "the smaller of two numbers",
    (
        "samza_azure/storage/contract.py",
        "another key",
        'etag = _done(await rows.insert(PARTITION, "gone", {"beat": 1}, timeout=CALL_S), "an insertion")',
    ): "the row is deleted, whatever is in it",
    (
        "samza_azure/group/learn.py",
        "comparison",
        "if view.others.write_seen_at > evident + 2 * max(view.timing.heartbeat_s, interval):",
    ): "readings of a clock, which differ from one another by exactly so much never",
    ("samza_azure/host/supervisor.py", "dropped", "self._child.end_group()"): (
        "the kernel kills the container, too, when its supervisor ends (PR_SET_PDEATHSIG)"
    ),
}


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change of one file."""

    path: str  # below the root
    change: Change
    source: str

    @property
    def key(self) -> str:
        """Names it as long as its file stays as it is."""
        text = f"{self.path} {self.change.begin} {self.change.end} {self.change.instead} {self.source}"
        return sha256(text.encode()).hexdigest()[:16]

    @property
    def line(self) -> str:
        """The line as it is."""
        return self.source.splitlines()[self.change.line - 1].strip()

    def __str__(self) -> str:
        was = self.source.encode()[self.change.begin : self.change.end].decode()
        short = [" ".join(each.split())[:70] for each in (was, self.change.instead)]
        return (
            f"{self.path.removeprefix('samza_azure/')}:{self.change.line} {self.change.what}: {short[0]} -> {short[1]}"
        )


@dataclass(slots=True)
class Record:
    """Who reaches a block: tests by their ids, games as `game KIND/SEED`; and how long each takes."""

    seconds: dict[str, float] = field(default_factory=dict)
    at: dict[tuple[str, ...], set[str]] = field(default_factory=lambda: defaultdict(set))

    def add(self, blocks: list[Block], name: str, seconds: float, reached: Iterable[int]) -> None:
        """What one of them has reached, by the table with which it was recorded."""
        self.seconds[name] = seconds
        for number in reached:
            block = blocks[number]
            for key in ((*map(str, block.key),), (block.path, block.function), (block.path,)):
                self.at[key].add(name)

    def who(self, block: Block | None, path: str) -> set[str]:
        """All that reach a block; if its function has changed since, those that reach the function."""
        keys = [(*map(str, block.key),), (block.path, block.function)] if block is not None else []
        return next((found for key in (*keys, (path,)) if (found := self.at.get(key))), set())


class Tree:
    """A copy of the tree as it is now, and what is known of it."""

    def __init__(self, home: Path) -> None:
        names = subprocess.run(
            ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, check=True, capture_output=True, text=True
        ).stdout.splitlines()
        names = [name for name in names if (ROOT / name).is_file()]
        state = sha256()
        for name in sorted(names):
            state.update(name.encode() + (ROOT / name).read_bytes())
        self.home = home
        self.state = state.hexdigest()[:12]
        self.root = home / f"tree-{self.state}"
        if not self.root.exists():
            draft = home / f"draft-{os.getpid()}"
            for name in names:
                (draft / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, draft / name)
            try:
                draft.rename(self.root)
            except OSError:  # another part was faster
                shutil.rmtree(draft)
        self.files = [
            str(path.relative_to(self.root))
            for package in PACKAGES
            for path in sorted((self.root / "samza_azure" / package).rglob("*.py"))
        ]
        marked = sha256("".join((self.root / name).read_text() for name in self.files).encode()).hexdigest()[:12]
        self.marked = home / f"marked-{self.state}-{marked}"
        if not (self.marked / "table.json").exists():
            draft = home / f"draft-{os.getpid()}"
            prepare(self.root, self.files, draft)
            try:
                draft.rename(self.marked)
            except OSError:
                shutil.rmtree(draft)
        self.table = Table.load(self.marked)

    def environment(self, **more: str) -> dict[str, str]:
        """That of a process on the copy."""
        return os.environ | {"PYTHONPATH": f"{self.root / 'tests/mutation/site'}{os.pathsep}{self.root}"} | more

    def run(self, command: list[str], within_s: float, **more: str) -> tuple[int | None, str]:
        """The exit code, None if it took too long; and what was said. Nothing that it started is left."""
        with tempfile.TemporaryFile("w+") as said:
            process = psutil.Popen(
                [sys.executable, *command], cwd=self.root, env=self.environment(**more), stdout=said, stderr=said
            )
            try:
                code = process.wait(within_s)
            except psutil.TimeoutExpired:
                for each in (*process.children(recursive=True), process):
                    with contextlib.suppress(psutil.NoSuchProcess):
                        each.kill()
                process.wait()
                code = None
            said.seek(0)
            return code, said.read()

    def mutants(self) -> list[Mutant]:
        """All of them."""
        sources = {path: (self.root / path).read_text() for path in self.files}
        return [Mutant(path, change, source) for path, source in sources.items() for change in changes(source)]


def kind_of(name: str) -> str:
    """What a test needs, by its folder."""
    return GAMES if name == GAMES else next((kind for kind, of in _KINDS.items() if name.startswith(of)), CHEAP)


# What is reached.


def files_of_tests(tree: Tree) -> list[str]:
    """The cheap ones first, and among them last those that play the simulator."""
    found = sorted(str(path.relative_to(tree.root)) for path in (tree.root / "tests").rglob("test_*.py"))
    kept = [name for name in found if not name.startswith((*_LEFT_OUT, "tests/prove"))]
    return sorted(kept, key=lambda name: (KINDS.index(kind_of(name)), name.startswith(_LONG)))


def record_of(tree: Tree, name: str) -> Path:
    """Where the record of a file of tests stands, or of the games."""
    if name == GAMES:
        text = "".join(path.read_text() for path in sorted((tree.root / "tests/sim/pieces").rglob("*.py")))
        text += "".join(path.read_text() for path in sorted((tree.root / "simulator").glob("*.py")))
    else:
        text = (tree.root / name).read_text()
    return tree.home / "reach" / f"{name.replace('/', '.')}-{sha256(text.encode()).hexdigest()[:12]}.json"


def record(tree: Tree, names: list[str], within_s: float) -> None:
    """Run files of tests, or the games, on the marked code, and keep what each test and game reaches."""
    draft, marks = (tree.home / "reach" / f"{os.getpid()}-{get_ident()}.{each}" for each in ("draft", "marks"))
    draft.parent.mkdir(parents=True, exist_ok=True)
    draft.write_text("")
    marks.write_bytes(bytes(len(tree.table.blocks)))
    command = [
        *("-m", "pytest", "-q", "--no-header", "-p", "no:cacheprovider", "-p", "tests.mutation.plugin"),
        *("--timeout=200", "-o", "addopts=--import-mode=importlib", "-m", "not long", *names),
    ]
    if names == [GAMES]:
        command = [str(tree.root / "tests/prove/drawn_mutants.py"), "--games", "record"]
    begun = time.monotonic()
    code, said = tree.run(command, within_s, **{REACH: f"{tree.marked}:{marks}", TESTED: str(draft)})
    found: dict[str, list[list[Any]]] = {name: [] for name in names}
    for line in draft.read_text().splitlines():
        row = json.loads(line)
        found[GAMES if names == [GAMES] else row[0].partition("::")[0]].append(row)
    for each in (draft, marks):
        each.unlink()
    done = [name for name in names if found[name]][:-1]  # pytest takes the files in this order
    rows = [[each.path, each.function, each.number, each.state, each.begin, each.end] for each in tree.table.blocks]
    for name, reached in found.items():
        used = sorted({number for _, _, numbers in reached for number in numbers})
        places = {number: place for place, number in enumerate(used)}
        kept = {
            "blocks": [rows[number] for number in used],
            "reached": [[test, seconds, [places[number] for number in numbers]] for test, seconds, numbers in reached],
        }
        if (
            code is not None or name in done or (len(found) == 1 and reached)
        ):  # of one that takes too long, what there is
            target = record_of(tree, name)
            target.with_suffix(".new").write_text(json.dumps(kept))
            target.with_suffix(".new").rename(target)
    told = said.strip().splitlines()[-1:] if code else []
    count, took = sum(map(len, found.values())), time.monotonic() - begun
    print(f"recorded {count} of {len(names)} files, {names[0]} …, in {took:.0f} s {code} {' '.join(told)}", flush=True)


def batches(names: list[str]) -> list[list[str]]:
    """Files of tests that are recorded in one process: some of a folder, or one that takes long by itself."""
    found: dict[str, list[str]] = defaultdict(list)
    for number, name in enumerate(names):
        folder = str(Path(name).parent)
        is_short = kind_of(name) in (CHEAP, STORAGE) and folder not in _LONG
        key = f"{folder} {sum(each.startswith(folder) for each in names[:number]) // 8}" if is_short else name
        found[key].append(name)
    return list(found.values())


def load(tree: Tree) -> Record:
    """All records that fit the tests as they are."""
    known = Record()
    for name in (GAMES, *files_of_tests(tree)):
        path = record_of(tree, name)
        if path.exists():
            data = json.loads(path.read_text())
            blocks = [Block(*each) for each in data["blocks"]]
            for test, seconds, reached in data["reached"]:
                known.add(blocks, test, seconds, reached)
    return known


# The mutants.


class Hunt:
    """Shows mutants to those that reach them."""

    def __init__(self, tree: Tree, known: Record) -> None:
        self.tree, self.known = tree, known

    def verdict(self, mutant: Mutant) -> tuple[str, str]:
        """Who noticed it, and what was said; `alive` if nobody did."""
        try:
            compile(mutant.change.made(mutant.source), mutant.path, "exec")
        except SyntaxError as error:
            return "none", f"is no Python: {error}"
        block = self.tree.table.at(mutant.path, mutant.change.line)
        who = self.known.who(block, mutant.path)
        games = [each for each in who if each.startswith("game ")]
        shown = 0
        for kind in KINDS:
            if kind == GAMES:
                found = self.play(mutant, sorted(games, key=self.known.seconds.__getitem__))
                shown += len(games)
            else:
                tests = self.chosen(mutant, kind, who.difference(games))
                few = FEW if kind == CHEAP else len(tests)  # pytest loads all files before it runs the first test
                found = self.test(mutant, tests[:few]) or self.test(mutant, tests[few:])
                shown += len(tests)
            if found is not None:
                return found
        return "alive", f"shown to {shown} of {len(who)} that reach it"

    def chosen(self, mutant: Mutant, kind: str, who: set[str]) -> list[str]:
        """The tests of a kind, the cheapest first, and of those that cost as much the ones of the same package."""
        package = mutant.path.split("/")[1]

        def cost(name: str) -> float:
            is_near = name.startswith(f"tests/{package}") or package in name.rpartition("::")[0]
            return (self.known.seconds[name] + 0.02) * (1 if is_near else 4)

        found: list[str] = []
        spent = 0.0
        for name in sorted((name for name in who if kind_of(name) == kind), key=lambda name: (cost(name), name)):
            spent += self.known.seconds[name]
            if found and spent > LIMITS_S[kind]:
                break
            found.append(name)
        return found

    def test(self, mutant: Mutant, tests: list[str]) -> tuple[str, str] | None:
        """The first test that fails with the mutant, and passes without it."""
        left = tests
        while left:
            found = self.failing(left, mutant)
            if found is None:
                return None
            failed, said = found
            if failed == "":
                again = self.failing(left, None, "--collect-only")
                assert again is None, f"these tests cannot be run at all; record them again: {again}"
                return "test", said
            if self.failing([failed], None) is None:
                return "test", f"{failed}: {said}"
            left = left[left.index(failed) + 1 :]
        return None

    def failing(self, tests: list[str], mutant: Mutant | None, *options: str) -> tuple[str, str] | None:
        """The first test that fails, empty if not even one can be begun, and what it says. None if all pass."""
        usual = sum(self.known.seconds[each] for each in tests)
        listed, target = (
            self.tree.home / "now" / f"{os.getpid()}-{get_ident()}.{each}" for each in ("tests", "failed")
        )
        listed.parent.mkdir(exist_ok=True)
        listed.write_text("\n".join(tests))
        target.write_text("")
        usually = ["-q", "-x", "--no-header", "--tb=short", "-p", "no:cacheprovider", "-p", "tests.mutation.plugin"]
        command = ["-m", "pytest", *usually, "--timeout=60", "-o", "addopts=--import-mode=importlib", *options]
        environment = {**self.loaded(mutant), TESTED: str(target)}
        code, said = self.tree.run([*command, f"@{listed}"], HANGS * usual + HANGS_S, **environment)
        rows = [json.loads(line) for line in target.read_text().splitlines()]
        listed.unlink()
        target.unlink()
        if code == 0:
            return None
        if rows and rows[0][0] in tests:
            return rows[0][0], rows[0][1]
        errors = [line.strip() for line in said.splitlines() if line.startswith(("E  ", "ERROR"))]
        return "", "they hang" if code is None else (errors or [said[-160:]])[0][:160]

    def play(self, mutant: Mutant, games: list[str]) -> tuple[str, str] | None:
        """What an invariant says."""
        if not games:
            return None
        names = [each.removeprefix("game ") for each in games]
        command = [str(self.tree.root / "tests/prove/drawn_mutants.py"), "--games", *names]
        _, said = self.tree.run(command, 4 * GAMES_S + HANGS_S, **self.loaded(mutant))
        broken = [line for line in said.splitlines() if line.startswith("BROKEN ")]
        return ("simulator", broken[0].removeprefix("BROKEN ")) if broken else None

    def loaded(self, mutant: Mutant | None) -> dict[str, str]:
        """The environment that loads a mutant."""
        if mutant is None:
            return {}
        text = self.tree.home / "now" / f"{mutant.key}.py"
        text.parent.mkdir(exist_ok=True)
        text.write_text(mutant.change.made(mutant.source))
        return {MUTANT: f"{mutant.path}:{text}"}


def played(names: list[str]) -> None:
    """In a process of its own: play these games until an invariant is broken or the time is over. Or record all."""
    from tests.mutation import reach
    from tests.mutation.games import Game, games

    if names == ["record"]:
        target = Path(os.environ[TESTED])
        for game in games(1):
            reach.clear()
            begun = time.process_time()
            broken = game.play()
            assert broken is None, f"{game} breaks an invariant without any mutant: {broken}"
            with target.open("a") as file:
                row = [f"game {game}", round(time.process_time() - begun, 3), list(reach.reached())]
                file.write(json.dumps(row) + "\n")
        return
    end = time.process_time() + GAMES_S
    for game in map(Game.of, names):
        broken = game.play()
        if broken is not None:
            print(f"BROKEN {broken.splitlines()[0][:150]} [{game}]")
            return
        if time.process_time() > end:
            return


class Verdicts:
    """Those so far, one file each."""

    def __init__(self, home: Path) -> None:
        self.home = home / "verdicts"
        self.home.mkdir(parents=True, exist_ok=True)

    def of(self, mutant: Mutant) -> tuple[str, str] | None:
        """As it was found before; of one that nobody noticed, as it is explained now."""
        path = self.home / mutant.key
        if not path.exists():
            return None
        verdict, more = json.loads(path.read_text())
        why = EXPLAINED.get((mutant.path, mutant.change.what, mutant.line)) if verdict == "alive" else None
        return ("explained", why) if why else (verdict, more)

    def keep(self, mutant: Mutant, verdict: tuple[str, str]) -> None:
        """At once."""
        (self.home / mutant.key).write_text(json.dumps(verdict))


def drawn(tree: Tree, first: int, count: int, only: list[str]) -> list[Mutant]:
    """Mutants by their number; or all of these lines."""
    every = tree.mutants()
    if only:
        return [each for each in every if f"{each.path}:{each.change.line}" in only]
    return Random(first).sample(every, count)


def shown(tree: Tree, mutants: list[Mutant]) -> Iterator[str]:
    """The table of what is known so far."""
    verdicts = Verdicts(tree.home)
    tally: Counter[str] = Counter()
    packages: dict[str, Counter[str]] = defaultdict(Counter)
    for mutant in mutants:
        verdict, more = verdicts.of(mutant) or ("to come", "")
        tally[verdict] += 1
        packages[mutant.path.split("/")[1]][verdict] += 1
        yield f"{verdict:10} {mutant} | {more}"
    for package, counts in sorted(packages.items()):
        yield f"{package:10} {', '.join(f'{verdict} {times}' for verdict, times in sorted(counts.items()))}"
    noticed = tally["test"] + tally["simulator"]
    judged = noticed + tally["alive"]
    yield (
        f"{noticed} of {judged} noticed, {noticed / max(judged, 1):.0%}, bar {BAR:.0%}: by the simulator "
        f"{tally['simulator']}, by a test {tally['test']}; explained {tally['explained']}, to come {tally['to come']}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draw", type=int, default=60)
    parser.add_argument("--from", dest="first", type=int, default=None, help="draws the mutants by this; else fresh")
    parser.add_argument("--part", default="1/1", help="which part of the draw, and of the records to make")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--until", type=float, default=float("inf"), help="begin nothing after so many seconds")
    parser.add_argument("--only", nargs="*", default=[], metavar="FILE:LINE", help="all mutants of these lines")
    parser.add_argument("--record", action="store_true", help="only record, if anything is to be recorded")
    parser.add_argument("--kinds", nargs="*", default=KINDS, help="of what is recorded, if it is not yet")
    parser.add_argument("--again", action="store_true", help="judge those again that nobody has noticed")
    parser.add_argument("--show", action="store_true", help="only print the table of the verdicts so far")
    parser.add_argument("--home", type=Path, default=ROOT / "build" / "mutants")
    parser.add_argument("--games", nargs="*", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.games:
        played(asked.games)
        return 0
    begun = time.monotonic()
    asked.home.mkdir(parents=True, exist_ok=True)
    tree = Tree(asked.home.resolve())
    part, parts = map(int, asked.part.split("/"))

    def left() -> float:
        return asked.until - (time.monotonic() - begun)

    if not asked.show:
        names = [name for name in (GAMES, *files_of_tests(tree)) if kind_of(name) in asked.kinds]
        wanted = batches([name for name in names if not record_of(tree, name).exists()])[part - 1 :: parts]
        with ThreadPoolExecutor(asked.jobs) as pool:
            list(pool.map(lambda each: record(tree, each, min(left(), 900.0)) if left() > 20 else None, wanted))
        if asked.record:
            missing = [name for name in names if not record_of(tree, name).exists()]
            print(f"{len(names) - len(missing)} of {len(names)} are recorded; not yet: {' '.join(missing) or 'none'}")
            return 0
    first = asked.first if asked.first is not None else Random().randrange(1 << 31)
    mutants = drawn(tree, first, asked.draw, asked.only)
    print(f"{len(mutants)} mutants of {len(tree.mutants())}, drawn from {first}; tree {tree.state}", flush=True)
    verdicts = Verdicts(asked.home)
    if not asked.show:
        hunt = Hunt(tree, load(tree))

        def judge(mutant: Mutant) -> None:
            known = verdicts.of(mutant)
            if left() < 60 or (known is not None and not (asked.again and known[0] == "alive")):
                return
            since = time.monotonic()
            verdict = hunt.verdict(mutant)
            verdicts.keep(mutant, verdict)
            print(f"{verdict[0]:10} {time.monotonic() - since:4.0f} s {mutant} | {verdict[1]}", flush=True)

        with ThreadPoolExecutor(asked.jobs) as pool:
            list(pool.map(judge, mutants[part - 1 :: parts]))
    lines = list(shown(tree, mutants))
    print(*lines, sep="\n")
    found = Counter((verdicts.of(each) or ("to come",))[0] for each in mutants)
    noticed = found["test"] + found["simulator"]
    return 0 if noticed >= BAR * (len(mutants) - found["explained"] - found["none"]) else 1


if __name__ == "__main__":
    sys.exit(main())
