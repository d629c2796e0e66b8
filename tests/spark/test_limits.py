"""Limits of others that the code writes down as numbers, each tested at its edge against the thing itself."""

import re
import socket
import tempfile
import uuid
from pathlib import Path

from pyspark.errors import IllegalArgumentException
from pyspark.sql import SparkSession

from samza_azure.application import Application, Collector, Envelope
from samza_azure.config import Config
from samza_azure.pipeline import names
from samza_azure.pipeline.without_spark import analyse_without_spark
from samza_azure.spark.jvm.session import java_class, jvm_of
from samza_azure.spark.jvm.settings import SOCKET_DIRECTORY, SOCKET_DIRECTORY_MAX, settings_of
from samza_azure.spark.pipeline.pipeline import analyse_pipeline
from samza_azure.spark.pipeline.schema import columns_of, parse_schema
from samza_azure.stream_io import ddl
from samza_azure.stream_io.columns import Columns

LOWLEVEL = Path(__file__).parents[2] / "examples" / "lowlevel" / "job.toml"
#: The longest ids that Linux gives to processes and descriptors.
LONGEST = {r"(?<=/proc/)\d+": "4194304", r"(?<=/fd/)\d+": "1048576"}


def test_spark_takes_the_longest_directory_of_sockets_and_no_longer_one(spark: SparkSession) -> None:
    assert is_taken_by_spark(spark, "/" + "x" * (SOCKET_DIRECTORY_MAX - 1))
    assert not is_taken_by_spark(spark, "/" + "x" * SOCKET_DIRECTORY_MAX)


def test_in_a_folder_of_any_length_spark_java_and_python_take_a_socket(spark: SparkSession) -> None:
    """A job in a folder of 62 bytes failed at its first row, one of 65 bytes did not. The next container empties the
    folder; in /tmp sockets stayed, since a container's end is a kill to its JVM.
    """
    with tempfile.TemporaryDirectory(dir="/tmp") as directory:
        for length in [*range(len(directory) + 2, 120), 500]:
            folder = Path(directory, *["long" * 30] * (length // 120))
            folder /= "x" * (length - len(str(folder)) - 1)
            chosen = longest = settings_of({}, folder)[SOCKET_DIRECTORY]
            for pattern, number in LONGEST.items():
                longest = re.sub(pattern, number, longest)
            assert is_taken_by_spark(spark, longest), length
            assert chosen == str(folder / "sockets") or len(f"{folder}/sockets") > SOCKET_DIRECTORY_MAX
            java_listens_and_python_connects(spark, f"{chosen}/.{uuid.uuid4()}.sock")
            assert [path.is_socket() for path in folder.rglob("*.sock")] == [True], length


def test_java_takes_the_longest_path_of_a_socket_and_the_kernel_more(spark: SparkSession) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as directory:
        longest = SOCKET_DIRECTORY_MAX + len(f"/.{uuid.uuid4()}.sock")
        java_listens_and_python_connects(spark, f"{directory}/".ljust(longest, "x"))
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(f"{directory}/".ljust(longest + 1, "y"))


def test_the_quick_check_knows_which_types_a_key_may_have(spark: SparkSession) -> None:
    schema = parse_schema(spark, ", ".join(f"`{kind}` {kind}" for kind in sorted(names.TYPES)), "a")
    assert {field.name for field in schema if field.dataType.simpleString() in names.KEY_TYPES} == names.KEY_TYPES


SCHEMAS = [
    *sorted(ddl._SIMPLE),
    "decimal(10,2)", "dec", "decimal(38, 18)", "array<int>", "map<string, array<double>>",
    "struct<a: int NOT NULL, `b c`: struct<`1`: string, _x: timestamp>>",
]  # fmt: skip


def test_a_schema_read_without_spark_is_the_same_to_the_letter(spark: SparkSession) -> None:
    """Plans and fingerprints hold it, and rows are laid out by it."""
    text = ", ".join(f"c{number} {kind}" for number, kind in enumerate(SCHEMAS)) + ", `a b` int, `c``d` date, E string"
    ours, theirs = Columns.declared(text), columns_of(parse_schema(spark, text, "a"))
    assert ours.ddl == theirs.ddl
    assert ours.types == theirs.types
    assert ours.arrow.equals(theirs.arrow, check_metadata=True)
    assert str(ours.arrow) == str(theirs.arrow), "names of the parts of lists and maps, too"


def test_a_pipeline_of_handlers_has_the_same_plan_with_spark_and_without(spark: SparkSession, tmp_path: Path) -> None:
    config = Config.load(LOWLEVEL, environment={"AZURE_STORAGE_CONNECTION_STRING": "UseDevelopmentStorage=true"})
    application = Application()
    application.task("flights", output="alerts", partition_by="text")(Nothing)
    application.task("alerts")(Audit)
    assert (
        analyse_pipeline(spark, application, config, tmp_path).plan == analyse_without_spark(application, config).plan
    )


class Nothing:
    """A handler."""

    def process(self, envelope: Envelope, collector: Collector) -> None: ...


class Audit(Nothing):
    """Another one."""


def is_taken_by_spark(spark: SparkSession, directory: str) -> bool:
    jvm = jvm_of(spark)
    settings = jvm.java.util.HashMap()
    settings.put(SOCKET_DIRECTORY, directory)
    reader = java_class(spark, "org.apache.spark.internal.config.ConfigReader")(settings)
    entry = java_class(spark, "org.apache.spark.internal.config.Python").PYTHON_UNIX_DOMAIN_SOCKET_DIR()
    try:
        return bool(entry.readFrom(reader).get() == directory)
    except IllegalArgumentException:
        return False


def java_listens_and_python_connects(spark: SparkSession, path: str) -> None:
    java = jvm_of(spark).java
    listener = java.nio.channels.ServerSocketChannel.open(java.net.StandardProtocolFamily.UNIX)
    try:
        listener.bind(java.net.UnixDomainSocketAddress.of(path))
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(path)
    finally:
        listener.close()
