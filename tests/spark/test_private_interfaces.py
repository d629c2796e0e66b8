"""What we use of Spark that is not promised to us. If one of these fails, a new version of Spark has changed it."""

import io
import re
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from py4j.java_gateway import JavaClass
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.errors.error_classes import ERROR_CLASSES_MAP
from pyspark.serializers import read_int
from pyspark.sql import Column, DataFrame, SparkSession, types
from pyspark.sql import functions as F
from pyspark.sql.streaming import DataStreamWriter, StreamingQuery
from pyspark.sql.streaming import python_streaming_source_runner as runner
from pyspark.sql.streaming.stateful_processor import StatefulProcessorHandle
from pyspark.sql.types import LongType, StructField, StructType

from samza_azure import errors
from samza_azure.logs.partition import partition_of
from samza_azure.spark.jvm import daemons, interfaces, local_files
from samza_azure.spark.jvm.catalyst import (
    CATALYST,
    REPLACING,
    has_pattern,
    identity,
    items,
    kind_of,
    substituted,
    text,
    without_alias,
)
from samza_azure.spark.jvm.session import compiled, java_class, jvm_of
from samza_azure.spark.jvm.settings import BASE
from samza_azure.spark.jvm.watermark import OwnedWatermark, probe
from samza_azure.spark.pipeline import remedies, spark_errors
from samza_azure.spark.pipeline.destination import destination
from samza_azure.spark.pipeline.no_session import NO_SESSION
from samza_azure.spark.query.source import LogStreamReader
from samza_azure.tasks import failure
from samza_azure.tasks.failure import is_waiting_for_storage

PACKAGE = Path(errors.__file__).parent
CHECKPOINT_FILES = BASE["spark.sql.streaming.checkpointFileManagerClass"]


def test_each_condition_that_a_remedy_hangs_on_is_one_of_sparks(spark: SparkSession) -> None:
    """And each operator. What Spark says of them in English may change."""
    reader = java_class(spark, "org.apache.spark.SparkThrowableHelper").errorReader()
    assert [each for each in (*spark_errors.CONDITIONS, *failure._INSTEAD) if not reader.isValidErrorClass(each)] == []
    assert {*spark_errors.CONDITIONS_OF_PYTHON, NO_SESSION} <= ERROR_CLASSES_MAP.keys()
    for kind in remedies.OPERATORS:
        assert isinstance(java_class(spark, f"org.apache.spark.sql.catalyst.plans.logical.{kind}"), JavaClass), kind


#: A full name in a text, or in Java's source, after what an f-string puts before it.
CLASS = re.compile(r"\borg\.apache\.spark\.[a-z0-9.]+\.[A-Z]\w*(?:\$\w+)?|\borg\.apache\.spark\.[A-Z]\w*")
CONSTANT = re.compile(r'^(\w+) = "(org\.apache\.spark[\w.]*)"$', re.MULTILINE)
#: Elsewhere they are no interface: values of a documented setting.
NAMED_ELSEWHERE = {"config/spark.py", "pipeline/state.py"}
LIST = "spark/jvm/interfaces.py"
#: What is private to us, or to Python, in the room.
PRIVATE = {"_exit", "_getframe", "_member_type_"}
#: Methods of Python's or of Java's own library, and of pyspark's that no class below has.
OTHERS = {
    "addFile", "addPyFile", "basicConfig", "feature", "freeMemory", "getActiveSession", "getChild", "getListState",
    "getLogger", "getRuntime", "getValueState", "isDefined", "maxMemory", "setLevel", "setLocalProperty", "toString",
    "totalMemory",
}  # fmt: skip


def sources(folder: str) -> dict[str, str]:
    """The text of each file there, by its path below the package, without the list itself."""
    files = {str(path.relative_to(PACKAGE)): path.read_text() for path in sorted((PACKAGE / folder).rglob("*.py"))}
    files.pop(LIST, None)
    return files


def test_no_other_folder_names_what_spark_does_not_promise() -> None:
    private = "|".join(name for names in interfaces.PYTHON.values() for name in names if name != "_get")
    pattern = re.compile(
        rf"\.(?:{private})\b|import .*_parse_datatype|[\"'](?:org\.apache\.spark|scala)\.|import py4j|from py4j"
    )
    elsewhere = {file: said for file, said in sources("").items() if not file.startswith("spark/jvm/")}
    found = {file: pattern.findall(said) for file, said in elsewhere.items() if file not in NAMED_ELSEWHERE}
    assert {file: each for file, each in found.items() if each} == {}, f"move it to spark/jvm, and to the list {LIST}"


