"""The graph of a run: what reads what, where it stands, and what runs there. Nothing is read."""

import re
from dataclasses import replace
from importlib.resources import files
from typing import Any

from samza_azure.group.control import Assignment, Owner
from samza_azure.messages import FACTS, KindFacts, Phase, Progress, TaskKind, TaskReport, facts_told
from samza_azure.page.document import Lines, made
from samza_azure.page.graph import MOST, graph
from tests.page.test_verdict import CONTROL, ROWS, TIMING, WELL, shown

TASKS = ("clean-0", "clean-1", "by-page-0", "join-0", "out-table-0")
DESCRIBED = {
    "stage clean": {"inputs": "views", "output": "good"},
    "stage by-page": {"inputs": "good", "output": "good-by-page", "added_for": "join"},
    "stage join": {"inputs": "good-by-page, pages", "output": "out"},
    "stage out-table": {"inputs": "out", "table": "counts"},
}


def found(**progress: Progress) -> dict[str, Any]:
    """The document of a run of these stages; `clean_0` is the progress of clean-0."""
    tasks = {task: Assignment(Owner("a", "1", 5)) for task in TASKS}
    reports = {
        task: TaskReport(task, 5, 1, Phase.RUNNING, progress=progress.get(task.replace("-", "_"))) for task in TASKS
    }
    control = replace(CONTROL, tasks=tasks, described=DESCRIBED, sources={"views": 2, "pages": 1})
    document: dict[str, Any] = made(
        shown(control, [replace(ROWS[0], tasks=reports), ROWS[1]]), WELL, TIMING, Lines(), 60_000
    )
    return document


def test_sources_stages_shuffles_and_tables_are_nodes_and_their_streams_edges() -> None:
    clean = Progress(pace=5.0, pace_out=4.0, behind={"views": 700})
    drawn = found(clean_0=clean, clean_1=clean, join_0=Progress(pace=9.0, behind={"good-by-page": 0}))["graph"]
    nodes = {each["name"]: each for each in drawn["nodes"]}
    assert {name: (each["kind"], each["layer"]) for name, each in nodes.items()} == {
        "views": ("source", 0),
        "clean": ("stage", 1),
        "by-page": ("added shuffle", 2),
        "pages": ("source", 0),
        "join": ("stage", 3),
        "counts": ("table", 4),
    }
    assert (nodes["clean"]["running"], nodes["clean"]["tasks"]) == (2, 2)
    edges = {each["stream"]: (each["pace"], each["behind"]) for each in drawn["edges"]}
    assert edges == {
        "views": (10.0, 1_400),
        "good": (0.0, None),  # a backlog that is not reported is unknown, and not 0
        "good-by-page": (None, 0),  # of several inputs only the sum of their rows is known
        "pages": (None, None),
        "out": (0.0, None),
    }


def test_what_comes_from_outside_and_what_goes_there_is_drawn_as_that() -> None:
    described = {
        "stage clicks-source": {"inputs": "clicks", "output": "clicks-source", "reads": "the system tail"},
        "stage keep": {"inputs": "clicks-source", "output": "kept", "runs": "a handler"},
        "stage kept-files": {"inputs": "kept", "files": "out"},
        "stage kept-out": {"inputs": "kept", "writes": "the system kafka"},
    }
    tasks = {f"{each.removeprefix('stage ')}-0": Assignment(Owner("a", "1", 5)) for each in described}
    document = shown(replace(CONTROL, tasks=tasks, described=described, sources={"clicks": 1}))
    assert [(each["stage"], each["kind"], each["target"]) for each in document["pipeline"]] == [
        ("clicks-source", "source task", "the system tail"),
        ("keep", "stage", None),
        ("kept-files", "folder", "out"),
        ("kept-out", "outlet", "the system kafka"),
    ]
    drawn = made(document, WELL, TIMING, Lines(), 60_000)["graph"]
    assert [(each["name"], each["kind"]) for each in drawn["nodes"]] == [
        ("clicks-source", "source task"),
        ("keep", "stage"),
        ("out", "folder"),
        ("the system kafka", "outlet"),
        ("clicks", "source"),
    ]


