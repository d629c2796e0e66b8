"""Pipelines drawn at random, each compared with one Spark batch over the same rows.

python tests/prove/pipelines.py [--cases 2000] [--seed S] [--only SEED] [--threads 3] [--odd] [--beside] [--rocksdb]
    [--shuffles mixed] [--spread]
python tests/prove/pipelines.py --mutants [NAME …] [--cases 300] [--seed S]
python tests/prove/pipelines.py --replay
python tests/prove/pipelines.py --drains [--cases 200] [--seed S]

Each case is refused with a message that names stage and operator and says what to write, or its rows equal the
batch's. A wrong case is shrunk and printed with its seed. Where the message says that the stage can run on one task, it
is run so: advice must be right, too. Ends with 1 if a case is wrong, or if a third of all cases is refused. With
nothing beside it a case takes about three seconds on two cores, so 2,000 take an hour and three quarters.

With --odd the cases are written in ways that are less usual: SQL, copies of the event time, odd join conditions; and
have less usual types and functions, inputs without a row, partitions that fall silent.

With --beside most aggregations have another operator with state behind them that Spark runs in the same task: a
deduplication by the same keys, or a limit.

With --drains each case is drained in mid-stream, at a moment drawn with it, and compared with the batch over the rows
that it had read by then. In every fourth a low-level task passes on the rows of an input.

With --rocksdb the state is in RocksDB. With --shuffles mixed each owner of a task draws whether it runs with the
shuffles that a job does without (samza_azure/spark/jvm/exchanges.py), so tasks go on with state of both kinds, and
whether it looks for windows that are over in each batch (samza_azure/spark/jvm/searches.py); kept: all do both. Printed
is how many shuffles and searches the plans did without. With --spread the batches of each stage have two to four
partitions, and so has its state.

With --mutants, each mistake that the analysis could make is made (tests/spark/fuzz/mutants.py), until a case is wrong
that is right without it. A case of which the mistake changes nothing counts, but is not run. Ends with 1 if a mutant
outlives the cases. With --replay each mistake is made with the one case that is known to show it, up to six times.
"""

import argparse
import os
import random
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

from pyspark.sql.streaming.query import StreamingQuery

sys.path.insert(0, str(Path(__file__).parents[2]))

from samza_azure.spark.jvm import exchanges, searches
from samza_azure.spark.query import launch, task
from samza_azure.spark.query.query_context import QueryContext
from tests.spark.fuzz.bench import bench
from tests.spark.fuzz.case import Case, told
from tests.spark.fuzz.draw import Bias, cut, draw, handled
from tests.spark.fuzz.mutants import MUTANTS, Mutant, is_killed, is_unlike, mistaken
from tests.spark.fuzz.odd import odd
from tests.spark.fuzz.run import Bench, Outcome
from tests.spark.fuzz.shrink import shrunk

Draw: TypeAlias = Callable[[int], Case]

#: What a message says of a stage that no partitioning suits, and how it begins.
ON_ONE_TASK = "tasks=1"
STAGE = re.compile(r"Stage (\w+)")
#: No more wrong cases than these are shrunk in one run.
SHRINK = 3
#: Much of what an aggregation with state in RocksDB does not share a task with.
BESIDE = Bias(states=(1, 1, 2), early_states=(1, 2), windowed=8.0, marked=1.0, limited=0.35, again=0.7, rows=(25, 50))
#: A mistake about time shows only where one stage is ahead of another, which is up to the machine. So it is made again.
REPLAYS = 6


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=None, help="2000, or for each mutant 300")
    parser.add_argument("--seed", type=int, default=None, help="the first seed; a fresh one without it")
    parser.add_argument("--only", type=int, default=None, help="one seed alone, with its code")
    parser.add_argument("--threads", type=int, default=3)
    parser.add_argument("--mutants", nargs="*", metavar="NAME", help="all of them without a name")
    parser.add_argument("--odd", action="store_true", help="written in less usual ways; 300 without --cases")
    parser.add_argument("--beside", action="store_true", help="aggregations beside others; 300 without --cases")
    parser.add_argument("--drains", action="store_true", help="drained in mid-stream; 200 without --cases")
    parser.add_argument("--rocksdb", action="store_true", help="with state on disk")
    parser.add_argument("--shuffles", choices=("left-out", "mixed", "kept"), default="left-out")
    parser.add_argument("--spread", action="store_true", help="over several of Spark's partitions")
    parser.add_argument("--replay", action="store_true", help="each mutant with its own seed")
    parser.add_argument("--no-shrink", action="store_true")
    parser.add_argument("--log", default=os.devnull, help="what Spark and its processes say goes there")
    asked = parser.parse_args()
    with Path(asked.log).open("a") as log:
        os.dup2(log.fileno(), sys.stderr.fileno())
    kind: Draw = drained if asked.drains else odd if asked.odd else beside if asked.beside else draw
    drawn: Draw = on_disk(kind) if asked.rocksdb else kind
    drawn = spread(drawn) if asked.spread else drawn
    with bench() as ready:
        for each in (exchanges.REMOVED, searches.LEFT_OUT):
            ready.spark.conf.set(each, str(asked.shuffles == "left-out").lower())
        if asked.shuffles == "mixed":
            setattr(task, "launch", shuffling(launch.launch))  # noqa: B010
        if asked.only is not None:
            return only(ready, drawn(asked.only), shrink=not asked.no_shrink)
        if asked.replay:
            return replayed(ready)
        first = asked.seed if asked.seed is not None else random.randrange(1 << 31)
        if asked.mutants is not None:
            chosen = [mutant for mutant in MUTANTS if mutant.name in asked.mutants or not asked.mutants]
            return killed(ready, chosen, range(first, first + (asked.cases or 300)), asked.threads)
        usual = 200 if asked.drains else 300 if asked.odd or asked.beside else 2000
        seeds = range(first, first + (asked.cases or usual))
        return many(ready, drawn, seeds, asked.threads, shrink=not asked.no_shrink)


