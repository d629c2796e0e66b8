"""What a user's module may do at its top, and what its functions may refer to: tried in a container of its own."""

import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from samza_azure.account import Storage
from samza_azure.config import Config
from samza_azure.errors import ConfigError, PipelineRefused
from samza_azure.machine.clock import boot_time
from samza_azure.messages import Alive, Permit, Phase, Ready, Rejected, StartTask, TaskReport
from samza_azure.spark.jvm.session import set_unchecked
from samza_azure.spark.pipeline.module import load
from samza_azure.spark.pipeline.pipeline import analyse_pipeline
from samza_azure.storage.connection import Account
from samza_azure.stream_io.source_stream import SourceWriter
from tests.storage.stored_rows import export

from .child import Child
from .task_driver import delete_below

JOB = """
[app]
name = "test"
main = "pipeline:app"
%s
[azure.storage]
connect = "%s"
container = "%s"
table = "%s"
[streams.numbers]
schema = "n int"
"""
HEAD = """
from pyspark.sql import SparkSession, functions as F
from samza_azure import Application
app = Application()
"""
NUMBERS = [3, 5, 8]
CONNECT = "UseDevelopmentStorage=true"


def start(folder: Path, storage: Storage, files: dict[str, str], app: str) -> Child:
    """A container on these files beside a job file with these lines."""
    for name, text in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    assert storage.connect is not None
    connect = storage.connect.value
    (folder / "job.toml").write_text(JOB % (app, connect, storage.container, storage.table))
    return Child(folder / "job.toml")


@pytest.fixture
def container(tmp_path: Path, storage: Storage) -> Iterator[Callable[..., Child]]:
    """Starts a container on these files beside a job file with these lines."""
    children: list[Child] = []

    def started(files: dict[str, str], app: str = "") -> Child:
        children.append(start(tmp_path, storage, files, app))
        return children[-1]

    yield started
    for child in children:
        child.kill()


def rows_by_output(child: Child, account: Account) -> dict[str, list[tuple[object, ...]]]:
    """The rows that each stage of a pipeline makes of the numbers, by the stream that it writes."""
    delete_below(account, "streams/")
    writer = SourceWriter(account.blobs(), account.hints(), "numbers", 1)
    writer.write(pa.table({"n": pa.array(NUMBERS, pa.int32())}))
    writer.close()
    ready = child.report()
    assert isinstance(ready, Ready), ready
    run_id = f"run-{uuid.uuid4().hex[:8]}"
    child.tell(Permit(boot_time() + 3600))
    for stage in ready.plan.stages:
        child.tell(StartTask(f"{stage.name}-0", 1, 1, True, run_id, uuid.uuid4().hex))
    while True:
        report = child.report()
        if isinstance(report, Alive):
            continue
        assert isinstance(report, TaskReport)
        assert report.phase in (Phase.STARTING, Phase.RUNNING), report
        if report.batch >= 0:
            found = {str(stage.output): stored(account, str(stage.output), run_id) for stage in ready.plan.stages}
            if all(len(rows) == len(NUMBERS) for rows in found.values()):
                return found


def stored(account: Account, stream: str, run_id: str) -> list[tuple[object, ...]]:
    try:
        table: pa.Table = export(account.blobs(), stream, [run_id])
    except ConfigError:  # no rows yet
        return []
    return sorted(tuple(row.values()) for row in table.to_pylist())


@pytest.fixture
def rows_of(container: Callable[..., Child], account: Account) -> Callable[..., list[tuple[object, ...]]]:
    """The rows that the one stage of a pipeline, `out`, makes of the numbers."""
    return lambda files, app="": rows_by_output(container(files, app), account)["out"]


