"""What `samza-azure explain` says, number by number."""

import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from samza_azure.explain import (
    ANSWER_S,
    MERGED,
    REPLICA_READ_S,
    REPLICA_UNASKED_S,
    Flow,
    Operations,
    WorstCases,
    bounds,
    busy,
    cheaper,
    coordination,
    flows_of,
    flush_lines,
    follower,
    hub_lines,
    idle,
    leader,
    lines,
    pipeline_lines,
    publishing,
    replica_lines,
    routed,
    routing,
    successor,
    task_lines,
    topic_lines,
)
from samza_azure.group.timing import PROFILES
from samza_azure.messages import Plan, StagePlan, TaskKind
from samza_azure.storage.clients import READ_S
from samza_azure.streams.pace import unasked_s
from samza_azure.tasks import replicas

DEFAULT, FAST = PROFILES["default"], PROFILES["fast"]
EXAMPLE = Path(__file__).parents[1] / "examples" / "flights" / "job.toml"


def plan(*stages: StagePlan, **sources: int) -> Plan:
    return Plan(stages, sources, "fingerprint", keys={"by-carrier": ("carrier",)})


def test_what_replicas_cost_is_said_where_a_stage_has_state() -> None:
    assert (REPLICA_READ_S, REPLICA_UNASKED_S) == (replicas.READ_S, replicas.UNASKED_S)
    stages = (StagePlan("clean", ("flights",), "b", 4), StagePlan("daily", ("b",), "c", 3, stateful=("count",)))
    plan = Plan(stages, {"flights": 4}, "f")
    assert replica_lines(plan, 0, 1.0) == replica_lines(replace(plan, stages=stages[:1]), 1, 1.0) == []
    [line] = replica_lines(plan, 2, 1.0)
    assert line.startswith("Note: 6 replicas of tasks with state: up to $6.94 per month for reads of their logs, $0.23")


def test_a_follower_writes_and_reads_rows_1800_times_an_hour_and_the_blob_12_times() -> None:
    assert follower(DEFAULT, 10) == Operations(table=3600, read=12)


def test_a_successor_also_reads_the_members_with_each_scan() -> None:
    assert successor(DEFAULT, 3) == Operations(table=3600 + 3600, read=12)


def test_the_default_profile_keeps_to_its_budget() -> None:
    assert follower(DEFAULT, 10).table <= 3_700
    assert successor(DEFAULT, 20).table <= 7_400


def test_a_leader_reads_requests_as_often_as_rows_and_renews_its_lease_180_times_an_hour() -> None:
    assert leader(DEFAULT, 3) == Operations(table=1800 + 1800 + 3600 + 3600, other=180)


def test_many_members_are_read_less_often_so_that_all_together_stay_below_what_azure_carries() -> None:
    """1,800 members: two queries each ten seconds, believed after three of them; a look for news each 7.2."""
    assert successor(DEFAULT, 1_800) == Operations(table=3600 + 2 * 360, read=12)
    assert follower(DEFAULT, 1_800) == Operations(table=1800 + 500, read=12)
    assert bounds(DEFAULT, 1_800, call_s=2.5).follower_lost == 10.0 + 3 * 10.0
    assert bounds(DEFAULT, 1_800, call_s=2.5).leader_and_successors_lost == pytest.approx(7.2 + 17.0 + 7.2 + 40.0)


def test_a_group_has_one_leader_at_most_three_successors_and_the_rest_follows() -> None:
    assert coordination(DEFAULT, 1) == leader(DEFAULT, 1)
    assert coordination(DEFAULT, 3) == leader(DEFAULT, 3) + successor(DEFAULT, 3) * 2
    assert coordination(DEFAULT, 10) == leader(DEFAULT, 10) + successor(DEFAULT, 10) * 3 + follower(DEFAULT, 10) * 6


def test_ten_thousand_of_each_cost_what_the_price_list_says() -> None:
    assert Operations(table=10_000).dollars_per_month == pytest.approx(0.00036 * 730)
    assert Operations(read=10_000).dollars_per_month == pytest.approx(0.0044 * 730)
    assert Operations(write=10_000).dollars_per_month == pytest.approx(0.055 * 730)
    assert Operations(other=10_000).dollars_per_month == pytest.approx(0.0044 * 730)


