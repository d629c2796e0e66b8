"""The mistakes of a first hour: a correct job, and a mistake in one place of it.

They are shared by the tests of `check`, by those of `run` and `dev`, and by `tests/prove/mistakes.py`, which plays each
through all three.
"""

from dataclasses import dataclass

JOB = """\
[app]
name = "shop"
main = "MODULE:app"

[azure.storage]
connect = "${NO_SUCH_VARIABLE}"

[streams.orders]
partitions = 2
schema = "id string, ts timestamp, amount decimal(10, 2)"
event_time = "ts"
key = "id"
frontier_lag = "10 minutes"

[streams.clean]
event_time = "ts"
"""
PIPELINE = """\
from pyspark.sql import functions as F
from samza_azure import Application

app = Application()

@app.stage("orders", output="clean", partition_by="id")
def clean(orders):
    return orders.where("amount > 0")

@app.stage("clean", output="hourly")
def hourly(rows):
    return rows.withWatermark("ts", "1 hour").groupBy(F.window("ts", "1 hour"), "id").count()
"""

COUNTED = 'rows.withWatermark("ts", "1 hour").groupBy(F.window("ts", "1 hour"), "id").count()'
HOURLY = f'@app.stage("clean", output="hourly")\ndef hourly(rows):\n    return {COUNTED}'
#: Another stage in its place.
JOIN = """\
@app.stage("clean", "orders", output="hourly")
def hourly(rows, orders):
    later = orders.withWatermark("ts", "1 hour").selectExpr("id AS other", "ts AS at")
    return rows.TIMED.withWatermark("ts", "1 hour").join(later, F.expr("id = otherBOUND"), "left")"""
BOUND = " AND at BETWEEN ts AND ts + INTERVAL 1 HOUR"
TIMED = 'where("ts IS NOT NULL")'
#: What messages advise.
COUNT = '.withWatermark("ts", "1 hour").groupBy(F.window("ts", "1 hour")).count()'
DAILY = '.withWatermark("ts", "1 hour").groupBy(F.window("ts", "1 day"), "id")'
FIRST = '.where("ts IS NOT NULL").withWatermark("ts", "1 hour").dropDuplicatesWithinWatermark(["id"])'
GREATEST = '.groupBy(F.window("ts", "1 hour")).agg(F.max_by("id", "amount"))'


@dataclass(frozen=True)
class Mistake:
    """A correct text of the job or the pipeline, the mistake that replaces it, and the expected message.

    `advised` is the part of the remedy that the message has. It is empty if the message says in words what to do.
    """

    right: str
    wrong: str
    told: tuple[str, ...]
    advised: str
    remedy: str = ""  # without one the right text is
    needs_spark: bool = False  # the quick check does not find it

    def __post_init__(self) -> None:
        assert self.advised in (self.remedy or self.right), f"{self.advised!r} is not in the remedy"