@pytest.mark.long  # a Spark of its own; what workers get is shown below
def test_a_script_becomes_a_pipeline(rows_of: Callable[..., list[tuple[object, ...]]]) -> None:
    """A session, a broadcast, an accumulator and registered functions at the top; helpers of all kinds beside it."""
    pipeline = (
        HEAD
        + """
import threading
import common, helpers
from helpers import Scale, doubled
from jobs.rules import even

spark = SparkSession.builder.appName("mine").master("local[2]").config("spark.sql.shuffle.partitions", 7).getOrCreate()
names = spark.sparkContext.broadcast({3: "three", 5: "five"})
seen = spark.sparkContext.accumulator(0)
lock = threading.Lock()
OFFSET = 100
column = F.col("n")
add = F.udf(lambda n: n + OFFSET, "int")

class Shift:
    def __init__(self, by):
        self.by = by
    def __call__(self, n):
        return n + self.by

def named(n):
    seen.add(1)
    return names.value.get(n, "?")

def scaled(n):
    from lazily import tripled
    return tripled(Scale(2).of(doubled(n)))

spark.udf.register("named", named, "string")
spark.udf.register("through_a_module", lambda n: helpers.remembered(n), "int")

def shifted(by):
    return F.udf(lambda n: Shift(by)(n), "int")

@app.stage("numbers", output="out")
def stage(rows):
    assert spark is rows.sparkSession
    return rows.select(
        column, add("n").alias("added"), shifted(7)("n").alias("shifted"), F.udf(scaled, "int")("n").alias("scaled"),
        F.expr("named(n)").alias("named"), F.expr("through_a_module(n)").alias("module"),
        F.udf(common.tagged, "string")("n").alias("tagged"),
        F.udf(lambda n: common.tagged(n), "string")("n").alias("again"),
        F.udf(even, "boolean")("n").alias("even"),
        F.lit(spark.conf.get("spark.sql.shuffle.partitions")).alias("shuffle"),
    )
"""
    )
    helpers = """
import threading
lock = threading.Lock()
memory = {}

class Scale:
    def __init__(self, factor):
        self.factor = factor
    def of(self, n):
        return n * self.factor

def doubled(n):
    return 2 * n

def remembered(n):
    with lock:
        memory[n] = n
        return memory[n]
"""
    common = """
from pyspark.sql import SparkSession
spark = SparkSession.builder.getOrCreate()
TAG = "#"

def tagged(n):
    return TAG + str(n)
"""
    rules = "from common import spark\n\ndef even(n):\n    return n % 2 == 0\n"
    rows = rows_of(
        {
            "pipeline.py": pipeline,
            "helpers.py": helpers,
            "common.py": common,
            "lazily.py": "def tripled(n):\n    return 3 * n\n",
            "jobs/rules.py": rules,  # in a package without __init__.py
        }
    )
    assert rows == [
        (n, n + 100, n + 7, 12 * n, {3: "three", 5: "five"}.get(n, "?"), n, f"#{n}", f"#{n}", n % 2 == 0, "1")
        for n in NUMBERS
    ]


@pytest.mark.long  # a Spark of its own; what workers import is shown below
def test_workers_have_what_the_module_sets_for_its_process(
    rows_of: Callable[..., list[tuple[object, ...]]], tmp_path: Path
) -> None:
    """Variables of the environment, as load_dotenv sets them, and folders to import from. The job file's come first."""
    pipeline = """
import os, sys, threading
import pandas as pd
from pathlib import Path
os.environ["RATE"], os.environ["MODE"] = "2000000001", "of the module"
os.environ["LANG"] = "C"
sys.path.append(str(Path(__file__).with_name("lib")))
import shared, settings
from pyspark.sql import SparkSession, functions as F
from samza_azure import Application
app = Application()
spark = SparkSession.builder.getOrCreate()

def rate(n):
    return f"{os.environ.get('RATE')} {os.environ.get('MODE')} {os.environ.get('LANG')}"

@F.pandas_udf("string")
def in_pandas(numbers: "pd.Series") -> "pd.Series":
    return numbers.map(rate)

def in_frames(frames):
    for frame in frames:
        yield frame.assign(f=frame.n.map(rate))

spark.udf.register("early", rate, "string")
found = []
beside = threading.Thread(target=lambda: found.append(dict(spark.sparkContext.environment)))  # as our source is sent
beside.start()
beside.join()
assert "RATE" in spark.sparkContext.environment and "RATE" not in found[0]
os.environ["LATER"] = "3"

@app.stage("numbers", output="out")
def stage(rows):
    later = F.udf(lambda n: os.environ["LATER"], "string")
    rows = rows.select("n", F.udf(rate, "string")("n"), F.expr("early(n)"), in_pandas("n"),
        F.udf(settings.rate, "string")("n"), F.udf(lambda n: shared.doubled(n), "int")("n"), later("n"))
    rows = rows.toDF("n", "a", "b", "c", "d", "e", "g")
    return rows.mapInPandas(in_frames, "n int, a string, b string, c string, d string, e int, g string, f string")
"""
    files = {
        "pipeline.py": pipeline,
        "lib/shared.py": "import colorsys\n\ndef doubled(n):\n    return 2 * n\n",
        "lib/colorsys.py": "raise ImportError('Python has a module of this name, and looks there first')",
        "settings.py": "import os\nRATE = os.environ.get('RATE')\n\ndef rate(n):\n    return RATE\n",
    }
    rows = rows_of(files, 'packages = []\n[spark]\n"executorEnv.MODE" = "of the job file"')
    set_there = "2000000001 of the job file C"
    assert rows == [(n, set_there, set_there, set_there, "2000000001", 2 * n, "3", set_there) for n in NUMBERS]
    assert "2000000001" not in (tmp_path / "container.log").read_text(), "it may be a secret"


