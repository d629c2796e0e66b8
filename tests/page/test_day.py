"""What the page shows of the last day: its curves, and of a failure no more than code."""

from samza_azure.host.last_day import Failed, LastDay
from samza_azure.page.day import code_lines, day

TRACE = """card 1234 was refused
Traceback (most recent call last):
  File "/jobs/job.py", line 7, in clean
    return parse(row)
           ^^^^^^^^^^
  File "/jobs/job.py", line 3, in parse
    raise ValueError(f"no card: {row}")
ValueError: no card: 1234
    card 1234
Called with row=1234
Caused by: java.lang.IllegalStateException: card 1234
\tat org.apache.spark.sql.Row.get(Row.scala:12)
card: 1234
"""


def test_a_trace_shows_code_and_no_data() -> None:
    assert code_lines(TRACE).splitlines() == [
        "Traceback (most recent call last):",
        '  File "/jobs/job.py", line 7, in clean',
        "    return parse(row)",
        '  File "/jobs/job.py", line 3, in parse',
        '    raise ValueError(f"no card: {row}")',
        "ValueError",
        "java.lang.IllegalStateException",
        "\tat org.apache.spark.sql.Row.get(Row.scala:12)",
    ]


def test_the_latest_failure_comes_first_and_an_hour_without_a_leader_is_a_gap() -> None:
    old = Failed("a-0", "p", "h", "1", "c", "one\ncard 1234", TRACE, 1, 2, 3)
    shown = day(LastDay(((0, 1, None, 2.0), (60_000, 2, None, 3.0), (3_660_000, 3, None, 4.0)), (old, replace_of(old))))
    assert [each["task"] for each in shown["failures"]] == ["b-0", "a-0"]
    assert shown["failures"][1]["message"] == "one" and "1234" not in str(shown)
    assert [point[1] for point in shown["points"]] == [1, 2, None, 3]


def replace_of(failed: Failed) -> Failed:
    return Failed("b-0", failed.processor, "", "", "", "two", "", 3, 4)