MISTAKES = {
    "a stream's name": Mistake(
        '"orders"',
        '"order"',
        ("Stage clean reads stream 'order'", "Did you mean 'orders'?", "MODULE.py, line 6"),
        "orders",
        '"orders"',
    ),
    "a stream of another stage": Mistake(
        '@app.stage("clean"',
        '@app.stage("claen"',
        ("reads stream 'claen'", "Did you mean 'clean'?", "MODULE.py, line 10"),
        "clean",
    ),
    "two stages with one output": Mistake(
        'output="hourly"', 'output="clean"', ("both write the stream 'clean'", "MODULE.py, line 10"), ""
    ),
    "two stages with one name": Mistake(
        "def hourly", "def clean", ("Two stages are called clean", "MODULE.py, line 10"), ""
    ),
    "a function of too few inputs": Mistake(
        "def clean(orders):", "def clean():",
        ("called with 1 DataFrame(s), but it takes 0", "MODULE.py, line 6"),
        "def clean(orders):",
    ),
    "a circle": Mistake(
        '@app.stage("orders"', '@app.stage("hourly"',
        ("The stages clean, hourly wait for each other's output", "MODULE.py, line"), "",
    ),
    "no stage": Mistake(
        PIPELINE[PIPELINE.index("@app") :], "",
        ("The application has no stage", "MODULE.py, line 4: app ="), "@app.stage",
    ),
    "a package that is missing": Mistake(
        "import Application", "import Application\nimport pandaz", ("Did you mean 'pandas'?", "MODULE.py, line 3"), ""
    ),
    "a name at the top": Mistake(
        "app = Application()",
        "app = Aplication()",
        ("NameError: name 'Aplication' is not defined", "MODULE.py, line 4: app = Aplication()"),
        "",
    ),
    "grammar": Mistake(
        "def clean(orders):", "def clean(orders)", ("Syntax error: expected ':'", "MODULE.py, line 7"), ":"
    ),
    "another attribute": Mistake(
        'main = "MODULE:app"', 'main = "MODULE:application"',
        ('main = "MODULE:app"', "job.toml"),
        'main = "MODULE:app"', 'main = "MODULE:app"',
    ),
    "no such module": Mistake(
        'main = "MODULE:app"', 'main = "MODULEE:app"', ("Did you mean 'MODULE'?", "job.toml"), "MODULE"
    ),
    "an event time that is no column": Mistake(
        'event_time = "ts"\nkey',
        'event_time = "tss"\nkey',
        ("streams.orders.event_time is 'tss'", "columns id, ts, amount", "Did you mean 'ts'?", "job.toml"),
        "ts",
    ),
    "an event time that is text": Mistake(
        "ts timestamp", "ts string", ("a column of type string", "job.toml"), "ts timestamp", "ts timestamp"
    ),
    "a key that is no column": Mistake(
        'key = "id"', 'key = "ids"', ("streams.orders.key has 'ids'", "Did you mean 'id'?"), "id", 'key = "id"'
    ),
    "a key that is no text": Mistake(
        "id string", "id double",
        ("streams.orders.key has 'id', a column of type double. Use a string", "job.toml"), "", "id bigint",
    ),
    "a column as Python writes it": Mistake(
        "id string", "id: str", ("no colon stands between", "job.toml"), "id string",
    ),
    "a type": Mistake("id string", "id strng", ("column id has the type 'strng'", "Did you mean 'string'?"), "string"),
    "a key of the file": Mistake(
        "partitions = 2", "partition = 2",
        ("streams.orders.partition is not a key", "streams.orders.partitions"),
        "partitions",
    ),
    "a duration": Mistake(
        '"10 minutes"',
        '"10 minuts"',
        ("streams.orders.frontier_lag = '10 minuts' cannot be used", "like '2 s' or '1 hour'"),
        "1 hour",
        '"1 hour"',
    ),
    "a number": Mistake(
        "partitions = 2", "partitions = 0", ("streams.orders.partitions = 0 cannot be used", "job.toml"), ""
    ),
    "the grammar of TOML": Mistake('name = "shop"', "name = shop", ("job.toml, line 2, column",), ""),
    "a cluster": Mistake(
        "[streams.orders]",
        '[spark]\nmaster = "yarn"\n[streams.orders]',
        ("spark.master = 'yarn' cannot be used", "local[2]", "job.toml"),
        "local[2]",
        '[spark]\nmaster = "local[2]"\n[streams.orders]',
    ),
    "a misspelt column": Mistake(
        '"amount > 0"',
        '"amout > 0"',
        ("Stage clean cannot be analysed", "Did you mean", "`amount`", "MODULE.py, line 8"),
        "amount",
        needs_spark=True,
    ),
    "a misspelt attribute": Mistake(
        '"amount > 0"',
        "orders.amout > 0",
        ("has no column 'amout'", "Did you mean 'amount'?", "MODULE.py, line 8"),
        "amount",
        needs_spark=True,
    ),
    "a stream without event time": Mistake(
        '\n[streams.clean]\nevent_time = "ts"\n',
        "",
        ("stream 'clean' has no declared event time", "under [streams.clean]: ", "MODULE.py, line 10"),
        'event_time = "ts"',
        needs_spark=True,
    ),
    "an action": Mistake(
        COUNTED,
        "rows.count()",
        ("count() was called, but a stage must not run an action", "MODULE.py, line 12"),
        COUNT,
        f"rows{COUNT}",
        needs_spark=True,
    ),
    "a name in a function": Mistake(
        'F.window("ts", "1 hour")',
        'F.window(time, "1 hour")',
        ("NameError: name 'time' is not defined", "MODULE.py, line 12"),
        "",
        needs_spark=True,
    ),
    "nothing returned": Mistake(
        "return orders", "orders", ("Stage clean returns NoneType. Return a DataFrame.", "MODULE.py, line 6"), "",
        needs_spark=True,
    ),
    "a key that the stage does not write": Mistake(
        'partition_by="id"',
        'partition_by="ids"',
        ("Stage clean has partition_by 'ids'", "columns id, ts, amount", "MODULE.py, line 6"),
        "id",
        needs_spark=True,
    ),
    "two columns of one name": Mistake(
        'orders.where("amount > 0")',
        'orders.select("*", "id")',
        ("Stage clean has 2 columns called id", "MODULE.py, line 6"),
        "",
        needs_spark=True,
    ),
    "a query of its own": Mistake(
        'orders.where("amount > 0")',
        'orders.writeStream.format("noop").start()',
        ("Stage clean starts a query. Return the DataFrame instead", "MODULE.py, line 6"),
        "",
        needs_spark=True,
    ),
    "a row number": Mistake(
        '"amount > 0")',
        '"amount > 0").selectExpr("*", "row_number() OVER (PARTITION BY id ORDER BY ts) AS number")',
        ("Window function is not supported", "transformWithState", "MODULE.py, line 6"),
        FIRST,
        f'"amount > 0"){FIRST}',
        needs_spark=True,
    ),
    "a sort": Mistake(
        COUNTED,
        'rows.withWatermark("ts", "1 hour").sort("amount")',
        ("Sorting is not supported", "MODULE.py, line 10"),
        GREATEST,
        f'rows.withWatermark("ts", "1 hour"){GREATEST}',
        needs_spark=True,
    ),
    "an aggregation that never ends": Mistake(
        COUNTED,
        'rows.groupBy("id").count()',
        ("no group of the aggregation by id is ever complete", "MODULE.py, line 10"),
        DAILY,
        f"rows{DAILY}.count()",
        needs_spark=True,
    ),
    "a watermark that is too short": Mistake(
        'rows.withWatermark("ts", "1 hour")',
        'rows.withColumn("ts", F.expr("ts - INTERVAL 90 MINUTES")).withWatermark("ts", "1 hour")',
        (" or more.", "MODULE.py, line 10"),
        'withWatermark("ts", "90 minutes")',
        'rows.withColumn("ts", F.expr("ts - INTERVAL 90 MINUTES")).withWatermark("ts", "90 minutes")',
        needs_spark=True,
    ),
    "a join without a limit of time": Mistake(
        HOURLY,
        JOIN.replace("BOUND", "").replace("TIMED", TIMED),
        ("Give both inputs of such a join withWatermark", "MODULE.py, line 10"),
        f'F.expr("id = other{BOUND}")',
        JOIN.replace("BOUND", BOUND).replace("TIMED", TIMED),
        needs_spark=True,
    ),
    "a join that waits for rows without a time": Mistake(
        HOURLY,
        JOIN.replace("BOUND", BOUND).replace("TIMED.", ""),
        ("where ts is null, the join on id = other", "MODULE.py, line 10"),
        TIMED,
        JOIN.replace("BOUND", BOUND).replace("TIMED", TIMED),
        needs_spark=True,
    ),
}  # fmt: skip