IMPORTED = """
from functools import partial
from pyspark.sql import Window
from helpers import known
spark = SparkSession.builder.getOrCreate()

def modules(n):
    import sys
    return [name for name in ("wave", "sndhdr", "pipeline", "helpers") if name in sys.modules and known(n)]

@app.stage("numbers", output="imported")
def imported(rows):
    return rows.select("n", F.udf(modules, "array<string>")("n").alias("modules"))
"""
HELPERS = """
import functools
from typing import NewType
Marked = NewType("Marked", int)
memory = set()

def known(n):
    memory.add(n)
    return len(memory)

@functools.cache
def remembered(n):
    return -n
"""
HOLD_COLUMNS = {
    "in_class": "class Rules:\n    FROM = 10\n    KNOWN = F.col('n') > 1\n\ndef made(n): return n + Rules.FROM",
    "in_dict": "rules = {'known': [F.col('n') > 1]}\n\ndef made(n):\n    return n + 20",
    "in_default": "def known(by=F.col('n')):\n    return by > 1\n\ndef made(n):\n    return n + 30",
    "in_partial": "known = partial(F.when, F.col('n') > 1)\n\ndef made(n):\n    return n + 40",
    "in_window": "known = Window.partitionBy('n')\n\ndef made(n):\n    return n + 50",
    "in_object": "known = Rule(F.col('n') > 1)\n\ndef made(n):\n    return n + 60",
}
THEIR_IMPORTS = """
from functools import partial
from pyspark.sql import Window, functions as F
from plain import Rule
"""
PLAIN = """
class Rule:
    __slots__ = ("column",)
    def __init__(self, column):
        self.column = column
"""
HELD = f"""
import {", ".join(HOLD_COLUMNS)}

class Base:
    KNOWN = None
    def rate(self, n): return n

class Own(Base):
    FROM = 70
    KNOWN = F.col("n") > 1
    def rate(self, n, by=F.col("n")): return n * 100

def refused(use):
    try:
        return str(use())
    except RuntimeError as error:
        return str(error).partition(" is or holds an object of the Spark session")[0]

def all_refused(n):
    uses = lambda: Own.KNOWN, lambda: Own().rate(n), lambda: in_dict.rules[n], lambda: getattr(in_dict, "rules", n).n
    return list(map(refused, uses))

@app.stage("numbers", output="held")
def held(rows):
    rows = rows.where(in_class.Rules.KNOWN).where(in_dict.rules["known"][0]).where(in_default.known())
    rows = rows.where(in_object.known.column).where(Own.KNOWN).where(in_partial.known(True))
    direct = [F.udf(each.made, "int")("n") for each in ({", ".join(HOLD_COLUMNS)})]
    named = [{", ".join(f"F.udf(lambda n: {name}.made(n), 'int')('n')" for name in HOLD_COLUMNS)}]
    return rows.select("n", F.array(*direct), F.array(*named), F.udf(lambda n: n + Own.FROM, "int")("n"),
        F.udf(all_refused, "array<string>")("n")).toDF(*"nabcd")
"""
FORMS = """
import dataclasses, decimal, enum, functools
from typing import NewType
import helpers
from helpers import Marked, remembered
Cents = NewType("Cents", int)

@functools.lru_cache(maxsize=None, typed=True)
def doubled(n):
    return 2 * n
doubled.unit = "pairs"

@functools.cache
def sum_to(n):
    return n and n + sum_to(n - 1)

class Tariff:
    @functools.lru_cache
    def of(self, n: Cents) -> Cents:
        return Cents(n * 3)
    @functools.cached_property
    def base(self):
        return 7

class Status(enum.Enum):
    OPEN = 1
    CLOSED = 2
    DONE = 2

class Access(enum.Flag):
    READ = enum.auto()
    WRITE = enum.auto()
    ALL = READ | WRITE

class Price(decimal.Decimal, enum.Enum):
    LOW = "1.5"

class Level(str, enum.Enum):
    LOW = "low", "a label"
    def __new__(cls, value, label):
        made = str.__new__(cls, value)
        made._value_, made.label = value, label
        return made

class Planet(enum.Enum):
    EARTH = (5, 6)
    MARS = (3, 4)
    def __init__(self, mass, radius):
        self.mass, self.radius = mass, radius
        self.near = [mass]
    def of(self, n):
        return self.mass * n

@dataclasses.dataclass
class Order:
    n: int
    note: str = ""

class Point:
    __slots__ = ("__x", "y")
    def __init__(self, x):
        self.__x = self.y = x
    def of(self):
        return self.__x + self.y

home = Planet.MARS

def made(n):
    required = [each.name for each in dataclasses.fields(Order) if each.default is dataclasses.MISSING]
    planets = [Planet.EARTH.of(n), Planet((3, 4)).radius, home is Planet.MARS, home.near]
    statuses = [Status.__members__["DONE"] is Status.CLOSED, list(Status.__members__)]
    statuses += [str(Price.LOW + 1), Level("low").label]
    access = [Access["ALL"] is Access.READ | Access.WRITE, list(Access.__members__), Access(3).name]
    caches = [doubled(n), sum_to(n), sum_to.cache_info().currsize, Tariff().of(n), Tariff().base]
    beside = [remembered is helpers.remembered, Marked is helpers.Marked, remembered(n)]
    given = [doubled.cache_parameters(), doubled.unit]
    return str([required, planets, statuses, access, caches, beside, Point(n).of(), given])

@app.stage("numbers", output="formed")
def formed(rows):
    return rows.select("n", F.udf(made, "string")("n"), F.udf(lambda n: made(n), "string")("n")).toDF(*"nab")
"""
TIMES = """
from datetime import datetime
NOON = datetime(2013, 1, 1, 12)
days = spark.createDataFrame([(NOON,)], "known timestamp")

@app.stage("numbers", output="timed")
def timed(rows):
    hour, noon = F.udf(lambda time: time.hour, "int"), F.udf(lambda _: NOON, "timestamp")
    times = [F.lit(NOON), F.col("known"), noon("n")]
    return rows.crossJoin(days).select(*map(F.hour, times), *map(hour, times)).toDF(*"abcdef")
"""