CLEAN = StagePlan("clean", ("flights",), "by-carrier", 4, ("carrier",), partitions=2)
DAILY = StagePlan("daily", ("by-carrier",), "delays", 2, state=("aggregation by window, carrier",), partitions=2)
ROUTER = StagePlan(
    "daily-flights", ("flights",), "daily-flights", 4, routed_for="daily", routed_by=("carrier",), partitions=4
)
ALONE = replace(DAILY, inputs=("daily-flights",), tasks=4, partitions=4)


def test_a_reader_of_a_repartitioned_stream_reads_all_its_writers() -> None:
    assert flows_of(plan(CLEAN, DAILY, flights=4)) == [Flow("clean", 4, 1), Flow("daily", 2, 4)]
    assert flows_of(plan(ROUTER, ALONE, flights=4)) == [Flow("daily-flights", 4, 1), Flow("daily", 4, 4)]


def test_fewer_tasks_than_partitions_read_several_each() -> None:
    fewer = plan(replace(CLEAN, tasks=2), DAILY, flights=4)
    assert flows_of(fewer) == [Flow("clean", 2, 2), Flow("daily", 2, 2)]


def test_without_partition_by_a_task_reads_its_own_producer_alone_and_a_stream_may_be_read_twice() -> None:
    one = StagePlan("one", ("in",), "mid", 3, partitions=3)
    two = StagePlan("two", ("mid", "mid"), "out", 3, partitions=3)
    assert flows_of(plan(one, two, **{"in": 3})) == [Flow("one", 3, 1), Flow("two", 3, 2)]


def test_a_routed_stream_costs_its_writers_appends_and_its_readers_reads() -> None:
    shape = plan(ROUTER, ALONE, flights=4)
    assert routing(shape, ROUTER, 2.0) == Operations(table=4 * 1800, read=(4 * 1 + 4 * 4) * 1800, write=4 * 1800)
    (said,) = routed(shape, 2.0)
    assert said == (
        "the rows of flights go to stage daily through the stream daily-flights, 4 partitions by carrier: "
        f"up to ${routing(shape, ROUTER, 2.0).dollars_per_month:,.2f} per month"
    )


def test_the_stages_are_shown_with_streams_keys_and_state() -> None:
    assert pipeline_lines(plan(CLEAN, DAILY, flights=4), 1.0) == [
        "clean: 4 tasks",
        "  reads   flights: 4 partitions, no key",
        "  writes  by-carrier: 2 partitions by carrier",
        "daily: 2 tasks",
        "  reads   by-carrier: 2 partitions, key carrier",
        "  keeps   aggregation by window, carrier, in each task",
        "  writes  delays: 2 partitions, one per task",
    ]


def test_a_stage_that_spreads_its_batches_says_so() -> None:
    lines = pipeline_lines(plan(CLEAN, replace(DAILY, batch_partitions=3), flights=4), 1.0)
    assert lines[5] == "  spreads a batch of a task over 3 partitions in Spark"
    kept = replace(DAILY, batch_partitions=3, stateful=("stateStoreSave",))
    lines = pipeline_lines(plan(CLEAN, kept, flights=4), 1.0)
    assert lines[5] == "  spreads a batch of a task, and its state, over 3 partitions in Spark"


def test_the_memory_of_a_flush_depends_on_the_state_and_is_left_out_without_state() -> None:
    kept = plan(CLEAN, replace(DAILY, stateful=("stateStoreSave",)), flights=4)
    assert flush_lines(plan(CLEAN, flights=4), "auto") == []
    [in_heap], [on_disk], [either] = (flush_lines(kept, state) for state in ("memory", "rocksdb", "auto"))
    assert "heap must hold the state of all tasks of a processor twice" in in_heap and "RocksDB" not in in_heap
    assert "on the local disk" in on_disk and "heap" not in on_disk
    assert either.startswith(in_heap[:-1]) and "transformWithState is in RocksDB" in either


