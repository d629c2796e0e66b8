"""Drawn pipelines (`tests/prove/pipelines.py` draws fresh ones), pinned: each as a fleet and as one batch.

What is equal must stay equal, and what is refused must stay refused: a pipeline that becomes possible is a new seed
here. Several run at a time, as they mostly wait for one another's starts.
"""

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from samza_azure.spark.query import launch, task
from samza_azure.storage.connection import Account

from .fuzz.case import Call, Case, Join, Union, nodes
from .fuzz.draw import cut, draw, handled
from .fuzz.mutants import MUTANTS
from .fuzz.odd import odd
from .fuzz.run import Bench, Outcome

#: In groups that run together.
EQUAL = ((127,),)
#: More groups, for which `make test` has no time. Their operators have tests of their own in test_state_machines.py and
#: test_emission.py.
EQUAL_TOO = ((17, 24, 109), (5116, 5088, 5098, 5120), (5175, 5277, 6249))
#: Drained in mid-stream: a union, deduplication.
DRAINED = ((18,),)
#: More groups, for which `make test` has no time: joins, sessions, functions with state. The second one has only
#: operators that fire after the rows of a batch, also one behind the other in a stage.
DRAINED_TOO = ((17, 19), (1, 42, 45, 86), (37, 77, 34), (22, 25, 109), (20, 24, 28))
#: The same with a low-level task between a source and the stages.
HANDLED = ((24,),)
HANDLED_TOO = ((17, 109),)
REFUSED = ((3, 112, 125, 555, 2525),)
REFUSED_TOO = ((102, 103, 113, 115, 118, 119, 167, 258, 309, 2491),)
#: What those that are equal have to hold between them.
OPERATORS = {
    "Python UDF",
    "aggregation in update mode",
    "applyInPandasWithState",
    "deduplication",
    "deduplication within the watermark",
    "explode",
    "full join",
    "inner join",
    "join with a table",
    "left join",
    "leftsemi join",
    "limit",
    "rename",
    "right join",
    "session aggregation",
    "transformWithState",
    "transformWithStateInPandas",
    "union",
    "where",
    "window aggregation",
    "withColumn",
    "withWatermark",
}
THREADS = 3


@pytest.fixture(scope="module")
def ready(spark: SparkSession, account: Account, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """What cases share. It changes how often a query looks for rows: put back for the tests after."""
    before = task.SOURCE_START_S, launch.TRIGGER_MS
    yield Bench(spark, account, tmp_path_factory.mktemp("cases"))
    task.SOURCE_START_S, launch.TRIGGER_MS = before


def outcomes(ready: Bench, cases: dict[int, Case]) -> dict[int, Outcome]:
    """What becomes of these cases."""
    with ThreadPoolExecutor(THREADS) as pool:
        return dict(zip(cases, pool.map(ready.run, cases.values()), strict=True))


def verdicts(found: dict[int, Outcome]) -> dict[int, str]:
    """In a word; the reason as well, where one is wrong."""
    return {
        seed: outcome.verdict if outcome.verdict in ("equal", "refused") else f"{outcome.verdict}: {outcome.reason}"
        for seed, outcome in found.items()
    }


def groups(ours: tuple[tuple[int, ...], ...], *more: tuple[int, ...]) -> pytest.MarkDecorator:
    """For each group, of which some are in `make prove` only."""
    long = (pytest.param(each, marks=pytest.mark.long) for each in more)
    return pytest.mark.parametrize("seeds", [*ours, *long], ids=str)


@groups(EQUAL, *EQUAL_TOO)
def test_a_pipeline_puts_out_what_a_batch_does(ready: Bench, seeds: tuple[int, ...]) -> None:
    assert verdicts(outcomes(ready, {seed: draw(seed) for seed in seeds})) == dict.fromkeys(seeds, "equal")


@groups(DRAINED, *DRAINED_TOO)
def test_a_drain_in_mid_stream_puts_out_what_a_batch_over_the_rows_read_does(
    ready: Bench, seeds: tuple[int, ...]
) -> None:
    found = outcomes(ready, {seed: cut(draw(seed)) for seed in seeds})
    assert verdicts(found) == dict.fromkeys(seeds, "equal")
    read_and_all = [re.findall(r"\d+", outcome.reason) for outcome in found.values()]
    assert any(int(read) < int(every) for read, every in read_and_all), "no drain left a row unread"


@groups(HANDLED, *HANDLED_TOO)
def test_a_drain_in_mid_stream_goes_through_a_low_level_task_to_the_stages_behind_it(
    ready: Bench, seeds: tuple[int, ...]
) -> None:
    cases = {seed: handled(cut(draw(seed))) for seed in seeds}
    assert verdicts(outcomes(ready, cases)) == dict.fromkeys(seeds, "equal")


@groups(REFUSED, *REFUSED_TOO)
def test_a_pipeline_that_no_fleet_runs_like_a_batch_is_refused(ready: Bench, seeds: tuple[int, ...]) -> None:
    found = outcomes(ready, {seed: draw(seed) for seed in seeds})
    assert verdicts(found) == dict.fromkeys(seeds, "refused")


@pytest.mark.long
def test_a_second_analysis_finds_what_the_first_one_did(ready: Bench) -> None:
    """Else a processor would take the code of another one for a different pipeline."""
    found = {seed: [ready.analysis(odd(seed)) for _ in range(2)] for seed in range(60)}
    assert {seed: both for seed, both in found.items() if both[0] != both[1]} == {}
    assert sum(both[0] is not None for both in found.values()) > 15


@pytest.mark.long
def test_a_case_that_a_mutant_of_the_analysis_makes_wrong_is_right_without_it(ready: Bench) -> None:
    cases = {number: draw(each.seed, each.bias) for number, each in enumerate(MUTANTS)}
    found = verdicts(outcomes(ready, cases))
    assert {MUTANTS[number].name: verdict for number, verdict in found.items() if ":" in verdict} == {}


def test_the_readme_of_the_tests_has_a_line_for_each_mutant_with_its_seed() -> None:
    section = (
        Path(__file__).parents[1].joinpath("README.md").read_text().partition("\n## Mistakes of the analysis\n")[2]
    )
    lines = section.partition("\n| mutant ")[2].splitlines()[2:]
    assert [line.split(" | ")[:2] for line in lines] == [[f"| {each.name}", f"{each.seed}"] for each in MUTANTS]


def test_the_pinned_pipelines_have_the_usual_operators() -> None:
    drawn = [draw(seed) for seeds in EQUAL + EQUAL_TOO for seed in seeds]
    assert {kind for case in drawn for kind in kinds(case)} >= OPERATORS


def kinds(case: Case) -> Iterator[str]:
    """What the drawing calls a case's operators."""
    for stage in case.stages:
        for node in nodes(stage.node):
            match node:
                case Call():
                    yield node.operator
                case Join():
                    yield f"{node.how} join"
                case Union():
                    yield "union"
                case _:
                    pass