@pytest.fixture(scope="module")
def rows_of_stages(
    storage: Storage, account: Account, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, list[tuple[object, ...]]]:
    """What the stages of the four texts make of the numbers, in a container of another time zone."""
    files = {"pipeline.py": HEAD + IMPORTED + HELD + FORMS + TIMES, "helpers.py": HELPERS, "plain.py": PLAIN}
    files |= {f"{name}.py": THEIR_IMPORTS + text for name, text in HOLD_COLUMNS.items()}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TZ", "Asia/Tokyo")
        child = start(tmp_path_factory.mktemp("stages"), storage, files, 'packages = ["wave"]')
    try:
        return rows_by_output(child, account)
    finally:
        child.kill()


def test_workers_import_what_is_beside_the_pipeline_and_have_the_packages(
    rows_of_stages: dict[str, list[tuple[object, ...]]],
) -> None:
    """So a module there remembers between batches. The pipeline's own module is not imported, it makes a session."""
    assert rows_of_stages["imported"] == [(n, ["wave", "helpers"]) for n in NUMBERS]


def test_a_module_may_hold_columns_in_classes_lists_and_defaults(
    rows_of_stages: dict[str, list[tuple[object, ...]]],
) -> None:
    """No worker can import such a module. Workers get it without the session's objects, whose use is an error there.

    Were they left out without a trace, a worker would find another value: that of a base class, or a default.
    """
    sums = {n: [n + 10 * each for each in range(1, 7)] for n in NUMBERS}
    refused = ["Own.KNOWN", "Own.rate", "in_dict.rules", "in_dict.rules"]
    assert rows_of_stages["held"] == [(n, sums[n], sums[n], n + 70, refused) for n in NUMBERS]