def beside(seed: int) -> Case:
    """With aggregations that Spark runs in one task with other operators with state; every third is drained."""
    case = draw(seed, BESIDE)
    return cut(case) if seed % 3 == 0 else case


def drained(seed: int) -> Case:
    """Drained in mid-stream; every fourth case has a low-level task, too."""
    case = cut(draw(seed))
    return handled(case) if seed % 4 == 0 else case


def on_disk(drawn: Draw) -> Draw:
    """The same cases with state in RocksDB."""
    return lambda seed: replace(drawn(seed), state="rocksdb")


def spread(drawn: Draw) -> Draw:
    """The same cases with several partitions a batch."""
    return lambda seed: replace(drawn(seed), batch_partitions=2 + seed % 3)


def shuffling(launched: Callable[..., StreamingQuery]) -> Callable[..., StreamingQuery]:
    """Starts queries, of which every second one by chance has its shuffles, and every second one searches in each
    batch. Who calls it holds the session.
    """

    def launch(context: QueryContext, *arguments: Any, **options: Any) -> StreamingQuery:
        for each in (exchanges.REMOVED, searches.LEFT_OUT):
            context.spark.conf.set(each, random.choice(("true", "false")))
        return launched(context, *arguments, **options)

    return launch


def only(ready: Bench, case: Case, *, shrink: bool) -> int:
    """One case, printed at length."""
    print(told(case), flush=True)
    outcome = ready.run(case)
    print(f"{outcome.verdict} after {outcome.seconds:.1f} s {outcome.reason}", flush=True)
    if outcome.verdict != "wrong":
        return int(outcome.verdict == "unhelpful")
    if shrink:
        print(told(shrunk(ready, case, outcome)))
    return 1


def many(ready: Bench, drawn: Draw, seeds: range, threads: int, *, shrink: bool) -> int:
    """All cases of these seeds; each defect is printed at once."""
    print(f"seeds from {seeds.start}, {len(seeds)} cases, {threads} at a time", flush=True)
    begun = time.monotonic()
    verdicts: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    wrong: list[tuple[Case, Outcome]] = []
    advised = 0
    with ThreadPoolExecutor(threads) as pool:
        played_cases = pool.map(lambda seed: (seed, *advice_taken(ready, drawn(seed))), seeds)
        for played, (seed, case, outcome) in enumerate(played_cases, 1):
            verdicts[outcome.verdict] += 1
            advised += outcome.verdict == "equal" and case != drawn(seed)
            how = outcome.reason if outcome.verdict == "equal" else ""
            print(f"{seed} {outcome.verdict} {outcome.seconds:.1f} s {how}", flush=True)
            if outcome.verdict in ("refused", "unhelpful"):
                reasons[f"{outcome.verdict}: {in_general(outcome.reason)}"] += 1
            if outcome.verdict == "unhelpful":
                print(f"seed {seed}: unhelpful: {outcome.reason}", flush=True)
            if outcome.verdict == "wrong":
                wrong.append((case, outcome))
                print(f"seed {seed}, case {played}: {outcome.reason[:1500]}", flush=True)
    seconds = time.monotonic() - begun
    for reason, count in reasons.most_common():
        print(f"{count:5} {reason}")
    refused = verdicts["refused"] + verdicts["unhelpful"]
    print(
        f"{len(seeds)} cases in {seconds:.0f} s ({seconds / len(seeds):.2f} s each): {verdicts['equal']} equal, "
        f"{advised} of them on one task as a message said, {refused} refused ({refused / len(seeds):.0%}), "
        f"{verdicts['unhelpful']} of them without advice, {verdicts['wrong']} wrong; "
        f"{exchanges.left_out(ready.spark)} shuffles and {searches.left_out(ready.spark)} searches left out",
        flush=True,
    )
    if shrink:
        told_of(ready, wrong)
    return int(bool(wrong or verdicts["unhelpful"] or refused * 3 >= len(seeds)))