def test_the_list_of_interfaces_has_all_that_is_used_and_nothing_else() -> None:
    """Classes by their full names, methods in the spelling of Java by theirs, and private names of pyspark's."""
    spark_only = sources("spark")
    listed = {name for names in interfaces.JAVA.values() for name in names}
    private = {name for names in interfaces.PYTHON.values() for name in names}
    used = {*re.findall(r"\w+", "".join(spark_only.values()))}
    named = {f"{CATALYST}.{rule}" for rule in REPLACING}
    for said in sources("").values():
        spelled = said
        for name, value in ({"CATALYST": CATALYST} | dict(CONSTANT.findall(said))).items():
            spelled = spelled.replace(f"{{{name}}}", value)
        named |= {*CLASS.findall(spelled)}
    room = [said for file, said in spark_only.items() if file.startswith("spark/jvm/")]
    calls = [said for file, said in spark_only.items() if not file.startswith("spark/jvm/")]
    assert named - interfaces.JAVA.keys() == set()
    assert {each for each, names in interfaces.JAVA.items() if not names} - named == set()
    assert (listed | private) - used == set()
    assert {each for said in calls for each in methods_of_java(said)} - listed == set()
    assert {each for said in room for each in private_names(said)} - private == set()


def methods_of_java(said: str) -> set[str]:
    """What is called in the spelling of Java, and is in no public class of pyspark."""
    public = {name for each in PUBLIC for name in dir(each)}
    return set(re.findall(r"\.([a-z]+[A-Z]\w*)\(", said)) - public - OTHERS


PUBLIC = (
    Column, DataFrame, DataStreamWriter, F, PySparkException, SparkSession, StatefulProcessorHandle, StreamingQuery,
    StructType, types,
)  # fmt: skip


def private_names(said: str) -> set[str]:
    """The private names of other objects than ours."""
    ours = {*re.findall(r"(?:self|cls)\.(_\w+)", said), *re.findall(r"def (_\w+)", said)}
    return {*re.findall(r"(?<!self)(?<!cls)\.(_[a-z]\w*)", said)} - ours - PRIVATE


MEMBERS = """
public class Members {
    public String of(String name) {
        StringBuilder found = new StringBuilder();
        for (int i = 0; i < 2; i++) {
            try {
                Class kind = Class.forName(i == 0 ? name : name + "$", false, getClass().getClassLoader());
                for (Class each = kind; each != null; each = each.getSuperclass()) {
                    found.append(java.util.Arrays.toString(each.getDeclaredFields()));
                }
                found.append(java.util.Arrays.toString(kind.getDeclaredMethods()));
                found.append(java.util.Arrays.toString(kind.getMethods()));
            } catch (ClassNotFoundException error) {
            } catch (NoClassDefFoundError error) {}  // of a method whose class the wheel does not have
        }
        return found.toString();
    }
}
"""


def test_each_interface_of_the_list_is_one_of_sparks(spark: SparkSession) -> None:
    """What a release of Spark has moved, renamed or removed is named here."""
    members = compiled(spark, "Members", MEMBERS)
    lacking = {}
    for name, wanted in interfaces.JAVA.items():
        known = set(re.findall(r"\.(\w+)[(,\]]", members.of(name)))
        if not isinstance(java_class(spark, name), JavaClass) or not {*wanted} <= known:
            lacking[name] = {*wanted} - known
    assert lacking == {}
    for module, names in interfaces.PYTHON.items():
        found = find_spec(module)
        assert found is not None and found.origin is not None, module
        assert {*names} - {*re.findall(r"\w+", Path(found.origin).read_text())} == set(), module


def test_spark_hands_over_rows_that_come_with_the_offset() -> None:
    """`_SimpleStreamReaderWrapper`: what `getCache` yields goes to the JVM; None means that a worker reads."""
    schema = StructType([StructField("n", LongType())])
    rows = pa.RecordBatch.from_pydict({"n": [1, 2]}, schema=pa.schema([("n", pa.int64())]))
    reader = LogStreamReader("nowhere", schema)

    assert [_answer(reader, schema, found) for found in (None, [rows], [])] == [
        runner.PREFETCHED_RECORDS_NOT_FOUND,
        runner.NON_EMPTY_PYARROW_RECORD_BATCHES,
        runner.EMPTY_PYARROW_RECORD_BATCHES,
    ]