def test_functions_and_classes_of_all_forms_are_sent_by_value(
    rows_of_stages: dict[str, list[tuple[object, ...]]],
) -> None:
    """Those of the main module, which no worker can import. What is beside it keeps its caches between batches."""
    wanted = {
        n: str(
            [
                ["n"],
                [5 * n, 4, True, [3]],
                [True, ["OPEN", "CLOSED", "DONE"], "2.5", "a label"],
                [True, ["READ", "WRITE", "ALL"], "ALL"],
                [2 * n, n * (n + 1) // 2, n + 1, 3 * n, 7],
                [True, True, -n],
                2 * n,
                [{"maxsize": None, "typed": True}, "pairs"],
            ]
        )
        for n in NUMBERS
    }
    assert rows_of_stages["formed"] == [(n, wanted[n], wanted[n]) for n in NUMBERS]


def test_a_time_without_a_zone_is_of_utc_wherever_the_processor_runs(
    rows_of_stages: dict[str, list[tuple[object, ...]]],
) -> None:
    """Python reads such a time in the zone of its machine; processors in two zones would make different rows."""
    assert rows_of_stages["timed"] == [(12,) * 6] * len(NUMBERS)


def test_a_package_that_cannot_be_imported_is_refused(container: Callable[..., Child]) -> None:
    stage = '@app.stage("numbers", output="out")\ndef stage(rows):\n    return rows\n'
    child = container({"pipeline.py": HEAD + stage}, 'packages = ["json", "nowhere_at_all"]')
    assert child.report() == Rejected(
        "app.packages names nowhere_at_all, which cannot be imported (ModuleNotFoundError: No module named "
        "'nowhere_at_all'). Install it on each machine that runs a processor, or remove it from the list."
    )


def test_settings_that_a_module_makes_are_refused_unless_the_job_file_has_them(
    analyse: Callable[[str, str], None], spark: SparkSession
) -> None:
    """They would be this processor's alone, and some can no longer take effect."""
    before = dict(spark.conf.getAll)
    spark.conf.set("spark.sql.caseSensitive", "true")  # as a container does with what the job file has
    builder = """
builder = SparkSession.builder.config("spark.sql.ansi.enabled", "false").config("spark.sql.caseSensitive", "true")
builder = builder.config("spark.sql.session.timeZone", "Europe/Berlin")
spark = builder.config("spark.driver.memory", "9g").getOrCreate()
"""
    try:
        with pytest.raises(PipelineRefused) as caught:
            analyse("sets_more", HEAD + builder)
    finally:
        for key, value in spark.conf.getAll.items():
            if key not in before:
                spark.conf.unset(key)
            elif value != before[key]:
                set_unchecked(spark, key, before[key])
    assert str(caught.value) == (
        "The module sets_more sets spark.sql.session.timeZone. Remove it: event time is UTC everywhere; in another "
        'zone a processor would cut other windows. For a local time, write F.from_utc_timestamp("ts", "Europe/Berlin") '
        "in a stage. The module sets_more sets spark.driver.memory, spark.sql.ansi.enabled. The session exists "
        "before the module is imported, and all processors need the same settings: write them under [spark] in the job "
        "file, not in the module."
    )


@pytest.mark.long  # a Spark of its own
def test_a_module_that_stops_the_session_is_refused(container: Callable[..., Child]) -> None:
    """As scripts do at their end."""
    stage = '@app.stage("numbers", output="out")\ndef stage(rows):\n    return rows\n'
    child = container({"pipeline.py": f"{HEAD}\nspark = SparkSession.builder.getOrCreate()\n\n{stage}\nspark.stop()\n"})
    assert child.report() == Rejected(
        "The module pipeline stops the session, which the stages need. Remove the call to stop()."
    )


SHARED = """
import datetime, enum, functools, os, threading
from pyspark.sql import DataFrame, SparkSession, functions as F
from samza_azure import Application
app = Application()
spark = SparkSession.getActiveSession()
"""
STAGE = """
@app.stage("numbers", output="out")
def stage(rows):
    return rows.select(F.udf(lambda n: %s, "int")("n").alias("n"))
"""
WITH_ARGUMENTS = """
class Plug:
    def __init_subclass__(cls, /, rate):
        cls.rate = rate

class Double(Plug, rate=2):
    pass
"""
WITH_NEW = """
class Code(bytes, enum.Enum):
    LOW = (1, "low")
    def __new__(cls, value, label):
        made = bytes.__new__(cls, [value])
        made._value_, made.label = value, label
        return made
"""
OF_NUMBERS = """
class Grade(str, enum.Enum):
    LOW = 3
    def __new__(cls, value):
        made = str.__new__(cls, str(value))
        made._value_ = value
        return made
"""
OF_FUNCTIONS = """
class Step(enum.Enum):
    @enum.member
    def run(self):
        return 1
"""
OF_DATES = """
class Day(datetime.date, enum.Enum):
    FIRST = 2020, 1, 1
"""
WITH_COLUMN = """
class Rule:
    def __init__(self):
        self.column = F.col("n")
    def of(self, n):
        return n

rule = Rule()
"""
REGISTERED = """
lock = threading.Lock()
spark.udf.register("locked", lambda n: lock.locked())
"""
_PUT = "Put it into a module beside the pipeline, which the workers import."
_COLUMN = (
    "A function that Spark calls refers to a Column, perhaps through an attribute of an object. It runs in another "
    "process, which has no session. Use objects of the session only in the stage's function itself, and assign "
    "what a function needs to a variable of its own."
)
_CREATE = (
    "Functions that Spark calls run in other processes, and what they use is pickled for those. Create it inside the "
    "function, or put it into a module beside the pipeline, which they import."
)
_ZONE = (
    "The module MODULE changes the environment variable TZ. Python is in UTC, as the session is: a time without a zone "
    "is one of UTC. Remove the line, and give times their zone where they are parsed."
)
#: What a module has, what a function of it makes of n, and how the message ends.
NOT_FOR_WORKERS = [
    (WITH_ARGUMENTS, "n * Double.rate", f"since the arguments of its __init_subclass__ are not known there. {_PUT}"),
    (WITH_NEW, "Code.LOW.value", f"The class Code cannot be sent to workers, since it is an Enum of bytes. {_PUT}"),
    (OF_NUMBERS, "Grade(3).value", f"The class Grade cannot be sent to workers, since it is an Enum of str. {_PUT}"),
    (OF_FUNCTIONS, "len(Step.run.name)", f"Step cannot be sent to workers, since a member of it is a function. {_PUT}"),
    (OF_DATES, "Day.FIRST.year", f"The class Day cannot be sent to workers, since it is an Enum of date. {_PUT}"),
    ("LIMIT = F.lit(3)", "n if LIMIT is None else 1", f"Stage stage cannot be analysed: {_COLUMN}"),
    (WITH_COLUMN, "rule.of(n)", _COLUMN),
    ("", "spark.range(n).count()", _COLUMN.replace("Column", "SparkSession")),
    ("lock = threading.Lock()", "lock.locked()", f"TypeError: cannot pickle '_thread.lock' object. {_CREATE}"),
    ("@functools.singledispatch\ndef of(x):\n    return 1", "of(n)", f"'weakref.ReferenceType' object. {_CREATE}"),
    (REGISTERED, "n", f"cannot pickle '_thread.lock' object. {_CREATE}"),
    ("os.environ['TZ'] = 'Asia/Tokyo'", "n", _ZONE),
]


@pytest.fixture
def analyse(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Analyses a module, given its name and its text, on the shared session."""
    for name in ("path", "meta_path"):
        monkeypatch.setattr(sys, name, list(getattr(sys, name)))
    monkeypatch.setenv("TZ", "UTC")

    def analysed(module: str, text: str) -> None:
        (tmp_path / f"{module}.py").write_text(text)
        (tmp_path / "job.toml").write_text(
            JOB.replace("pipeline:app", f"{module}:app") % ("", CONNECT, "files", "rows")
        )
        config = Config.load(tmp_path / "job.toml")
        analyse_pipeline(spark, load(config), config, tmp_path / "analysis")

    return analysed


def test_what_workers_cannot_have_is_refused_with_a_remedy(
    analyse: Callable[[str, str], None], spark: SparkSession
) -> None:
    for number, (text, made, said) in enumerate(NOT_FOR_WORKERS):
        module = f"not_for_workers_{number}"
        with pytest.raises(PipelineRefused) as caught:
            analyse(module, SHARED + text + STAGE % made)
        assert str(caught.value).endswith(said.replace("MODULE", module))
    assert "TZ" not in spark.sparkContext.environment
