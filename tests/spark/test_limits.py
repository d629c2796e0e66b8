"""Limits of others that the code writes down as numbers, each tested at its edge against the thing itself."""

import re
import socket
import tempfile
import uuid
from pathlib import Path

from pyspark.errors import IllegalArgumentException
from pyspark.sql import SparkSession

from samza_azure.spark.jvm.session import java_class, jvm_of
from samza_azure.spark.jvm.settings import SOCKET_DIRECTORY, SOCKET_DIRECTORY_MAX, settings_of
from samza_azure.spark.pipeline import names
from samza_azure.spark.pipeline.destination import KEY_TYPES
from samza_azure.spark.pipeline.schema import parse_schema

#: The longest ids that Linux gives to processes and descriptors of ours.
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
    assert {field.name for field in schema if isinstance(field.dataType, KEY_TYPES)} == names.KEY_TYPES


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