def _answer(reader: LogStreamReader, schema: StructType, found: list[pa.RecordBatch] | None) -> int:
    reader.__dict__["poller"] = SimpleNamespace(
        prefetched=lambda start, end: None if found is None else iter(found), handed_on=lambda start, end: None
    )
    asked, answered = io.BytesIO(), io.BytesIO()
    for offset in (b'{"at": 1}', b'{"at": 2}'):
        asked.write(len(offset).to_bytes(4, "big") + offset)
    asked.seek(0)
    runner.partitions_func(reader, SimpleNamespace(), schema, 1000, asked, answered)  # type: ignore[arg-type]
    answered.seek(0)
    assert read_int(answered) == 1  # partitions
    answered.read(read_int(answered))
    return read_int(answered)


def test_local_files_are_written_without_a_process_for_each(spark: SparkSession, tmp_path: Path) -> None:
    """`LocalFiles` is what Hadoop's cache holds; what it creates has no checksum, and is made with its folder."""
    files, java = _local_files(spark), jvm_of(spark)
    path = java.org.apache.hadoop.fs.Path
    assert files.getClass().getName().rpartition(".")[2] == local_files.NAME
    before = _faults_of_dead_children(spark)
    manager = java_class(spark, CHECKPOINT_FILES)(path(str(tmp_path)), _hadoop(spark))
    manager.mkdirs(path(str(tmp_path / "deep" / "made")))
    out = manager.createAtomic(path(str(tmp_path / "deep" / "made" / "0")), True)
    out.write(b"state")
    out.close()
    assert _faults_of_dead_children(spark) == before
    assert [each.name for each in (tmp_path / "deep" / "made").iterdir()] == ["0"]
    assert (tmp_path / "deep" / "made" / "0").read_bytes() == b"state"


def test_a_local_file_that_exists_is_overwritten_only_on_demand(spark: SparkSession, tmp_path: Path) -> None:
    files, path = _local_files(spark), jvm_of(spark).org.apache.hadoop.fs.Path(str(tmp_path / "folder" / "file"))
    files.create(path, False).close()
    with pytest.raises(Py4JJavaError, match="FileAlreadyExists"):
        files.create(path, False)
    files.create(path, True).close()


def test_a_table_of_rocksdb_is_copied_by_a_second_name(spark: SparkSession, tmp_path: Path) -> None:
    """Spark copies them with these two methods. What had the name before is left as it is under its other names."""
    files, path = _local_files(spark), jvm_of(spark).org.apache.hadoop.fs.Path
    table, log = tmp_path / "1.sst", tmp_path / "1.log"
    for each in (table, log):
        each.write_bytes(b"rows")
    for number, copy in enumerate((files.copyToLocalFile, files.copyFromLocalFile)):
        there = tmp_path / str(number)
        there.mkdir()
        (tmp_path / "other").write_bytes(b"others")
        (there / "1.sst").hardlink_to(tmp_path / "other")
        for each in (table, log):
            copy(path(str(each)), path(str(there / each.name)))
        assert (there / "1.sst").samefile(table) and not (there / "1.log").samefile(log)
        assert (there / "1.log").read_bytes() == b"rows" and (tmp_path / "other").read_bytes() == b"others"


def test_a_table_that_cannot_have_a_second_name_is_copied(spark: SparkSession, tmp_path: Path) -> None:
    """As on another disk; here memory is one."""
    files, path = _local_files(spark), jvm_of(spark).org.apache.hadoop.fs.Path
    with tempfile.TemporaryDirectory(dir="/dev/shm") as other:
        (table := Path(other) / "1.sst").write_bytes(b"rows")
        files.copyToLocalFile(path(str(table)), path(str(tmp_path / "1.sst")))
        assert (tmp_path / "1.sst").read_bytes() == b"rows"


def _faults_of_dead_children(spark: SparkSession) -> int:
    """Minor page faults of all processes that the JVM has started and that have ended: none has with none (proc(5))."""
    process = jvm_of(spark).java.lang.ProcessHandle.current().pid()
    after_name = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return int(after_name[8])


def _hadoop(spark: SparkSession) -> Any:
    return spark.sparkContext._jsc.hadoopConfiguration()


def _local_files(spark: SparkSession) -> Any:
    return java_class(spark, "org.apache.hadoop.fs.FileSystem").getLocal(_hadoop(spark))


