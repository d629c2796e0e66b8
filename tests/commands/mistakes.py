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

SCHEMA = 'schema = "id string, ts timestamp, amount decimal(10, 2)"'
REST = 'event_time = "ts"\nkey = "id"\nfrontier_lag = "10 minutes"\n'
COUNTED = 'rows.withWatermark("ts", "1 hour").groupBy(F.window("ts", "1 hour"), "id").count()'
HOURLY = f'@app.stage("clean", output="hourly")\ndef hourly(rows):\n    return {COUNTED}'
#: Another stage in its place.
JOIN = """\
@app.stage("clean", "orders", output="hourly")
def hourly(rows, orders):
    later = orders.withWatermark("ts", "1 hour").selectExpr("id AS other", "ts AS at")
    return rows.withWatermark("ts", "1 hour").join(later, F.expr("id = otherBOUND"), "left")"""
BOUND = " AND at BETWEEN ts AND ts + INTERVAL 1 HOUR"
FULL = JOIN.replace("BOUND", BOUND).replace("left", "full")
KEYED = 'where("id IS NOT NULL")'
#: What messages advise.
COUNT = '.withWatermark("ts", "1 hour").groupBy(F.window("ts", "1 hour")).count()'
DAILY = '.withWatermark("ts", "1 hour").groupBy(F.window("ts", "1 day"), "id")'
FIRST = '.withWatermark("ts", "1 hour").dropDuplicatesWithinWatermark(["id"])'
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
        "def hourly", "def clean",
        ("Two stages are called clean", "run the cell with app = Application() first", "MODULE.py, line 10"), "",
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
        ('main = "MODULE:app"', "job.toml, line 3"),
        'main = "MODULE:app"', 'main = "MODULE:app"',
    ),
    "no such module": Mistake(
        'main = "MODULE:app"', 'main = "MODULEE:app"', ("Did you mean 'MODULE'?", "job.toml, line 3"), "MODULE"
    ),
    "an event time that is no column": Mistake(
        'event_time = "ts"\nkey',
        'event_time = "tss"\nkey',
        ("streams.orders.event_time is 'tss'", "columns id, ts, amount", "Did you mean 'ts'?", "job.toml, line 11"),
        "ts",
    ),
    "an event time that is text": Mistake(
        "ts timestamp", "ts string", ("a column of type string", "job.toml, line 11"), "ts timestamp", "ts timestamp"
    ),
    "an event time where no column is a time": Mistake(
        "id string, ts timestamp, amount", "id string, amount",
        ("columns id, amount, none of which is a time. Add", "job.toml"), "ts timestamp",
    ),
    "a zone": Mistake(
        "[streams.orders]", '[spark]\nsql.session.timeZone = "Europe/Berlin"\n[streams.orders]',
        ("spark.sql.session.timeZone cannot be set", 'write F.from_utc_timestamp("ts", "Europe/Berlin")', "job.toml"),
        "",
    ),
    "a module that interrupts itself": Mistake(
        "app = Application()", "app = Application()\nraise KeyboardInterrupt",
        ("The module MODULE cannot be imported: KeyboardInterrupt.", "MODULE.py, line 5"), "",
    ),
    "a key that is no column": Mistake(
        'key = "id"', 'key = "ids"', ("streams.orders.key has 'ids'", "Did you mean 'id'?"), "id", 'key = "id"'
    ),
    "a key that is no text": Mistake(
        "id string", "id double",
        ("streams.orders.key has 'id', a column of type double. Use a string", "job.toml, line 12"), "", "id bigint",
    ),
    "a column as Python writes it": Mistake(
        "id string", "id: str", ("no colon stands between", "job.toml, line 10"), "id string",
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
        "partitions = 2", "partitions = 0", ("job.toml, line 9: streams.orders.partitions = 0", "at least 1"), ""
    ),
    "the grammar of TOML": Mistake('name = "shop"', "name = shop", ("job.toml, line 2, column",), ""),
    "a cluster": Mistake(
        "[streams.orders]",
        '[spark]\nmaster = "yarn"\n[streams.orders]',
        ("spark.master = 'yarn' cannot be used", "local[2]", "job.toml"),
        "local[2]",
        '[spark]\nmaster = "local[2]"\n[streams.orders]',
    ),
    "a section of another name": Mistake(
        "[streams.orders]", "[stream.orders]",
        ("job.toml, line 8: [stream.orders] is not a section. The nearest is [streams.orders]",), "[streams.orders]",
    ),
    "a schema as a list": Mistake(
        SCHEMA, 'schema = ["id string", "ts timestamp", "amount decimal(10, 2)"]',
        ("job.toml, line 10: streams.orders.schema should be one text",), SCHEMA,
    ),
    "a schema as a section": Mistake(
        f"{SCHEMA}\n{REST}",
        f'{REST}[streams.orders.schema]\nid = "string"\nts = "timestamp"\namount = "decimal(10, 2)"\n',
        ("job.toml, line 13: streams.orders.schema should be one text",), SCHEMA,
    ),
    "a schema with semicolons": Mistake(
        SCHEMA, 'schema = "id string; ts timestamp; amount decimal(10, 2)"',
        ("commas separate columns", "job.toml, line 10"), SCHEMA,
    ),
    "a schema of Python's types": Mistake(
        SCHEMA, 'schema = "id: str, ts: datetime, amount: decimal(10, 2)"',
        ("column id has the type 'str'", "column ts has the type 'datetime'", "no colon", "job.toml, line 10"), SCHEMA,
    ),
    "a schema without types": Mistake(
        SCHEMA, 'schema = "id, ts timestamp, amount decimal(10, 2)"',
        ("column id has no type", "job.toml, line 10"), "string",
    ),
    "an event time that is near to no column": Mistake(
        'event_time = "ts"\nkey', 'event_time = "when"\nkey',
        ("streams.orders.event_time is 'when'", "job.toml, line 11"), 'event_time = "ts"',
    ),
    "an event time beside the one that is a time": Mistake(
        'event_time = "ts"\nkey', 'event_time = "id"\nkey',
        ("streams.orders.event_time is 'id', a column of type string", "job.toml, line 11"), 'event_time = "ts"',
    ),
    "a main without its attribute": Mistake(
        'main = "MODULE:app"', 'main = "MODULE"',
        ("job.toml, line 3: app.main = 'MODULE' cannot be used", "like 'pipeline:app'"), "", 'main = "MODULE:app"',
    ),
    "a name with a space": Mistake(
        'name = "shop"', 'name = "my shop"', ("job.toml, line 2: app.name = 'my shop'", "like 'my-shop'"), "my-shop",
        'name = "my-shop"',
    ),
    "a name that is missing": Mistake(
        'name = "shop"\n', "", ("job.toml, line 1: app.name is missing. Write under [app]: ",), 'name = "shop"',
    ),
    "a number in words": Mistake(
        "partitions = 2", 'partitions = "two"', ("job.toml, line 9", "should be a whole number"), "",
    ),
    "a duration for milliseconds": Mistake(
        "[streams.orders]", '[task]\ncommit.ms = "2 seconds"\n[streams.orders]',
        ("job.toml, line 9: task.commit.ms = '2 seconds' cannot be used", "a number of milliseconds"), "2000",
        "[task]\ncommit.ms = 2000\n[streams.orders]",
    ),
    "a key in another section": Mistake(
        'name = "shop"', 'name = "shop"\nevent_time = "ts"',
        ("job.toml, line 3: app.event_time is not a key. The nearest is streams.clean.event_time",), "",
    ),
    "a section twice": Mistake(
        f"{SCHEMA}\n", f"{SCHEMA}\n[streams.orders]\n", ("job.toml, line 11", "[streams.orders] is in line 8, too"), "",
    ),
    "YAML": Mistake(
        'name = "shop"', "name: shop", ("job.toml, line 2", "A job file is not YAML"), 'name = "shop"',
    ),
    "a value without quotes": Mistake(
        'main = "MODULE:app"', "main = MODULE:app", ("job.toml, line 3, column 8",), 'main = "MODULE:app"',
    ),
    "a name that is not imported": Mistake(
        "import Application", "import Application as App",
        ("name 'Application' is not defined", "MODULE.py, line 4"), "from samza_azure import Application",
        "import Application as App\nfrom samza_azure import Application",
    ),
    "a decorator without arguments": Mistake(
        '@app.stage("orders", output="clean", partition_by="id")', "@app.stage",
        ("missing 1 required keyword-only argument: 'output'", "MODULE.py, line 6"), '@app.stage("orders", output=',
    ),
    "a class for its object": Mistake(
        "app = Application()", "app = Application",
        ("A stage is registered with the class Application", "MODULE.py, line 6"), "app = Application()",
    ),
    "an async stage": Mistake(
        "def clean", "async def clean", ("Stage clean is an async function", "MODULE.py, line 6"), "def clean",
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
        ("stream 'clean' has no declared event time", "under [streams.clean] (after line ", "MODULE.py, line 12"),
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
        ("Window function is not supported", "transformWithState", "MODULE.py, line 8"),
        FIRST,
        f'"amount > 0"){FIRST}',
        needs_spark=True,
    ),
    "a sort": Mistake(
        COUNTED,
        'rows.withWatermark("ts", "1 hour").sort("amount")',
        ("Sorting is not supported", "MODULE.py, line 12"),
        GREATEST,
        f'rows.withWatermark("ts", "1 hour"){GREATEST}',
        needs_spark=True,
    ),
    "an aggregation that never ends": Mistake(
        COUNTED,
        'rows.groupBy("id").count()',
        ("no group of the aggregation by id is ever complete", "MODULE.py, line 12"),
        DAILY,
        f"rows{DAILY}.count()",
        needs_spark=True,
    ),
    "a watermark that is too short": Mistake(
        'rows.withWatermark("ts", "1 hour")',
        'rows.withColumn("ts", F.expr("ts - INTERVAL 90 MINUTES")).withWatermark("ts", "1 hour")',
        (" or more.", "MODULE.py, line 12"),
        'withWatermark("ts", "90 minutes")',
        'rows.withColumn("ts", F.expr("ts - INTERVAL 90 MINUTES")).withWatermark("ts", "90 minutes")',
        needs_spark=True,
    ),
    "a join without a limit of time": Mistake(
        HOURLY,
        JOIN.replace("BOUND", ""),
        ("Give both inputs of such a join withWatermark", "MODULE.py, line 13"),
        f'F.expr("id = other{BOUND}")',
        JOIN.replace("BOUND", BOUND),
        needs_spark=True,
    ),
    "a join in which null meets null": Mistake(
        HOURLY,
        FULL,
        ("the join on id = other would match rows whose id and other are both null", "MODULE.py, line 13"),
        KEYED,
        FULL.replace("rows.", f"rows.{KEYED}."),
        needs_spark=True,
    ),
}  # fmt: skip