def advice_taken(ready: Bench, case: Case) -> tuple[Case, Outcome]:
    """What becomes of a case, with the stages on one task whose refusal says that they can be; and that case."""
    while True:
        outcome = ready.run(case)
        # One message may be about several stages, with a line before them that says how many mistakes there are.
        lines = outcome.reason.splitlines() if outcome.verdict == "refused" else []
        refused = {each[1] for line in lines if ON_ONE_TASK in line and (each := STAGE.search(line))}
        alone = [each for each in case.stages if each.name in refused and not each.tasks]
        if not alone:
            return case, outcome
        case = replace(case, stages=tuple(replace(each, tasks=1) if each in alone else each for each in case.stages))


def killed(ready: Bench, mutants: Sequence[Mutant], seeds: range, threads: int) -> int:
    """For each mutant the first of these seeds that shows it."""
    alive = []
    with ThreadPoolExecutor(threads) as pool:
        found = pool.map(lambda mutant: killing_seed(ready, mutant, seeds), mutants)
        for mutant, seed in zip(mutants, found, strict=True):
            if seed is None:
                alive.append(mutant.name)
            told = f"alive after {len(seeds)} cases" if seed is None else f"{seed - seeds.start + 1} cases, seed {seed}"
            print(f"{mutant.name}: {told}", flush=True)
    print(f"{len(mutants) - len(alive)} of {len(mutants)} mutants killed; alive: {', '.join(alive) or 'none'}")
    return int(bool(alive))


def replayed(ready: Bench) -> int:
    """Each mutant with its seed, one after the other; 1 if one of them is not noticed."""
    alive = []
    for mutant in MUTANTS:
        for _ in range(REPLAYS):
            outcome = mistaken(ready, mutant, mutant.seed)
            print(f"{mutant.name}: seed {mutant.seed} {outcome.verdict} after {outcome.seconds:.1f} s", flush=True)
            if is_killed(outcome):
                break
        else:
            alive.append(mutant.name)
    print(f"{len(MUTANTS) - len(alive)} of {len(MUTANTS)} mutants noticed; not: {', '.join(alive) or 'none'}")
    return int(bool(alive))


def killing_seed(ready: Bench, mutant: Mutant, seeds: range) -> int | None:
    """The first of these cases that is wrong with the mutant, and equal or refused without it."""
    for seed in seeds:
        if not is_unlike(ready, mutant, seed):
            continue
        outcome = mistaken(ready, mutant, seed)
        print(f"  {mutant.name}: {seed} {outcome.verdict} {outcome.seconds:.1f} s", flush=True)
        if is_killed(outcome):
            right = ready.run(draw(seed, mutant.bias))
            if right.verdict in ("equal", "refused"):
                print(f"  {mutant.name}: {seed} {right.verdict} without it {right.seconds:.1f} s", flush=True)
                return seed
            print(f"  {mutant.name}: {seed} {right.verdict} without it: {right.reason[:1500]}", flush=True)
        elif outcome.verdict == "wrong":
            print(f"  {mutant.name}: {seed} {outcome.reason[:300]}", flush=True)
    return None


def told_of(ready: Bench, wrong: list[tuple[Case, Outcome]]) -> None:
    """The first wrong cases, shrunk, one for each way in which they are wrong."""
    kinds: dict[str, tuple[Case, Outcome]] = {}
    for case, outcome in wrong:
        kinds.setdefault(outcome.kind, (case, outcome))
    for case, outcome in list(kinds.values())[:SHRINK]:
        print(f"== seed {case.seed}, shrunk", flush=True)
        print(told(shrunk(ready, case, outcome)), flush=True)


def in_general(message: str) -> str:
    """The first words of a refusal, without the names of this case."""
    text = re.sub(r"\b(?:s\d|in-[abc](?:-\w+)?|s\d-out)\b|'[^']*'|\b[a-z]+\d+\b|\d+", "…", message)
    return " ".join(text.split()[:14])


if __name__ == "__main__":
    sys.exit(main())