def test_the_connections_and_throughput_units_of_hubs_are_named() -> None:
    read = StagePlan("in-source", ("in",), "in-source", 2, partitions=4, kind=TaskKind.SOURCE, target="eventhubs")
    sent = StagePlan("out-out", ("out",), "out-out", 3, kind=TaskKind.OUTLET, target="eventhubs")
    [line] = hub_lines(Plan((read, sent), {"in": 4}, ""))
    assert "4 connections for in, one per partition; up to 3 connections per partition of the hub for out" in line
    assert "$21.90 per month" in line and "silent" in line
    [line] = hub_lines(Plan((sent,), {}, ""))
    assert "silent" not in line
    of_kafka = Plan((replace(read, target="kafka"), replace(sent, target="kafka")), {"in": 4}, "")
    assert hub_lines(of_kafka) == [] and topic_lines(Plan((read, sent), {"in": 4}, "")) == []
    [line] = topic_lines(of_kafka)
    assert "4 clients for in, 6 clients for" in line and "every 5 s" in line
    [line] = topic_lines(Plan((replace(sent, target="kafka"),), {}, ""))
    assert "every 5 s" not in line


def test_tasks_near_the_number_of_processors_are_advised_and_many_more_are_warned_of() -> None:
    few = plan(CLEAN, DAILY, flights=4)
    [note] = task_lines(few, 3, 1.0)
    assert "6 tasks with a batch each 1 s take up to 1.8 cores" in note
    [_, warning] = task_lines(few, 1, 1.0)
    assert warning.startswith("warning: clean (4): many tasks for 1 processor. With task.count = 1")
    assert "queries take 33% of that processor time" in warning
    prices = [float(price) for price in re.findall(r"\$([0-9]+\.[0-9]+)", warning)]
    one_each = plan(replace(CLEAN, tasks=1), replace(DAILY, tasks=1), flights=4)
    expected = [busy(flows_of(each), 1, 1.0).dollars_per_month for each in (one_each, few)]
    assert prices == [pytest.approx(price, abs=0.005) for price in expected]


def test_of_a_plan_without_a_query_no_tasks_are_advised() -> None:
    assert task_lines(plan(replace(CLEAN, kind=TaskKind.HANDLER), flights=4), 1, 1.0) == []


def test_without_a_commit_interval_no_cores_are_named() -> None:
    assert task_lines(plan(CLEAN, flights=4), 3, 0.0) == []
    assert len(task_lines(plan(CLEAN, flights=4), 1, 0.0)) == 1


def test_busy_tasks_append_and_tell_once_per_batch_and_read_each_producer() -> None:
    flows = [Flow("clean", 4, 1), Flow("daily", 2, 4)]
    assert busy(flows, 3, commit_s=2.0) == Operations(
        table=6 * 1800 + 3 * 18_000, read=(4 * 1 + 2 * 4) * 1800, write=6 * 1800
    )


def test_idle_tasks_read_each_producer_every_five_seconds_or_less_often() -> None:
    assert idle([Flow("clean", 4, 1)], 6) == Operations(table=4 * 3600, read=4 * 720)
    assert [unasked_s(producers) for producers in (1, 10, 20, 1000)] == [5.0, 5.0, 10.0, 60.0]


def test_the_bounds_of_the_default_profile() -> None:
    assert bounds(DEFAULT, 4, call_s=2.5) == WorstCases(
        follower_lost=10.0,
        leader_lost=8.0 + 4 * 1.0,
        leaderless=1.0 + (5.0 + 1.0) + 2 * 1.0,
        leader_and_successors_lost=(2.0 + 5.0 + 12.0 + 2.0) + (1.0 + 8.0 + 1.0),
        container_lost=6.0 + 2.0 + 1.0 + 2.0,
        two_leaders=60.0 - 5.0 - 5.0,
        two_owners=0.0,
        pause_after=6.0,
    )


def test_the_only_successor_waits_for_no_other() -> None:
    assert bounds(FAST, 2, call_s=0.5).leader_lost == pytest.approx(1.5 + 2 * 0.15)


