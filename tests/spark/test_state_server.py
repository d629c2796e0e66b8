"""The server of state, asked by the client that executors have: Hadoop's, of pyspark's wheel."""

import http.client
import os
import re
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from py4j import java_gateway
from py4j.protocol import Py4JJavaError, get_return_value
from pyspark.sql import SparkSession

from samza_azure.config import Config
from samza_azure.errors import ConfigError, SamzaAzureError
from samza_azure.spark.jvm.java import find_java, launch
from samza_azure.spark.jvm.session import EndedAtStart, java_class, jvm_of
from samza_azure.spark.jvm.settings import STATE_HEADER, state_client
from samza_azure.spark.query import state_server, with_spark
from samza_azure.spark.query.state_server import StateServer
from samza_azure.tasks.failure import in_short
from samza_azure.tasks.recorded_files import RecordedFiles

from .another_java import another_java, client_of
from .child import PATIENCE_S

HERE = "127.0.0.1"
SETTINGS = state_client()
SECRET = SETTINGS[STATE_HEADER]


@pytest.fixture
def server() -> Iterator[StateServer]:
    made = StateServer(HERE, HERE, SECRET)
    yield made
    made.close()


def nothing(folder: Path) -> RecordedFiles:
    """No file of it is in a log."""
    return RecordedFiles(folder, ())


class Client:
    """Hadoop's client of one URL."""

    def __init__(self, spark: SparkSession, url: str) -> None:
        self._spark, self._url = spark, url
        settings = java_class(spark, "org.apache.hadoop.conf.Configuration")(
            spark.sparkContext._jsc.hadoopConfiguration()
        )
        for name, value in SETTINGS.items():
            settings.set(name.removeprefix("spark.hadoop."), value)
        self.files: Any = java_class(spark, "org.apache.hadoop.fs.FileSystem").newInstance(
            self.path("").toUri(), settings
        )

    def path(self, name: str) -> Any:
        return java_class(self._spark, "org.apache.hadoop.fs.Path")(f"{self._url}/{name}")

    def write(self, name: str, data: bytes, *, overwrite: bool = True) -> None:
        sink = self.files.create(self.path(name), overwrite)
        sink.write(bytearray(data))
        sink.close()

    def read(self, name: str, offset: int = 0) -> bytes:
        source = self.files.open(self.path(name))
        source.seek(offset)
        data = bytes(java_class(self._spark, "org.apache.commons.io.IOUtils").toByteArray(source))
        source.close()
        return data

    def names(self, name: str) -> set[str]:
        return {each.getPath().getName() for each in self.files.listStatus(self.path(name))}


