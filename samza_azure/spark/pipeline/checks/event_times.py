"""Each operator with state gets one event time. If there are two, the query fails at its start.

Spark uses one column with a watermark to decide whether a row is late. Its optimiser may find another one to be a copy.
"""

from collections.abc import Iterator

from samza_azure.spark.jvm.catalyst import in_sql, literal
from samza_azure.spark.pipeline.bounds import event_times
from samza_azure.spark.pipeline.facts import Facts
from samza_azure.spark.pipeline.operators import described
from samza_azure.spark.pipeline.refusals import Refusal


def check(facts: Facts) -> Iterator[Refusal]:
    """Refuse an operator that gets several."""
    for operator in facts.operators:
        for child in operator.children:
            times = event_times(operator, child)
            if len(times) > 1:
                names = " and ".join(str(child.column(wanted).name()) for wanted in times)
                said = (
                    f"the {described(operator)} gets {names}, all with a watermark, so its event time is ambiguous. "
                    "Drop all but one of them before it."
                )
                yield facts.refused(operator, said)
    for operator, child, copies in facts.copies:
        times = event_times(operator, child)
        if len(times) < 2:
            continue
        copy = str(child.column(copies[0]).name())
        time = next(str(child.column(wanted).name()) for wanted in times if wanted != copies[0])
        as_computed = literal(f"{in_sql(time)} + INTERVAL 0 SECONDS")
        said = (
            f"Spark's optimiser finds that {copy} is the event time {time} itself, and the query would fail since the "
            f"{described(operator)} gets two event times. Drop one of them before it; or compute the copy, "
            f".withColumn({literal(copy)}, F.expr({as_computed}))."
        )
        if operator.kind == "Aggregate":
            said = (
                f"Spark's optimiser finds that two keys of the {described(operator)} are event times, and the query "
                'would fail. Group by one of them, and by the other as a text, .cast("string").'
            )
        yield facts.refused(operator, said)