def test_the_watermark_is_ours(spark: SparkSession, tmp_path: Path) -> None:
    """Rows do not move it, `raise_to` does, and it never falls. The next batch runs with it."""
    probe(spark)
    seen: list[int] = []
    owned: list[OwnedWatermark] = []
    queries: list[Any] = []

    def write(frame: DataFrame, batch: int) -> None:
        frame.toArrow()
        while not queries:
            time.sleep(0.01)
        if not owned:
            owned.append(OwnedWatermark(spark, queries[0]))
        seen.append(owned[0].current_ms())
        owned[0].raise_to({0: 5_000, 1: 3_000, 2: 9_000}.get(batch, 0))

    for number, hour in enumerate((10, 20, 5, 30)):
        _put(tmp_path / "in", number, f'{{"ts": "2013-01-01T{hour % 24:02}:00:00Z"}}\n')
    rows = spark.readStream.schema("ts timestamp").option("maxFilesPerTrigger", 1).json(str(tmp_path / "in"))
    counted = rows.withWatermark("ts", "1 hour").groupBy("ts").count()
    writer = counted.writeStream.foreachBatch(write).option("checkpointLocation", str(tmp_path / "checkpoint"))
    queries.append(writer.start())
    try:
        queries[0].processAllAvailable()
    finally:
        queries[0].stop()

    assert seen == [0, 5_000, 5_000, 9_000]


def _put(directory: Path, number: int, text: str) -> None:
    directory.mkdir(exist_ok=True)
    (directory / f"{number}.json").write_text(text)


KEYS: list[tuple[Any, ...]] = [
    ("a", 1, True, b"xy", "2013-01-31"),
    (None, None, None, None, None),
    ("ünï", -7, False, b"", "0001-01-01"),
    ("", 0, None, None, "9999-12-31"),
    ("a:1", -(2**31), True, b"\x00\xff", "1970-01-01"),
    *((f"key-{number}", number * 7919, number % 3 == 0, bytes([number]), None) for number in range(200)),
]
COLUMNS = ("s", "i", "b", "x", "d")


def test_the_plan_computes_the_same_partitions_as_the_pure_function(spark: SparkSession) -> None:
    """For each type of key, for several columns at once, and for nulls."""
    rows = spark.createDataFrame(KEYS, "s string, i int, b boolean, x binary, d string")
    rows = rows.withColumn("d", rows["d"].cast("date"))
    collected = [row.asDict() for row in rows.collect()]
    for columns in ((column,) for column in COLUMNS):
        _compare(rows, collected, columns)
    _compare(rows, collected, COLUMNS)


def _compare(rows: DataFrame, collected: list[dict[str, Any]], columns: tuple[str, ...]) -> None:
    by, types = [F.col(name) for name in columns], [rows.schema[name].dataType for name in columns]
    computed = [row[0] for row in rows.select(destination(by, types, 7)).collect()]
    assert computed == [partition_of([_plain(row[column]) for column in columns], 7) for row in collected]


def _plain(value: Any) -> Any:
    return bytes(value) if isinstance(value, bytearray) else value


@pytest.mark.parametrize("is_ours", [True, False])
def test_an_exception_of_a_worker_has_the_full_name_of_its_class(spark: SparkSession, is_ours: bool) -> None:
    """A container that took a user's error for an unavailable storage would start that task again forever."""

    class StorageUnavailable(Exception):
        """An error of the user's own that is called as ours is."""

    error = errors.StorageUnavailable if is_ours else StorageUnavailable

    @F.udf("int")
    def asks(n: int) -> int:
        raise error("StorageUnavailable: nobody there")

    with pytest.raises(PySparkException) as raised:
        spark.range(1).select(asks("id")).collect()
    assert "nobody there" in str(raised.value)
    assert is_waiting_for_storage(raised.value) is is_ours


def test_spark_gives_executors_of_a_worker_a_module_that_a_trimmed_java_lacks(spark: SparkSession) -> None:
    """What `daemons.check_java` refuses. Without this a worker could do with that Java."""
    options = java_class(spark, "org.apache.spark.launcher.JavaModuleOptions").defaultModuleOptions()
    assert f"--add-modules={daemons.MODULE}" in options.split()


def test_attributes_are_replaced_in_one_call(spark: SparkSession) -> None:
    """`AliasHelper` of Catalyst's optimiser: the expression of an alias takes the place of the attribute."""
    frame = spark.range(1).select((F.col("id") + 1).alias("a"), "id")
    plan = frame.filter("a * 2 > id")._jdf.queryExecution().analyzed()
    made = {identity(each): without_alias(each) for each in items(plan.child().projectList())}

    found = substituted(spark, plan.condition(), made)

    assert text(found) == "(((id + CAST(1 AS BIGINT)) * CAST(2 AS BIGINT)) > id)"
    assert [kind_of(each) for each in items(found.references().toSeq())] == ["AttributeReference"]
    assert not has_pattern(spark, found, "PYTHON_UDF")