def test_a_start_is_served_as_a_file_system_until_its_end(
    spark: SparkSession, server: StateServer, tmp_path: Path
) -> None:
    recorded = nothing(tmp_path)
    with server.serving(tmp_path, recorded) as url:
        client = Client(spark, url)
        content = os.urandom(3 << 20)
        client.write("state/0/0/.1.delta.tmp", content)
        assert client.files.rename(client.path("state/0/0/.1.delta.tmp"), client.path("state/0/0/1.delta"))
        assert (tmp_path / "state/0/0/1.delta").read_bytes() == content
        assert client.read("state/0/0/1.delta") == content
        assert client.read("state/0/0/1.delta", 1 << 20) == content[1 << 20 :]
        client.write("state/0/0/.2.tmp", b"another attempt")
        assert client.files.rename(client.path("state/0/0/.2.tmp"), client.path("state/0/0/1.delta"))
        assert client.read("state/0/0/1.delta") == b"another attempt"
        assert client.names("state/0/0") == {"1.delta"}
        assert client.files.mkdirs(client.path("offsets"))
        assert client.files.getFileStatus(client.path("offsets")).isDirectory()
        assert client.files.getFileStatus(client.path("state/0/0/1.delta")).getLen() == len(b"another attempt")
        assert not client.files.exists(client.path("state/0/0/3.delta"))
        assert not client.files.rename(client.path("not/there"), client.path("offsets/1"))
        with pytest.raises(Py4JJavaError, match="FileNotFoundException"):
            client.read("state/0/0/3.delta")
        with pytest.raises(Py4JJavaError, match="FileAlreadyExistsException"):
            client.write("state/0/0/1.delta", b"x", overwrite=False)
        client.write("state/0/0/0.delta", b"old")
        assert client.files.delete(client.path("state/0/0/0.delta"), False)
        assert client.names("state/0/0") == {"1.delta"}

        recorded.add(["state/0/0/1.delta"])
        client.write("state/0/0/.3.tmp", b"of an executor that is late")
        for change in (
            lambda: client.files.rename(client.path("state/0/0/.3.tmp"), client.path("state/0/0/1.delta")),
            lambda: client.write("state/0/0/1.delta", b"of an executor that is late"),
            lambda: client.files.rename(client.path("state/0/0/1.delta"), client.path("state/0/0/2.delta")),
            lambda: client.files.delete(client.path("state/0/0/1.delta"), False),
            lambda: client.files.delete(client.path("state"), True),
        ):
            with pytest.raises(Py4JJavaError, match="AccessControlException"):
                change()
        assert client.read("state/0/0/1.delta") == b"another attempt"
    for refused in (
        lambda: client.read("state/0/0/1.delta"),
        lambda: client.write("state/0/0/2.delta", b"late"),
        lambda: client.files.delete(client.path("state/0/0/1.delta"), False),
        lambda: client.files.mkdirs(client.path("state/0/1")),
    ):
        with pytest.raises(Py4JJavaError, match="AccessControlException"):
            refused()
    assert not (tmp_path / "state/0/0/2.delta").exists()


def test_an_answer_with_a_content_type_would_kill_the_client(
    spark: SparkSession, server: StateServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wheel lacks a class that reads it. If this test fails, the wheel has it."""
    head = state_server._Handler._head

    def with_type(self: Any, status: Any, length: int, **headers: str) -> None:
        head(self, status, length, **{**headers, "Content-Type": "application/json"})

    with server.serving(tmp_path, nothing(tmp_path)) as url:
        client = Client(spark, url)
        assert client.files.mkdirs(client.path("a"))
        monkeypatch.setattr(state_server._Handler, "_head", with_type)
        with pytest.raises(Py4JJavaError, match="RuntimeDelegateImpl"):
            client.files.mkdirs(client.path("b"))
    assert jvm_of(spark) is not None


def test_nothing_beside_a_folder_is_served_and_of_half_an_upload_nothing_stays(
    server: StateServer, tmp_path: Path
) -> None:
    folder = tmp_path / "served"
    folder.mkdir()
    (tmp_path / "secret").write_text("s")
    host, _, port = server.authority.rpartition(":")
    with server.serving(folder, nothing(folder)) as url:
        token = url.rpartition("/")[2]

        def status(method: str, path: str, header: str = SECRET) -> int:
            connection = http.client.HTTPConnection(host, int(port))
            connection.request(method, f"/webhdfs/v1/{path}", headers={header: ""})
            answer = connection.getresponse()
            assert answer.getheader("Content-Type") is None
            connection.close()
            return answer.status

        for path in (f"{token}/../secret", f"{token}/%2e%2e/secret", f"{token}/a/..%2f..%2fsecret"):
            assert status("GET", f"{path}?op=OPEN") == 400
        assert status("GET", "?op=LISTSTATUS") == 403
        assert status("GET", f"{'0' * 32}/?op=LISTSTATUS") == 403
        assert status("GET", f"{token}/?op=GETDELEGATIONTOKEN") == 400
        assert status("GET", f"{token}/?op=LISTSTATUS") == 200
        for method, operation in (("GET", "LISTSTATUS"), ("PUT", "CREATE"), ("DELETE", "DELETE"), ("GET", "x")):
            assert status(method, f"{token}/?op={operation}", "X-Secret-0") == 403

        with socket.create_connection((host, int(port))) as upload:
            start = (
                f"PUT /webhdfs/v1/{token}/1.delta?op=CREATE&overwrite=true&datanode=true HTTP/1.1\r\n{SECRET}: x\r\n"
            )
            upload.sendall(f"{start}Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n".encode())
            upload.shutdown(socket.SHUT_WR)
            assert b" 500 " in upload.makefile("rb").readline()
        assert list(folder.iterdir()) == []


def test_a_large_file_comes_whole_to_a_reader_that_is_slow(
    server: StateServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More than the connection's buffers hold, as over any real network."""
    setup = state_server._Handler.setup

    def with_a_small_buffer(self: Any) -> None:
        self.request.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 256 << 10)
        setup(self)

    monkeypatch.setattr(state_server._Handler, "setup", with_a_small_buffer)
    content = os.urandom(64 << 20)
    (tmp_path / "1.zip").write_bytes(content)
    connection = connected(server)
    with server.serving(tmp_path, nothing(tmp_path)) as url:
        connection.request("GET", f"{path_of(url)}/1.zip?op=OPEN&offset=5", headers={SECRET: ""})
        answer = connection.getresponse()
        time.sleep(0.5)  # meanwhile the buffers are full
        assert answer.status == 200
        assert answer.read() == content[5:]
        connection.request("GET", f"{path_of(url)}/1.zip?op=OPEN&offset={64 << 20}", headers={SECRET: ""})
        assert connection.getresponse().read() == b""
    connection.close()