@pytest.mark.long  # a Spark of its own; `check` needs none either, with the same analysis
def test_the_command_needs_no_account() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "AZURE_STORAGE_CONNECTION_STRING"}
    command = [sys.executable, "-m", "samza_azure", "explain", str(EXAMPLE), "--processors", "5"]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240)
    assert ended.returncode == 0, ended.stderr
    assert "daily_delays: 4 tasks\n  reads   by-carrier: 4 partitions, key carrier\n" in ended.stdout
    assert "5 processors, 8 tasks: clean 4, daily_delays 4" in ended.stdout
    assert "one follower" in ended.stdout and "two owners of a task                     0.00 s" in ended.stdout


def test_the_price_has_a_way_down() -> None:
    flows = flows_of(plan(CLEAN, DAILY, flights=4))
    said = cheaper(flows, 3, 1.0)
    prices = [float(price) for price in re.findall(r"\$([0-9.]+)", said)]
    assert said.startswith("Append less often (task.commit.ms): every 1 s $") and "every 30 s $" in said
    assert len(prices) == 5 and prices == sorted(prices, reverse=True) and prices[0] > 4 * prices[1]
    assert cheaper(flows, 3, 7.0).count("every") == 4, "a step that is shorter than the job's own is no way down"
    assert "every 120 s" in cheaper(flows, 3, 120.0) and "less often" not in cheaper(flows, 3, 120.0)


def test_explain_names_what_is_stored_what_is_not_counted_and_the_source_of_the_prices() -> None:
    said = "\n".join(lines(FAST, flows_of(plan(CLEAN, DAILY, flights=4)), 3, 1.0, 0.5))
    for words in ("every 5 s $", "$0.0208 per GiB and month", "retention", "sample prices", "assumed"):
        assert words in said, words
    assert "free while account and processors are in one region; otherwise $0.02 per GB" in said
    assert "$0.087 per GB that is read over the Internet, after the first 100 GB of a month." in said
    assert "documentation of July 2024, which names no region; network in Europe and North America" in said


def test_explain_says_how_long_a_start_waits_for_an_answer() -> None:
    """The permit of `fast` ends after 1.1 s; a call to a log waits for ten times as long."""
    said = "\n".join(lines(FAST, flows_of(plan(CLEAN, DAILY, flights=4)), 130, 1.0, 0.5))
    assert "and the task's start. Each of its calls that gets no answer takes up to 10 s more, in any profile" in said
    assert ANSWER_S == READ_S


def test_a_table_costs_what_its_flushes_cost() -> None:
    sink = StagePlan("out-table", ("out",), "out-table", 2, kind=TaskKind.TABLE, target="delays", flush_s=60.0)
    found = plan(CLEAN, replace(DAILY, output="out"), sink, flights=4)
    flow = flows_of(found)[-1]
    assert flow == Flow("out-table", 2, 1, TaskKind.TABLE, 60.0)
    hourly = publishing(flow)
    assert (hourly.write, hourly.read) == (2 * 120 + 120 / MERGED + 2, 120)
    assert publishing(Flow("out-table", 2, 1, TaskKind.TABLE, 30.0)).write > hourly.write
    queries = flows_of(plan(CLEAN, DAILY, flights=4))
    more = busy([*queries, flow], 3, 1.0).write - busy(queries, 3, 1.0).write
    assert more == hourly.write, "a record for each flush, not for each second"
    said = pipeline_lines(found, 1.0)
    assert "  writes  the table delays, every 60 s" in said
    assert any("go to the table delays" in line for line in said)


def test_a_folder_costs_a_file_and_two_records_for_each_flush() -> None:
    sink = StagePlan("out-files", ("out",), "out-files", 2, kind=TaskKind.FILES, target="delays", flush_s=60.0)
    found = plan(CLEAN, replace(DAILY, output="out"), sink, flights=4)
    queries, flow = flows_of(found)[:-1], flows_of(found)[-1]
    assert publishing(flow) == Operations(write=3 * 120)
    assert busy([*queries, flow], 3, 1.0).write - busy(queries, 3, 1.0).write == 360
    said = pipeline_lines(found, 1.0)
    assert "  writes  the folder files/delays, every 60 s" in said
    price = publishing(flow).dollars_per_month
    assert any(
        f"go to the folder files/delays, a file per task every 60 s: up to ${price:,.2f}" in line for line in said
    )