def test_a_stream_that_crosses_layers_has_places_of_its_own() -> None:
    drawn = found()["graph"]
    [long] = [each for each in drawn["edges"] if each["stream"] == "pages"]
    taken = [(each["layer"], each["place"]) for each in drawn["nodes"]] + [tuple(each) for each in long["via"]]
    assert [layer for layer, _ in long["via"]] == [1, 2]
    assert len(set(taken)) == len(taken)


def test_a_run_without_a_description_shows_what_its_tasks_read() -> None:
    drawn = made(shown(), WELL, TIMING, Lines(), 60_000)["graph"]
    assert [(each["from"], each["to"], each["behind"]) for each in drawn["edges"]] == [("stream in", "stage t", 2_000)]


def test_a_graph_that_nobody_could_read_is_not_drawn() -> None:
    figures = {"tasks": 1, "running": 1, "drained": 0, "pace": 0.0, "pace_out": None}
    stages = [{"name": f"s{at}", **figures} for at in range(MOST + 1)]
    of_none = {"kind": "stage", "target": None, "inputs": [], "output": None, "added_for": None}
    pipeline = [{"stage": each["name"], **of_none} for each in stages]
    assert graph(pipeline, stages, {}) is None


def test_what_claims_to_be_a_circle_is_drawn() -> None:
    """Whoever may write the control blob may claim that."""
    described = {"stage t": {"inputs": "b", "output": "b"}}
    drawn = made(shown(replace(CONTROL, described=described)), WELL, TIMING, Lines(), 60_000)["graph"]
    assert [(each["from"], each["to"]) for each in drawn["edges"]] == [("stage t", "stage t")]


def test_a_task_that_waits_for_its_readers_says_so_and_is_no_trouble() -> None:
    document = found(clean_0=Progress(waits_for_readers=True))
    [task] = [each for each in document["tasks"] if each["name"] == "clean-0"]
    assert task["why"].startswith("It waits for readers")
    assert document["verdict"]["state"] == "running"
    assert next(each for each in document["stages"] if each["name"] == "clean")["running"] == 2
    document = found(clean_0=Progress(warning="Nobody reads partition 3."))
    assert "Nobody reads partition 3." in [each["why"] for each in document["tasks"]]
    assert document["verdict"]["state"] == "running"


def test_the_backlog_of_each_source_partition_is_shown_the_largest_first() -> None:
    document = found(
        clean_0=Progress(behind_sources={"views/0": 5, "elsewhere/7": 99}),
        join_0=Progress(behind_sources={"pages/0": 800}, lag_rows={"pages/0": 8}, lag_s={"pages/0": 2.5}),
    )
    assert document["partitions"] == [
        {"name": "pages/0", "backlog": 800, "rows": 8, "lag_s": 2.5},
        {"name": "views/0", "backlog": 5, "rows": None, "lag_s": None},
        {"name": "views/1", "backlog": None, "rows": None, "lag_s": None},
    ]


def test_each_kind_of_stage_has_its_colour() -> None:
    """A node has the words of its kind as classes."""
    sheet = files("samza_azure.page").joinpath("static", "page.css").read_text()
    coloured = {*re.findall(r"svg \.([\w-]+) rect", sheet)}
    assert [each.shown_as for each in FACTS.values() if coloured.isdisjoint(each.shown_as.split())] == []
    shown = {word for each in FACTS.values() for word in each.shown_as.split()}
    assert coloured - shown == {"node", "idle", "shuffle"}


def test_a_kind_is_told_by_its_own_fact_only() -> None:
    """Queries and handlers have none, so that no fact tells them, not even one without a name."""
    told = {each.told_by: each for each in FACTS.values() if each.told_by}
    assert [facts_told({name: "x", "inputs": "in"}) for name in told] == [*told.values()]
    assert {kind for kind in TaskKind if kind.facts not in told.values()} == {TaskKind.QUERY, TaskKind.HANDLER}
    assert facts_told({"": "x"}) == KindFacts()
    drawn = shown(replace(CONTROL, tasks={"clean-0": Assignment()}, described={"stage clean": {"": "x"}}))
    assert [(each["kind"], each["target"]) for each in drawn["pipeline"]] == [("stage", None)]