def test_a_file_that_cannot_be_sent_ends_the_connection_and_has_nothing_in_its_midst(
    server: StateServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_server._Handler, "timeout", 0.2)
    (tmp_path / "1.zip").write_bytes(bytes(64 << 20))
    connection = connected(server)
    with server.serving(tmp_path, nothing(tmp_path)) as url:
        connection.request("GET", f"{path_of(url)}/1.zip?op=OPEN", headers={SECRET: ""})
        answer = connection.getresponse()
        time.sleep(1)
        with pytest.raises(http.client.IncompleteRead) as broken:
            answer.read()
        assert not broken.value.partial.strip(b"\0")
    connection.close()


def test_an_upload_may_be_silent_for_as_long_as_its_batch_computes(
    server: StateServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch of more than two minutes with state in RocksDB failed, again and again."""
    monkeypatch.setattr(state_server._Handler, "timeout", 0.2)
    host, _, port = server.authority.rpartition(":")
    with server.serving(tmp_path, nothing(tmp_path)) as url, socket.create_connection((host, int(port))) as upload:
        start = f"PUT {path_of(url)}/1.changelog?op=CREATE&overwrite=true&datanode=true HTTP/1.1\r\n{SECRET}: x\r\n"
        upload.sendall(f"{start}Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n".encode())
        time.sleep(0.6)  # the batch computes
        upload.sendall(b"1\r\n!\r\n0\r\n\r\n")
        assert b" 201 " in upload.makefile("rb").readline()
    assert (tmp_path / "1.changelog").read_bytes() == b"hello!"


def test_an_upload_that_hangs_ends_with_its_start(server: StateServer, tmp_path: Path) -> None:
    """Of an executor that is frozen: its connections, of which there are so many, were kept forever."""
    host, _, port = server.authority.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as upload:
        with server.serving(tmp_path, nothing(tmp_path)) as url:
            start = f"PUT {path_of(url)}/1.changelog?op=CREATE&overwrite=true&datanode=true HTTP/1.1\r\n{SECRET}: x\r\n"
            upload.sendall(f"{start}Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n".encode())
            deadline = time.monotonic() + PATIENCE_S
            while not list(tmp_path.glob("*.upload")) and not list(tmp_path.glob(".*.upload")):
                assert time.monotonic() < deadline
                time.sleep(0.01)  # the pace of asking
        assert upload.makefile("rb").read() == b""
    assert not (tmp_path / "1.changelog").exists()


def test_of_an_upload_that_cannot_be_kept_the_rest_is_no_request(server: StateServer, tmp_path: Path) -> None:
    host, _, port = server.authority.rpartition(":")
    with server.serving(tmp_path, nothing(tmp_path)) as url, socket.create_connection((host, int(port))) as upload:
        inner = f"PUT {path_of(url)}/evil?op=MKDIRS HTTP/1.1\r\n{SECRET}: x\r\n\r\n".encode()
        start = f"PUT {path_of(url)}/1.delta?op=CREATE&datanode=true HTTP/1.1\r\n{SECRET}: x\r\n"
        upload.sendall(f"{start}Transfer-Encoding: chunked\r\n\r\nno size\r\n".encode() + inner)
        said = upload.makefile("rb").read()
    assert (said.count(b"HTTP/1.1 "), (tmp_path / "evil").exists()) == (1, False)


def test_files_are_renamed_within_a_start_and_folders_are_not(server: StateServer, tmp_path: Path) -> None:
    for name in ("a/state/0/1.delta", "a/late/1.delta", "b/2.delta"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    folder = tmp_path / "a"
    recorded = RecordedFiles(folder, ["state/0/1.delta"])
    with server.serving(folder, recorded) as url, server.serving(tmp_path / "b", nothing(tmp_path / "b")) as other:

        def renamed(name: str, to: str, whose: str = url) -> int:
            destination = f"/{whose.rpartition('/')[2]}/{to}"
            connection = connected(server)
            connection.request(
                "PUT", f"{path_of(url)}/{name}?op=RENAME&destination={destination}", headers={SECRET: ""}
            )
            answer = connection.getresponse()
            answer.read()
            connection.close()
            return answer.status

        assert renamed("late/1.delta", "state/0") == 403
        assert renamed("late/1.delta", "state/0/1.delta") == 403
        assert renamed("state/0/1.delta", "late/2.delta") == 403
        assert renamed("state", "late/state") == 403
        assert renamed("late/1.delta", "3.delta", other) == 403
        assert (folder / "state/0/1.delta").read_text() == "a/state/0/1.delta"
        assert renamed("late/1.delta", "state") == 200
        assert (folder / "state/1.delta").read_text() == "a/late/1.delta"


def test_strangers_do_not_keep_executors_out_and_no_name_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Connections that say nothing, and one that sends its request byte by byte: there is no room until they end."""
    monkeypatch.setattr(state_server, "CONNECTIONS", 3)
    monkeypatch.setattr(state_server, "HEAD_S", 1.0)
    monkeypatch.setattr(state_server, "LOOK_S", 0.1)
    monkeypatch.setattr(socket, "getfqdn", lambda *_: pytest.fail("a name was asked for"))
    server = StateServer(HERE, HERE, SECRET)
    host, _, port = server.authority.rpartition(":")
    strangers = [socket.create_connection((host, int(port))) for _ in range(3)]
    ended = threading.Event()

    def trickle() -> None:
        with suppress(OSError):
            while not ended.wait(0.05):
                strangers[0].send(b"G")

    threading.Thread(target=trickle).start()
    connection = connected(server)
    with server.serving(tmp_path, nothing(tmp_path)) as url:
        connection.request("GET", f"{path_of(url)}/?op=LISTSTATUS", headers={SECRET: ""})
        assert connection.getresponse().status == 200
    ended.set()
    for each in [*strangers, connection]:
        each.close()
    server.close()
    assert [each.message for each in caplog.records if "3 connections to the state of tasks" in each.message]


def test_a_port_in_use_is_left_to_who_has_it_and_an_address_of_others_is_an_error() -> None:
    first = StateServer(HERE, HERE, SECRET)
    port = int(first.authority.rpartition(":")[2])
    second = StateServer(HERE, "[::1]", SECRET, port)
    host, _, other = second.authority.rpartition(":")
    assert (host, int(other) > port) == ("[::1]", True)
    with pytest.raises(ConfigError, match=r"port 7 of 192\.0\.2\.1 cannot be opened \(.*Choose another spark\.samza"):
        StateServer("192.0.2.1", HERE, SECRET, 7)
    first.close()
    second.close()


def test_another_java_does_not_get_the_file_without_which_an_executor_runs_no_task(
    spark: SparkSession,
    server: StateServer,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two Javas, which say their versions by themselves. `end_to_end/cluster_java.py` has executors."""
    ours, other = find_java(os.environ).major, another_java()

    def fetch(jvm: Any, major: int) -> int:
        return int(jvm.java.net.URL(server.only_for(major)).openConnection().getInputStream().read())

    assert fetch(jvm_of(spark), ours) == -1  # it is empty
    there = launch({}, {**os.environ, "JAVA_HOME": str(other.home)}, tmp_path, [])
    try:
        jvm = client_of(there).jvm
        texts = {each.java.lang.Double.toString(2e23) for each in (jvm, jvm_of(spark))}
        assert len(texts) == 2  # why it matters
        assert fetch(jvm, other.major) == -1
        assert not caplog.records
        # pyspark asks its own JVM about each error, where this one's number is another object's, or nobody's.
        monkeypatch.setattr(java_gateway, "get_return_value", get_return_value)
        with pytest.raises(Py4JJavaError) as caught:
            fetch(jvm, ours)
        with pytest.raises(Py4JJavaError):
            fetch(jvm, ours)
        said = in_short(caught.value).splitlines()
    finally:
        there.end()
    assert said[0].startswith(f"An executor has Java {other.major}, and the processor has Java {ours}. ")
    assert f"Start each worker with Java {ours} (JAVA_HOME)" in said[0]
    [line] = [each.getMessage() for each in caplog.records]
    assert f"An executor at {HERE} has another Java (Java/{other.version})" in line


@pytest.mark.parametrize("agent", ["", "curl/8.1", "Java", "NoJava/17.0.1"])
def test_whoever_does_not_say_its_java_gets_nothing(server: StateServer, agent: str) -> None:
    connection = connected(server)
    connection.request("GET", urlsplit(server.only_for(17)).path, headers={"User-Agent": agent})
    assert connection.getresponse().status == 403
    connection.close()


@pytest.mark.parametrize("agent", ["Java/17.0.15", "Java/17-ea", "Java/17", "an agent of http.agent Java/17.0.1"])
def test_a_release_of_the_same_java_gets_it(server: StateServer, agent: str) -> None:
    connection = connected(server)
    connection.request("GET", urlsplit(server.only_for(17)).path, headers={"User-Agent": agent})
    answer = connection.getresponse()
    assert (answer.status, answer.read()) == (200, b"")
    connection.close()


def test_no_plan_and_no_page_has_what_opens_the_state(spark: SparkSession, server: StateServer, tmp_path: Path) -> None:
    """A plan has the URL of a start, which opens nothing without the secret; of the secret Spark shows no value."""
    with server.serving(tmp_path, nothing(tmp_path)) as url:
        assert SECRET not in url
    settings = jvm_of(spark).org.apache.spark.SparkConf(False)
    for name, value in SETTINGS.items():
        settings.set(name, value)
    assert SECRET not in settings.toDebugString()
    assert "rest-csrf.enabled=true" in settings.toDebugString()


@pytest.mark.parametrize(
    ("master", "says"),
    [
        ("spark://h:7077", "No master of Spark .* at spark://h:7077 took"),
        ("k8s://https://h", "k8s://https://h .* pods"),
    ],
)
def test_where_no_application_begins_it_closes_and_the_error_fits_the_cluster(
    master: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """`end_to_end/test_cluster.py` has a master that takes nothing."""

    def ended(*_: object) -> SparkSession:
        raise EndedAtStart

    monkeypatch.setattr(with_spark, "connect_session", ended)
    config = Config.parse(
        'app = { name = "n", main = "m:app" }\nazure.storage.connect = "UseDevelopmentStorage=true"\n'
    )
    settings = {"spark.master": master, "spark.driver.host": HERE, "spark.driver.bindAddress": HERE, **SETTINGS}
    unused: Any = None
    with caplog.at_level("INFO"), pytest.raises(SamzaAzureError, match=says):
        with_spark.serve(config, tmp_path, settings, unused, unused)
    (port,) = re.findall(rf"Executors find state at {HERE}:(\d+)", caplog.text)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((HERE, int(port)), PATIENCE_S)


def connected(server: StateServer) -> http.client.HTTPConnection:
    host, _, port = server.authority.rpartition(":")
    return http.client.HTTPConnection(host, int(port))


def path_of(url: str) -> str:
    return f"{state_server.PREFIX}{url.rpartition('/')[2]}"
