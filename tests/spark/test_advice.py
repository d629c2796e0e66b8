"""Advice is right or absent: what is made of the user's own columns is pasted by a test, and the rest is fixed text."""

import ast
from collections.abc import Iterator
from pathlib import Path

from samza_azure.spark import pipeline
from tests.commands.mistakes import MISTAKES

from . import test_event_time, test_refused_stages
from .test_remedies import REMEDIES

ROOM = Path(pipeline.__file__).parent
#: What makes a column, an expression or a decorator of the user's part of a text.
SPELLING = {"_quoted", "_written", "decorator", "in_sql", "literal"}
#: Each function that does so, with a case of `test_remedies.py`, whose rows are compared, or of the mistakes of a first
#: hour, or a test that analyses the stage with what is advised.
PASTED = {
    "advice.py:_condition": "a right join with a table",
    "advice.py:_found": "a left semi join of a table",
    "advice.py:count_in_windows": "an action",
    "advice.py:deduplicated": "distinct rows of SQL",
    "advice.py:described": "a description",
    "advice.py:distinct": "a number of distinct values",
    "advice.py:greatest": "the greatest rows",
    "advice.py:_in_parts": "windows of a computed time",
    "advice.py:_totals": "totals",
    "advice.py:_unrepeated": "deduplication that keeps all",
    "advice.py:_watermark": "windows without a watermark",
    "advice.py:windowed": "an aggregation without a window",
    "advice.py:without_nulls": "null as a key of a full join",
    "bounds.py:_latest_partner": "an inner join by names",
    "bounds.py:distinguished": "a left join by names",
    "bounds.py:once": "a full join by names",
    "bounds.py:remedy_for_state": "test_a_join_that_keeps_rows_for_ever_is_a_warning",
    "checks/complete.py:_incomplete": "all rows in one task",
    "checks/complete.py:_null": "no time in a left join",
    "checks/complete.py:_totals": "totals over all windows",
    "checks/event_times.py:check": "a copy of the event time",
    "checks/frontier.py:check": "test_the_advised_frontier_lag_can_be_pasted",
    "checks/joins.py:_compared_with_what_is_computed": "a time that equals a computed one",
    "checks/joins.py:_limited_by_others": "a number in the condition",
    "checks/keys.py:_of_a_list": "a list as key",
    "checks/keys.py:_of_a_map": "a map as key",
    "checks/keys.py:_of_zeros": "both zeros",
    "checks/keys.py:_with_a_collation": "a text with a collation",
    "checks/null_keys.py:_in_pandas": "nulls as keys in pandas",
    "checks/null_keys.py:matched": "null as a key of a left join",
    "checks/on_time.py:check": "test_a_copy_of_the_event_time_beside_other_times",
    "checks/sessions.py:_in_parts": "sessions that are not merged",
    "checks/sessions.py:_without_a_key": "sessions without another key",
    "checks/tasks.py:_apart": "groupings without a common key, by carrier",
    "checks/tasks.py:_on_one_task": "all rows in one task",
    "checks/tasks.py:_two_routes": "a stream that is joined with itself by other columns",
    "checks/watermarks.py:_wrong": "a watermark that grants too little",
    "remedies.py:_share": "a share of the rows",
    "spark_errors.py:said_by_stage": "an event time that is a date",
}
#: They spell for these, or a column for the plan.
HELPERS = {"advice.py:_quoted", "advice.py:_written", "pipeline.py:with_destination"}


def spelling() -> Iterator[str]:
    """The functions that do it themselves."""
    for path in sorted(ROOM.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef):
                names = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
                names |= {each.attr for each in ast.walk(node) if isinstance(each, ast.Attribute)}
                if names & SPELLING:
                    yield f"{path.relative_to(ROOM)}:{node.name}"


def test_each_text_that_is_made_of_the_users_columns_is_pasted() -> None:
    """An entry that is missing is an advice that nobody has tried; one too many, a test of what is no more."""
    assert {*spelling()} - HELPERS == PASTED.keys()


def test_each_entry_names_what_pastes_it() -> None:
    known = {*REMEDIES, *MISTAKES, *vars(test_refused_stages), *vars(test_event_time)}
    assert {*PASTED.values()} - known == set()
