"""A job file in, a checked configuration out; messages say what to write instead, and show no secret."""

import ast
import copy
import dataclasses
import itertools
import json
import os
import pickle
import re
import shlex
import subprocess
import sys
import textwrap
import tomllib
import traceback
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from samza_azure.account import Secret
from samza_azure.commands.job import in_shell
from samza_azure.config import Config, JobFileRefused, Stream, TaskSettings, check_timing, sections
from samza_azure.config.account import default_container, default_table, valid_container, valid_table
from samza_azure.config.places import lines_of, statements
from samza_azure.config.spark import cores_of, is_dynamic, on_cluster
from samza_azure.config.systems import BUILT_IN, CLOCKS
from samza_azure.errors import ConfigError
from samza_azure.group.timing import PROFILES, Timing
from samza_azure.names import PROCESSOR_ID
from samza_azure.spark.jvm.java import find_java

KEY = "c2VjcmV0LWtleS10aGF0LW5vYm9keS1tYXktc2VlLWFueXdoZXJlLWluLW91cnMtZXZlci1vay0xMjM0NTY3OA=="
CONNECT = f"DefaultEndpointsProtocol=https;AccountName=house;AccountKey={KEY};EndpointSuffix=core.windows.net"

MINIMAL = """
[app]
name = "flights"
main = "pipeline:app"

[azure.storage]
connect = "UseDevelopmentStorage=true"
"""


def parsed(text: str = MINIMAL, **overrides: object) -> Config:
    """The configuration of a job file's text, with dotted keys put on top."""
    return Config.parse(text, environment={"KEY": KEY, "CONNECT": CONNECT, "FOUR": "4"}, overrides=overrides)


def mistakes(text: str = MINIMAL, **overrides: object) -> str:
    """What is said about a job file that cannot work, without the lines."""
    return re.sub(r"(?m)^(job.toml|  ),? ?line \d+: ", r"\1: ", told(text, **overrides)).replace("  : ", "  ")


def told(text: str, **overrides: object) -> str:
    """What is said about a job file that cannot work."""
    with pytest.raises(ConfigError) as caught:
        parsed(text, **overrides)
    return str(caught.value)


# What a job file means.


def test_a_minimal_file_has_the_defaults_of_the_handbook() -> None:
    config = parsed()
    assert (config.app.name, config.app.id, config.app.run_id, config.app.main) == (
        "flights",
        "1",
        None,
        "pipeline:app",
    )
    assert config.coordinator.factory == "samza_azure.AzureJobCoordinatorFactory"
    assert config.coordinator.timing == PROFILES["default"]
    assert config.coordinator.blob_length == 5_120_000
    assert (config.storage.container, config.storage.table) == ("flights-1", "flights1")
    assert (config.processor.id, config.processor.host, config.processor.port) == (None, "127.0.0.1", None)
    assert config.task == TaskSettings(None, 1000, 20 * 1024 * 1024, 30_000, 5, "auto", 1, -1, -1)
    assert (dict(config.streams), config.metrics_prometheus_port) == ({}, None)


def test_the_handbooks_own_job_file_is_read() -> None:
    config = parsed("""
        [app]
        name = "flights"
        main = "pipeline:app"                 # module:attribute, next to this file or importable

        [job.coordinator]
        factory = "samza_azure.AzureJobCoordinatorFactory"
        profile = "fast"

        [azure.storage]
        connect = "${CONNECT}"

        [streams.flights]
        system = "log"
        partitions = 4
        schema = "carrier string, ts timestamp, dep_delay double"
        event_time = "ts"

        [streams.by-carrier]
        partitions = 4
        event_time = "ts"
    """)
    assert config.storage.connect is not None
    assert config.storage.connect.value == CONNECT
    assert config.coordinator.timing == Timing(0.25, 1.5, 0.8, 0.15, 0.5, 30.0)
    assert config.streams == {
        "flights": Stream("log", {}, 4, "carrier string, ts timestamp, dep_delay double", "ts", (), None, 10.0, None),
        "by-carrier": Stream("log", {}, 4, None, "ts", (), None, 10.0, None),
    }


def test_dotted_keys_nested_tables_and_quoted_keys_are_the_same() -> None:
    dotted = 'job.coordinator.heartbeat.interval = "1 s"\n' + MINIMAL
    nested = MINIMAL + '[job.coordinator.heartbeat]\ninterval = "1 s"\n'
    quoted = '"job.coordinator.heartbeat.interval" = "1 s"\n' + MINIMAL
    assert parsed(dotted) == parsed(nested) == parsed(quoted)
    assert parsed(dotted).coordinator.timing == Timing(heartbeat_s=1.0)


def test_an_empty_table_names_a_stream() -> None:
    assert dict(parsed(MINIMAL + "[streams.by-carrier]\n").streams) == {"by-carrier": Stream()}


def test_a_stage_may_have_a_section() -> None:
    stages = parsed(MINIMAL + "[stages.count]\npartitions = 4\n[stages.by-key]\n").stages
    assert {name: each.partitions for name, each in stages.items()} == {"count": 4, "by-key": 1}


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("partitions = 0", "stages.a.partitions = 0 cannot be used: it should be at least 1."),
        ("partitions = 65", "stages.a.partitions = 65 cannot be used: it should be at most 64."),
        ("partition = 2", "stages.a.partition is not a key. The nearest is stages.a.partitions."),
    ],
)
def test_a_wrong_section_of_a_stage_is_refused(written: str, said: str) -> None:
    assert mistakes(f"{MINIMAL}[stages.a]\n{written}\n").endswith(said)


def test_the_environment_fills_in_numbers_too_and_two_dollars_are_one() -> None:
    config = parsed(MINIMAL + '[streams.a]\npartitions = "${FOUR}"\n[spark]\n"some.path" = "$${HOME}/${FOUR}"\n')
    assert config.streams["a"].partitions == 4
    assert config.spark["spark.some.path"] == "${HOME}/4"


def test_command_line_options_override_the_job_file() -> None:
    overrides = {"processor.id": "p1", "app.name": "other"}
    config = Config.parse(MINIMAL, overrides=overrides)
    assert (config.processor.id, config.app.name, config.storage.container) == ("p1", "other", "other-1")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("2 s", 2.0),
        ("500 ms", 0.5),
        ("10 min", 600.0),
        ("1 h", 3600.0),
        ("1 d", 86400.0),
        ("0.25 s", 0.25),
        ("2s", 2.0),
        ("1 hour", 3600.0),
        ("10 minutes", 600.0),
        ("1 hour 30 minutes", 5400.0),
        ("interval 2 weeks", 1_209_600.0),
        ("500 milliseconds", 0.5),
    ],
)
def test_durations_carry_their_unit(text: str, seconds: float) -> None:
    assert parsed(MINIMAL + f'[streams.a]\nidle.timeout = "{text}"\n').streams["a"].idle_timeout_s == seconds


@pytest.mark.parametrize("written", ['"torch"', '["torch", 1]', '["scikit-learn"]', '["a..b"]', "true"])
def test_packages_are_names_as_import_takes_them(written: str) -> None:
    said = 'main = "pipeline:app"\npackages = '
    named = MINIMAL.replace('main = "pipeline:app"', said + '["torch", "sklearn.svm"]')
    assert parsed(named).app.packages == ("torch", "sklearn.svm")
    assert mistakes(MINIMAL.replace('main = "pipeline:app"', said + written)).endswith(
        "should be a list of module names, like ['torch', 'sklearn.linear_model']."
    )


def test_the_state_directory_stands_next_to_the_job_file(tmp_path: Path) -> None:
    job = tmp_path / "job.toml"
    job.write_text(MINIMAL)
    assert Config.load(job).processor.dir == tmp_path / ".samza-azure"


def test_spark_settings_pass_through_as_text() -> None:
    settings = parsed(MINIMAL + '[spark]\nmaster = "local[2]"\nui.enabled = true\ndriver.cores = 2\n').spark
    assert dict(settings) == {"spark.master": "local[2]", "spark.ui.enabled": "true", "spark.driver.cores": "2"}


def test_a_coordinator_of_ones_own_needs_no_account_and_ours_do() -> None:
    text = MINIMAL.replace('connect = "UseDevelopmentStorage=true"', "") + '[job.coordinator]\nfactory = "%s"\n'
    own = parsed(text % "mine.Factory")
    assert (own.storage.connect, own.storage.account) == (None, None)
    for ours in ("samza_azure.AzureJobCoordinatorFactory", "samza_azure.PassthroughJobCoordinatorFactory"):
        with pytest.raises(ConfigError, match=r"azure\.storage\.connect is missing"):
            parsed(text % ours)


# Mistakes.


def test_a_missing_job_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"There is no job file .*nothing\.toml"):
        Config.load(tmp_path / "nothing.toml")


def test_a_directory_or_another_encoding_is_no_job_file(tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_bytes(b'name = "caf\xe9"')
    with pytest.raises(ConfigError) as caught:
        Config.load(tmp_path)
    assert str(caught.value) == (
        f"{tmp_path} is a folder. Give the path of the file with the [app] section. "
        f"Did you mean {tmp_path / 'job.toml'}?"
    )
    with pytest.raises(ConfigError, match=r"There is no job file .*jobs.toml.* Did you mean .*/job.toml\?"):
        Config.load(tmp_path / "jobs.toml")
    with pytest.raises(ConfigError, match="is not UTF-8 text: the byte at position 11"):
        Config.load(tmp_path / "job.toml")


def test_lines_end_as_on_windows(tmp_path: Path) -> None:
    path = tmp_path / "job.toml"
    path.write_bytes(b"\xef\xbb\xbf[app]\r\nname = 'my shop'\r\n\r\n[processor]\r\nmemory = 5\r\n")
    with pytest.raises(ConfigError) as caught:
        Config.load(path, environment={})
    assert "line 2: app.name" in str(caught.value)
    assert "line 5: processor.memory" in str(caught.value)
    path.write_bytes(b"[app]\r\nname = shop\r\n")
    with pytest.raises(ConfigError, match=r"line 2, column 8: .* Write name = \"shop\"\.$"):
        Config.load(path, environment={})


def test_malformed_toml_is_reported_with_line_and_column() -> None:
    assert mistakes('[app]\nname = "flights\n') == (
        "job.toml, line 2, column 16: this is not TOML. Illegal character '\\n'. Write name = \"flights\"."
    )
    assert (
        mistakes("[app")
        == "job.toml, line 1, column 1: this is not TOML. Expected ']' at the end of a table declaration."
    )


@pytest.mark.parametrize(
    ("addition", "key", "nearest"),
    [
        (
            "[job.coordinator]\nheartbeat.intervall = 1",
            "job.coordinator.heartbeat.intervall",
            "job.coordinator.heartbeat.interval",
        ),
        ("[streams.a]\npartition = 1", "streams.a.partition", "streams.a.partitions"),
        ("[task]\ncommit = 1", "task.commit", "task.commit.ms"),
        ("[azure.store]\naccount = 1", "azure.store.account", "azure.storage.account"),
        ("[sparks]\nmaster = 1", "sparks.master", "spark.master"),
        ("[procesor]", "procesor", "processor.id"),
        ("[task]\nCOUNT = 1", "task.COUNT", "task.count"),
        ("[streams.a]\nschema = 'id string'\n[task]\nkey = 1", "task.key", "streams.a.key"),
        ("[stream.a]\nschema = 'id string'\n[streams.a]", "stream.a.schema", "streams.a.schema"),
        ("[stream.orders]\nkey = 'id'\n[streams.payments]", "stream.orders.key", "streams.orders.key"),
        (
            "[Streams.orders]\nretention.bytes = 2048",
            "Streams.orders.retention.bytes",
            "streams.orders.retention.bytes",
        ),
        ("[metrics]\nport = 1", "metrics.port", "metrics.prometheus.port"),
    ],
)
def test_an_unknown_key_is_refused_with_the_nearest_one(addition: str, key: str, nearest: str) -> None:
    assert mistakes(MINIMAL + addition + "\n") == f"job.toml: {key} is not a key. The nearest is {nearest}."


def test_a_key_that_is_near_to_none_is_refused_with_those_that_there_are() -> None:
    """What it has in common with others because of its section does not make them near."""
    assert mistakes(MINIMAL + "[processor]\ncity = 1\n") == (
        "job.toml: processor.city is not a key. The keys of processor are id, dir, host, port, bells."
    )
    assert mistakes(MINIMAL + "[foo]\nbar = 1\n").startswith(
        "job.toml: foo.bar is not a key. The sections are app, job, azure, processor, host, task, "
    )


def test_all_mistakes_are_reported_at_once() -> None:
    text = MINIMAL.replace('"pipeline:app"', '"pipeline"') + '[streams.a]\npartitions = 0\n[task]\ncommit.ms = "1 s"\n'
    assert mistakes(text) == textwrap.dedent("""\
        job.toml has 3 mistakes:
          app.main = 'pipeline' cannot be used: it should be 'module:attribute', like 'pipeline:app'.
          task.commit.ms = '1 s' cannot be used: it should be a number of milliseconds, like 1000.
          streams.a.partitions = 0 cannot be used: it should be at least 1.""")


def test_each_mistake_is_named_with_its_line() -> None:
    text = """
# a comment
[app]
name = "my shop"
packages = [
  "torch",

  "1"
]

[streams."orders"]
table = "x"
partitions = 2.5
event_time = "${NOWHERE}"  # neither
table.compact = "no"
[stream.payments]
key = "id"
schema = ["id string", "at timestamp"]
[azure.storage]
account = "house"
"""
    said = told(text).splitlines()
    assert said[0] == "job.toml has 9 mistakes:"
    assert [each.partition(" = ")[0].partition(" should")[0] for each in said[1:]] == [
        "  line 14: streams.orders.event_time needs the environment variable NOWHERE, which is not set.",
        "  line 16: [stream.payments] is not a section. The nearest is [streams.payments].",
        "  line 18: streams.payments.schema",
        "  line 4: app.name",
        "  line 3: app.main is missing. Write under [app]: main",
        "  line 5: app.packages",
        "  line 20: azure.storage.account",
        "  line 13: streams.orders.partitions",
        "  line 15: streams.orders.table.compact",
    ]
    assert said[3].endswith('should be one text. Write under [streams.payments]: schema = "id string, at timestamp".')
    assert said[4].endswith("a letter or digit first, like 'my-shop'.")
    assert said[7].endswith("should be a URL, like 'https://house.blob.core.windows.net'.")


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("name = 'shop\"\non = 1\n\n", '2, column 1: this is not TOML. Expected "\'". Write name = "shop".'),
        ("name = ${NAME}\n", '2, column 8: this is not TOML. Invalid value. Write name = "${NAME}".'),
        ("on = True\n", "2, column 6: this is not TOML. Invalid value. Write on = true."),
        (
            "name: shop\n",
            """2, column 5: this is not TOML. Expected '=' after a key in a key/value pair. A job file is not YAML. \
Write name = "shop".""",
        ),
        (f"key = {KEY}\n", "2, column 7: this is not TOML. Invalid value."),
        (
            "a = 1\n\n[app]\nb = 2\n",
            """4, column 5: this is not TOML. Cannot declare ('app',) twice. [app] is in line 1, too: write all of its \
keys in one place.""",
        ),
        (
            "a.b = 1\n[app.a]\nc = 2\n",
            """3, column 7: this is not TOML. Cannot declare ('app', 'a') twice. [app.a] is in line 2, too: write all \
of its keys in one place.""",
        ),
        (
            "a = {b = 1}\n[app.a.c]\n",
            "3, column 9: this is not TOML. Cannot declare ('app', 'a', 'c') twice.",
        ),
        ("a = [1,\n2,\n", "2, column 1: this is not TOML. Invalid value."),
        ("a = '''x\ny\n", """2, column 1: this is not TOML. Expected "'''"."""),
    ],
)
def test_what_is_not_toml_is_told_with_its_line_and_what_to_write(written: str, message: str) -> None:
    assert told(f"[app]\n{written}") == f"job.toml, line {message}"


@pytest.mark.parametrize(
    ("written", "place"),
    [
        ('[streams.a]\ntable = {name = "x", compact = 3}\n', "line 8: streams.a.table.compact = 3 "),
        ('[streams."b c"]\npartitions = 0\n', "line 7: streams.b c is not a valid name"),
        ('[streams."b c"]\npartitions = 0\n', "line 8: streams.b c.partitions = 0 "),
        ("[[streams]]\nx = 1\n", "line 7: streams is not a key."),
    ],
)
def test_keys_that_are_seldom_written_so_have_their_lines(written: str, place: str) -> None:
    text = '[app]\nname = "shop"\nmain = "m:app"\n[azure.storage]\nconnect = "UseDevelopmentStorage=true"\n\n'
    assert place in told(text + written)


def test_a_section_that_is_missing_is_written_behind_the_last_line() -> None:
    app = '[app]\nname = "shop"\nmain = "m:app"\n'
    assert told(f"{app}\n\n").startswith("job.toml, after line 3: azure.storage.connect is missing. Write under [azure")
    assert "  after line 2: app.name is missing. Write under [app]: name" in told("[azure.storage]\nconnect = 7")
    dotted = 'azure.storage.container = "shop"\n'  # a section of it cannot be written beside this
    assert told(f"{dotted}{app}").startswith("job.toml, line 1: azure.storage.connect is missing.")


def test_commands_to_paste_quote_the_name_of_the_job_file() -> None:
    config = Config.parse(MINIMAL, path=Path("/a b/Ann's job.toml"))
    assert shlex.split(f"samza-azure stop {in_shell(config)}") == ["samza-azure", "stop", "Ann's job.toml"]


def shortest(text: str) -> list[tuple[int, str]]:
    """The statements of a job file, each the shortest run of lines that is TOML by itself."""
    found, begun, lines = [], 1, list[str]()
    for number, line in enumerate(text.split("\n"), 1):
        lines.append(line)
        with suppress(tomllib.TOMLDecodeError):
            tomllib.loads("\n".join(lines))
            found.append((begun, "\n".join(lines)))
            begun, lines = number + 1, []
    return found


PARTS = (
    "\n", "\n", " = ", "key", "[", "]", "[a.b]\n", "[[c]]", "{", "}", ", ", "1", "#", "# it's \"one\" [\n", '"', "'",
    '"""', "'''", '"a"', "'b'", '"c\\"d#["', "\\", "\\\n", "x = 1\n", 'y = """\n]\n"""\n', "z = [\n1, # [\n2]\n",
)  # fmt: skip


@given(st.lists(st.sampled_from(PARTS), max_size=14).map("".join))
@example('a = """b\n')
@example("a = '''b''''\nc = 1\n")
@example('a = """b\\"""\nc = 1"""\n')
def test_the_statements_of_a_file_are_the_shortest_runs_of_lines_that_are_toml(text: str) -> None:
    assert list(statements(text)) == shortest(text)


@pytest.mark.parametrize("begins", ['"""', "'''", "[", '"""\\', "'''\"\"\"", "{[", '"', "'", '"\\"'])
def test_a_text_that_is_not_closed_is_read_once(begins: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each further line was read with all before it: minutes for a file of 200 kB."""
    read: list[int] = []
    loads = tomllib.loads
    monkeypatch.setattr(tomllib, "loads", lambda text: (read.append(len(text)), loads(text))[1])
    text = f"{MINIMAL}[streams.a]\nschema = {begins}\n" + "id string, -- the customer's\n" * 7000
    assert lines_of(text)["streams.a"] == 8
    assert sum(read) < 2 * len(text)


def test_a_mistake_leaves_the_rest_of_the_configuration_to_look_for_more() -> None:
    text = (
        MINIMAL.replace('"flights"', '"my flights"')
        + '[stream.a]\nkey = "id"\npartitions = "two"\nschema = ["id string"]\n'
    )
    with pytest.raises(JobFileRefused) as caught:
        parsed(text)
    rest = caught.value.rest
    assert rest is not None and rest.app.main == "pipeline:app"
    assert rest.streams == {"a": Stream(key=("id",), schema="id string")}


def test_missing_keys_are_named() -> None:
    said = mistakes("")
    assert 'app.name is missing. Write under [app]: name = "shop".' in said
    assert 'app.main is missing. Write under [app]: main = "pipeline:app".' in said
    assert "azure.storage.connect is missing." in mistakes(MINIMAL.replace("connect", "# connect"))


def test_a_missing_environment_variable_is_named_with_its_key() -> None:
    assert mistakes(MINIMAL.replace("UseDevelopmentStorage=true", "${NOWHERE}")) == (
        "job.toml: azure.storage.connect needs the environment variable NOWHERE, which is not set. Write: export "
        "NOWHERE='DefaultEndpointsProtocol=https;AccountName=…;AccountKey=…;EndpointSuffix=…', with the connection "
        "string of the account between the quotes."
    )


@pytest.mark.parametrize("written", ['"2 gigs"', '"2gb"', "2048", '"0g"', "true"])
def test_a_memory_that_java_does_not_take_is_refused(written: str) -> None:
    assert mistakes(MINIMAL + f"[spark]\ndriver.memory = {written}\n").endswith('it should be like "2g" or "1500m".')


@pytest.mark.parametrize("size", ["64m", "65536K", "1g"])
def test_java_takes_the_memory_that_is_accepted(size: str) -> None:
    assert parsed(**{"spark.driver.memory": size}).spark["spark.driver.memory"] == size
    java = find_java(os.environ).binary
    subprocess.run([java, f"-Xmx{size}", "-version"], check=True, capture_output=True)


def test_an_empty_variable_is_no_account(tmp_path: Path) -> None:
    """It counts as not set: commands that need no account ignore it, the others name it."""
    file = tmp_path / "job.toml"
    file.write_text(MINIMAL.replace("UseDevelopmentStorage=true", "${NOWHERE}") + '[spark]\nx = "${NOWHERE}"\n')
    environment = {"NOWHERE": ""}
    config = Config.load(file, environment=environment, reaches_storage=False)
    assert config.storage.connect is None and config.spark["spark.x"] == ""
    with pytest.raises(ConfigError) as caught:
        Config.load(file, environment=environment)
    said = "line 7: azure.storage.connect needs the environment variable NOWHERE, which is empty."
    assert str(caught.value).startswith(f"{file}, {said} Write: export NOWHERE='")


@pytest.mark.parametrize("written", ["2", '"2"', '"2 sec"', '"-1 s"', '"s"', '""', "true", "false", "[1]", '"0 s"'])
def test_a_duration_without_a_unit_or_of_no_time_is_refused(written: str) -> None:
    assert "streams.a.idle.timeout = " in mistakes(MINIMAL + f"[streams.a]\nidle.timeout = {written}\n")


@pytest.mark.parametrize("written", ["true", "0", "-1", "1.5", '"many"', "20000", "{}"])
def test_a_number_of_partitions_is_a_count(written: str) -> None:
    assert "streams.a.partitions" in mistakes(MINIMAL + f"[streams.a]\npartitions = {written}\n")


@pytest.mark.parametrize("written", ['"yes"', "1", '""'])
def test_a_switch_is_true_or_false(written: str) -> None:
    said = mistakes(MINIMAL + f'[streams.a]\ntable.time = "at"\ntable.compact = {written}\n')
    assert "streams.a.table.compact" in said
    assert "should be true or false" in said


@pytest.mark.parametrize(
    ("keys", "numbers"),
    [
        ('heartbeat.interval = "3 s"', ("heartbeat.timeout is 8 s", "heartbeat.interval is 3 s")),
        ('heartbeat.interval = "2.6 s"', ("leader.timeout is 5 s", "heartbeat.interval is 2.6 s")),
        ('leader.timeout = "2.9 s"', ("leader.timeout is 2.9 s", "scan.interval is 1 s")),
        ('scan.interval = "2 s"', ("leader.timeout is 5 s", "scan.interval is 2 s")),
        ('heartbeat.timeout = "5 s"', ("heartbeat.timeout is 5 s", "heartbeat.interval is 2 s")),
        ('barrier.timeout = "5 s"', ("barrier.timeout is 5 s", "heartbeat.interval is 2 s")),
        ('profile = "fast"\nheartbeat.interval = "1 s"', ("heartbeat.timeout is 1.5 s", "heartbeat.interval is 1 s")),
    ],
)
def test_impossible_timings_are_refused_with_both_numbers(keys: str, numbers: tuple[str, str]) -> None:
    said = mistakes(MINIMAL + f"[job.coordinator]\n{keys}\n")
    assert numbers[0] in said
    assert numbers[1] in said


def test_each_profile_fits_itself() -> None:
    assert {name: check_timing(timing) for name, timing in PROFILES.items()} == {"eco": [], "default": [], "fast": []}


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        ("sql.session.timeZone", "event time is UTC"),
        ("sql.timestampType", "timestamp_ntz"),
        ("sql.shuffle.partitions", "stages.<name>.partitions says it, for each stage by itself"),
        ("sql.streaming.stateStore.providerClass", "task.state"),
        ("sql.streaming.multipleWatermarkPolicy", "owns the watermark"),
        ("sql.streaming.noDataMicroBatches.enabled", "without rows"),
        ("sql.streaming.checkpointFileManagerClass", "local files"),
        ("sql.streaming.offsetLog.formatVersion", "offsets of each batch"),
        ("sql.maxPlanStringLength", "reads plans as text"),
        ("sql.parser.quotedRegexColumnNames", "regular expression"),
        ("sql.timestampNanosTypes.enabled", "microseconds"),
        ("hadoop.fs.defaultFS", "local disk"),
        ("scheduler.mode", "share it fairly"),
        ("python.unix.domain.socket.enabled", "40 ms"),
        ("python.use.daemon", "processes of sources"),
        ("sql.adaptive.streaming.stateless.enabled", "wait forever"),
        ("sql.streaming.queryEvolution.enableSourceEvolution", "have no names"),
        ("sql.streaming.disabledV2MicroBatchReaders", "read by such a source"),
    ],
)
def test_a_setting_that_the_container_needs_is_refused_with_the_reason(key: str, reason: str) -> None:
    said = mistakes(MINIMAL + f'[spark]\n{key} = "x"\n')
    assert said.startswith(f"job.toml: spark.{key} cannot be set: ")
    assert reason in said


@pytest.mark.parametrize(
    "master",
    [
        "yarn",
        "k8s://http://host",
        "k8s://",
        "k8s://token@host",
        "local-cluster[2,1,1024]",
        "spark://host",
        "spark://host:7077/",
        "sc://host",
        "",
    ],
)
def test_a_cluster_of_another_kind_is_refused(master: str) -> None:
    said = mistakes(MINIMAL + f'[spark]\nmaster = "{master}"\n')
    assert said.startswith(f"job.toml: spark.master = {master!r} cannot be used: a processor runs Spark in itself or")


@pytest.mark.parametrize(
    "line",
    [
        'submit.deployMode = "cluster"',
        "speculation = true",
        "io.encryption.enabled = true",
        'serializer = "org.apache.spark.serializer.KryoSerializer"',
        "decommission.enabled = false",
        "storage.decommission.enabled = false",
        "files.useFetchCache = true",
        'executorEnv.TZ = "Europe/Berlin"',
        'executorEnv.PYTHONHASHSEED = "1"',
        'executorEnv.AZURE_STORAGE_CONNECTION_STRING = "x"',
        'cores.max = "many"',
        'samza_azure.state.port = "any"',
        "samza_azure.state.port = 65536",
        "authenticate = true",
    ],
)
def test_what_cannot_be_on_a_cluster_is_refused_there(line: str) -> None:
    key = f"spark.{line.partition(' ')[0]}"
    cores = "" if "cores" in line else "cores.max = 2"
    said = mistakes(MINIMAL + f'[spark]\nmaster = "spark://host:7077"\n{cores}\n{line}\n')
    assert said.startswith(f"job.toml: {key} ")
    assert "Remove the line." in said or "Write under" in said or "write " in said
    parsed(MINIMAL + f"[spark]\n{line}\n")


def test_the_secret_of_a_cluster_comes_from_the_environment() -> None:
    job = MINIMAL + '[spark]\nmaster = "spark://host:7077"\ncores.max = 2\nauthenticate = true\n'
    said = mistakes(job)
    line = said.partition("write under [spark] ")[2]
    assert line.startswith('"authenticate.secret" = "${SAMZA_AZURE_SPARK_SECRET}"')
    found = Config.parse(
        job + line.partition("\n")[0],
        environment={"KEY": KEY, "CONNECT": CONNECT, "SAMZA_AZURE_SPARK_SECRET": "of the cluster"},
    )
    assert found.spark["spark.authenticate.secret"] == "of the cluster"


@pytest.mark.parametrize(
    "master", ["local", "local[*]", "local[2]", "local[*,4]", "spark://host:7077", "spark://a:7077,b:7078"]
)
def test_spark_in_the_process_itself_or_on_a_cluster_is_not(master: str) -> None:
    assert parsed(MINIMAL + f'[spark]\nmaster = "{master}"\ncores.max = 2\n').spark["spark.master"] == master


DYNAMIC = """[spark]
master = "spark://host:7077"
cores.max = 6
executor.cores = 2
dynamicAllocation.enabled = true
"""


def test_executors_may_come_and_go_with_the_tasks() -> None:
    found = parsed(MINIMAL + DYNAMIC).spark
    assert is_dynamic(found)
    assert not is_dynamic({**found, "spark.dynamicAllocation.enabled": "false"})
    assert cores_of(found) == 6
    assert cores_of({**found, "spark.dynamicAllocation.maxExecutors": "2"}) == 4
    assert cores_of({**found, "spark.dynamicAllocation.maxExecutors": "9"}) == 6
    parsed(MINIMAL + DYNAMIC + "dynamicAllocation.minExecutors = 1\ndynamicAllocation.maxExecutors = 1\n")


@pytest.mark.parametrize(
    "line",
    [
        "executor.instances = 2",
        'executor.cores = "many"',
        "cores.max = 0",
        "dynamicAllocation.minExecutors = -1",
        "dynamicAllocation.maxExecutors = 0",
        "dynamicAllocation.minExecutors = 2",  # more than the most
    ],
)
def test_what_cannot_be_where_executors_come_and_go_is_refused(line: str) -> None:
    key = line.partition(" ")[0]
    job = "".join(each for each in DYNAMIC.splitlines(True) if not each.startswith(key))
    most = "" if "maxExecutors" in line else "dynamicAllocation.maxExecutors = 1\n"
    said = mistakes(MINIMAL + job + most + line + "\n")
    assert said.startswith(f"job.toml: spark.{key} ")
    assert re.search(r"[Rr]emove the line|[Ww]rite ", said)


def test_a_fixed_number_of_pods_does_not_go_with_pods_that_come_and_go() -> None:
    dynamic = "dynamicAllocation.enabled = true\ndynamicAllocation.maxExecutors = 2\n"
    parsed(MINIMAL + KUBERNETES + dynamic)
    said = mistakes(MINIMAL + KUBERNETES + dynamic + "executor.instances = 2\n")
    assert said.startswith("job.toml: spark.executor.instances cannot be set with dynamic allocation: ")


KUBERNETES = """[spark]
master = "k8s://https://kubernetes.default.svc"
kubernetes.container.image = "flights.azurecr.io/flights:1"
kubernetes.namespace = "samza-azure"
kubernetes.driver.pod.name = "flights-0"
"""


@pytest.mark.parametrize("master", ["k8s://https://kubernetes.default.svc", "k8s://host:6443", "k8s://https://h/k8s/c"])
def test_executors_may_be_pods(master: str) -> None:
    found = parsed(MINIMAL + KUBERNETES.replace("k8s://https://kubernetes.default.svc", master)).spark
    assert found["spark.master"] == master
    assert on_cluster(found)
    assert cores_of(found) == 2
    assert cores_of({**found, "spark.executor.instances": "3", "spark.executor.cores": "2"}) == 6
    dynamic = {"spark.dynamicAllocation.enabled": "true", "spark.dynamicAllocation.maxExecutors": "5"}
    assert cores_of({**found, **dynamic}) == 5


@pytest.mark.parametrize("key", ["kubernetes.container.image", "kubernetes.namespace", "kubernetes.driver.pod.name"])
def test_what_kubernetes_needs_is_asked_for(key: str) -> None:
    said = mistakes(MINIMAL + "".join(line for line in KUBERNETES.splitlines(True) if not line.startswith(key)))
    assert said.startswith(f"job.toml: spark.{key} is missing: ")
    assert f"write under [spark]: {key} = " in said


@pytest.mark.parametrize(
    "line",
    [
        'submit.deployMode = "cluster"',
        "speculation = true",
        "decommission.enabled = false",
        'executorEnv.SAMZA_AZURE_CONNECT = "x"',
        "cores.max = 2",
        "executor.instances = 0",
        'executor.cores = "many"',
        "dynamicAllocation.enabled = true",
        "dynamicAllocation.enabled = true\ndynamicAllocation.maxExecutors = 0",
        "authenticate = true",
        '"authenticate.secret" = "in every pod"',
    ],
)
def test_what_cannot_be_on_kubernetes_is_refused_there(line: str) -> None:
    said = mistakes(MINIMAL + KUBERNETES + line + "\n")
    key = "dynamicAllocation.maxExecutors" if "dynamic" in line else line.partition(" ")[0].strip('"')
    assert said.startswith(f"job.toml: spark.{key} ")
    assert re.search(r"Remove the line\.|remove the line\.|[Ww]rite (under|one|these)", said)
    assert "in every pod" not in said


@pytest.mark.parametrize("name", ["A", "-a", "a_b", "", "a" * 64, "ä"])
def test_a_processor_id_that_no_row_can_have_is_refused(name: str) -> None:
    assert "processor.id" in mistakes(**{"processor.id": name})
    with pytest.raises(ConfigError, match="1 to 63 lower-case letters"):
        PROCESSOR_ID.checked(name)


@pytest.mark.parametrize("name", ["new", "", "a/b", "a" * 64, "ä", "a.", ".a", "..", "a\\b"])
def test_a_run_id_that_no_run_can_have_is_refused(name: str) -> None:
    """`new` in a processor's row means any next run, as with --new-run: another processor began it under another id."""
    assert "app.run.id" in mistakes(**{"app.run.id": name})
    assert parsed(**{"app.run.id": "new-1"}).app.run_id == "new-1"


# The account.


def endpoints(blob: str = "https://a.blob.core.windows.net", table: str = "https://a.table.core.windows.net") -> str:
    return f"BlobEndpoint={blob};TableEndpoint={table};SharedAccessSignature=sv=2024&sig=abc"


@pytest.mark.parametrize(
    ("connect", "said"),
    [
        ("", "is empty"),
        ("nonsense", "is not a connection string"),
        (f"AcountName=a;AccountKey={KEY}", "is not a connection string"),
        (f"AccountKey={KEY};EndpointSuffix=core.windows.net", "has no AccountName"),
        ("AccountName=a;EndpointSuffix=core.windows.net", "has no AccountKey or SharedAccessSignature"),
        ("AccountName=a;AccountKey=not-base64", "has an AccountKey that is not base64"),
        (f"DefaultEndpointsProtocol=http;AccountName=a;AccountKey={KEY}", "Write https"),
        (
            f"AccountName=a;AccountKey={KEY};BlobEndpoint=http://10.0.0.1/a;TableEndpoint=http://127.0.0.1/a",
            "goes to 10.0.0.1 over plain http",
        ),
        (endpoints(table="https://a.table.cosmos.azure.com:443/"), "names Azure Cosmos DB"),
        (endpoints(table="https://b.table.core.windows.net"), "a BlobEndpoint and a TableEndpoint of two accounts"),
        (endpoints(blob="https://a.dfs.core.windows.net"), "names the endpoint of Data Lake"),
        (endpoints(blob="https://a-secondary.blob.core.windows.net"), "copy in another region, which is read-only"),
        (endpoints(table="https://a-secondary.table.core.windows.net"), "copy in another region, which is read-only"),
        (endpoints(table="https://a.blob.core.windows.net"), "endpoint of another service (.blob.)"),
        (endpoints(blob="https://a.queue.core.windows.net"), "endpoint of another service (.queue.)"),
        (
            f"AccountName=b;AccountKey={KEY};BlobEndpoint=https://a.blob.core.windows.net",
            "an AccountName and an endpoint",
        ),
    ],
)
def test_a_connection_string_that_cannot_work_is_refused(connect: str, said: str) -> None:
    assert said in mistakes(**{"azure.storage.connect": connect})


@pytest.mark.parametrize("protocol", ["http", "https"])
def test_a_connection_string_that_the_shell_cut_is_refused_with_the_line_that_a_shell_keeps_whole(
    protocol: str,
) -> None:
    """It was refused for having no AccountName, or for http."""
    whole = f"DefaultEndpointsProtocol={protocol};AccountName=a;AccountKey={KEY}"
    whole += ";BlobEndpoint=http://127.0.0.1:10000/a;TableEndpoint=http://127.0.0.1:10002/a"

    def seen(line: str) -> str:
        script = f'{line} 2>/dev/null\nprintf %s "$AZURE_STORAGE_CONNECTION_STRING"'
        return subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True).stdout

    said = mistakes(**{"azure.storage.connect": seen(f"export AZURE_STORAGE_CONNECTION_STRING={whole}")})
    assert "a shell cuts it at the first semicolon" in said
    advised = re.sub("'.*'", f"'{whole}'", said.partition("Write: ")[2].rstrip("."))
    assert parsed(**{"azure.storage.connect": seen(advised)}).storage.connect == Secret(whole)


@pytest.mark.parametrize(
    "connect",
    [
        "UseDevelopmentStorage=true",
        "usedevelopmentstorage=true;",
        "UseDevelopmentStorage=true;BlobEndpoint=http://127.0.0.1:1/devstoreaccount1",
        CONNECT,
        f"AccountName=a;AccountKey={KEY};",
        f"AccountName=a;AccountKey={KEY};BlobEndpoint=http://127.0.0.1:10000/a;TableEndpoint=http://localhost:10002/a",
        "BlobEndpoint=https://a.blob.example;TableEndpoint=https://a.table.example;SharedAccessSignature=sv=2024&sig=abc",
        endpoints(),
        endpoints(blob="https://a.z10.blob.storage.azure.net", table="https://a.z10.table.storage.azure.net"),
        endpoints(blob="https://a.blob.core.chinacloudapi.cn", table="https://a.table.core.chinacloudapi.cn"),
        endpoints(blob="https://proxy.example/a", table="https://proxy.example/a"),
    ],
)
def test_a_connection_string_over_https_or_to_this_machine_is_taken(connect: str) -> None:
    storage = parsed(**{"azure.storage.connect": connect}).storage
    assert storage.connect is not None
    assert storage.connect.value == connect


@pytest.mark.parametrize(
    ("account", "said"),
    [
        ("house", "should be a URL"),
        ("ftp://house", "should be a URL"),
        ("http://house.blob.core.windows.net", "over plain http"),
        ("https://house.example.org", "should be the URL of the account's blobs"),
        ("https://house.blob.core.windows.net/?sig=abc", "should be only the account's URL"),
        ("https://user:word@house.blob.core.windows.net", "should be only the account's URL"),
        ("https://house.blob.core.windows.net/flights-1", "should end after the host"),
        ("https://house-secondary.blob.core.windows.net", "copy in another region, which is read-only"),
        ("https://house.dfs.core.windows.net", "names the endpoint of Data Lake"),
        ("https://house.table.core.windows.net", "endpoint of another service (.table.)"),
        ("https://house.table.cosmos.azure.com:443", "names Azure Cosmos DB"),
    ],
)
def test_an_account_is_a_plain_https_url(account: str, said: str) -> None:
    assert said in mistakes(MINIMAL.replace("connect =", "#"), **{"azure.storage.account": account})


@pytest.mark.parametrize(
    ("key", "wrong", "advised", "right"),
    [
        ("connect", f"DefaultEndpointsProtocol=http;AccountName=a;AccountKey={KEY}", "Write (https)", ("http;", "$1;")),
        ("connect", endpoints(blob="https://a.dfs.core.windows.net"), r"Write (\.blob\.) instead", (".dfs.", "$1")),
        ("connect", endpoints(blob="https://a-secondary.blob.core.windows.net"), "without (-secondary)", ("$1", "")),
        ("connect", "$CONNECT", r"a variable: \"(\$\{\w+\})\"", ("$CONNECT", CONNECT)),
        ("account", "http://a.blob.core.windows.net", "Write (https)", ("http:", "$1:")),
        ("account", "https://a.dfs.core.windows.net", r"Write (\.blob\.) instead", (".dfs.", "$1")),
        ("account", "https://a-secondary.blob.core.windows.net", "without (-secondary)", ("$1", "")),
        ("account", "house", "like '(https://house.blob.core.windows.net)'", ("house", "$1")),
        (
            "account",
            "https://a.blob.core.windows.net/in",
            "Write the container into (azure.storage.container)",
            ("/in", ""),
        ),
    ],
)
def test_what_is_said_of_an_account_makes_it_one(key: str, wrong: str, advised: str, right: tuple[str, str]) -> None:
    text = MINIMAL if key == "connect" else MINIMAL.replace("connect =", "#")
    found = re.search(advised, mistakes(text, **{f"azure.storage.{key}": wrong}))
    assert found is not None
    before, after = (each.replace("$1", found[1]) for each in right)
    parsed(text, **{f"azure.storage.{key}": wrong.replace(before, after)})


def test_an_account_is_taken_instead_of_a_connection_string_but_not_beside_it() -> None:
    url = "https://house.blob.core.windows.net"
    text = MINIMAL.replace('connect = "UseDevelopmentStorage=true"', f'account = "{url}/"')
    assert parsed(text).storage.account == url
    assert "are both set" in mistakes(**{"azure.storage.account": url})


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", "::", "fe80::1", "localhost", "a-b.example.org"])
def test_a_host_is_a_name_or_an_address(host: str) -> None:
    assert parsed(**{"processor.host": host}).processor.host == host


@pytest.mark.parametrize("host", ["", "a" * 64, "a..b", "[::1]", "a b", "*", "é"])
def test_a_host_that_no_name_service_is_asked_for_is_refused(host: str) -> None:
    """The encoding of names failed on a label of 64 letters, and the supervisor with it."""
    assert "should be an address of this machine" in mistakes(**{"processor.host": host})


def test_bells_need_a_port() -> None:
    assert "no processor.port, to which other processors would connect" in mistakes(**{"processor.bells": True})
    assert parsed(**{"processor.bells": True, "processor.port": 0}).processor.bells


@pytest.mark.parametrize("name", ["ab", "Upper", "a--b", "-ab", "ab-", "a_b", "a" * 64, "$logs"])
def test_a_container_that_azure_would_refuse_is_refused_with_the_rule(name: str) -> None:
    said = mistakes(**{"azure.storage.container": name})
    assert "Azure accepts 3 to 63 lower-case letters, digits and single hyphens" in said


@pytest.mark.parametrize("name", ["ab", "1abc", "a-bc", "tables", "a" * 64])
def test_a_table_that_azure_would_refuse_is_refused_with_the_rule(name: str) -> None:
    assert "Azure accepts 3 to 63 letters and digits" in mistakes(**{"azure.storage.table": name})


def test_two_applications_that_look_alike_have_two_containers_and_two_tables() -> None:
    alike = [("a-11", "1"), ("a1-1", "1"), ("a-1", "11"), ("a-1", "1-1"), ("A-11", "1"), ("a.11", "1"), ("a11", "1")]
    assert len({default_container(*pair) for pair in alike}) == len(alike)
    assert len({default_table(*pair) for pair in alike}) == len(alike)


NAMES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", fullmatch=True)


@given(NAMES, NAMES, NAMES, NAMES)
def test_default_names_fit_azure_and_never_meet(name: str, id_: str, other_name: str, other_id: str) -> None:
    container, table = default_container(name, id_), default_table(name, id_)
    assert (valid_container(container), valid_table(table)) == (container, table)
    if (name, id_) != (other_name, other_id):
        assert container != default_container(other_name, other_id)
        assert table != default_table(other_name, other_id)


# Secrets.


def everything_shown(config: Config) -> str:
    """All the ways in which a configuration is printed."""
    dump = dataclasses.asdict(config)
    return "\n".join([str(config), repr(config), f"{config}", str(dump), json.dumps(dump, default=str)])


def test_nothing_that_prints_a_configuration_prints_a_secret() -> None:
    text = MINIMAL.replace("UseDevelopmentStorage=true", "${CONNECT}")
    config = parsed(text + f'[spark]\nhadoop.fs.azure.account.key.house = "{KEY}"\n')
    assert config.spark["spark.hadoop.fs.azure.account.key.house"] == KEY
    assert KEY not in everything_shown(config)


KEYS = [
    *("app.name", "app.id", "app.run.id", "app.main", "job.coordinator.factory", "job.coordinator.profile"),
    *("job.coordinator.heartbeat.interval", "job.coordinator.azure.blob.length", "azure.storage.connect"),
    *("azure.storage.account", "azure.storage.container", "azure.storage.table", "processor.id", "processor.port"),
    *("task.count", "task.batch.bytes", "task.commit.ms", "streams.a.system", "streams.a.partitions"),
    *("streams.a.idle.timeout", "container.warm", "metrics.prometheus.port", "azure.storage.conect"),
    *("spark.scheduler.mode", "spark.hadoop.key"),
]
#: "@" stands for the key itself, written into the file.
SECRETS = [
    "@",
    "${KEY}",
    "AccountName=a;AccountKey=@=",
    "AccountName=a;AccountKey=${KEY}!",
    "${CONNECT}",
    "${CONNECT};x",
]


@given(st.dictionaries(st.sampled_from(KEYS), st.sampled_from(SECRETS), min_size=1, max_size=6), st.text(max_size=3))
def test_an_account_key_in_any_setting_is_never_shown(places: dict[str, str], noise: str) -> None:
    text = "".join(f'{key} = "{value.replace("@", KEY)}"\n' for key, value in places.items())
    try:
        shown = everything_shown(parsed(text + noise))
    except ConfigError as error:
        shown = "".join([str(error), repr(error), repr(error.__context__), *traceback.format_exception(error)])
    assert KEY not in shown


# The object.


def test_each_key_has_a_sentence_of_its_own() -> None:
    for section in ast.parse(Path(sections.__file__).read_text()).body:
        if isinstance(section, ast.ClassDef) and "__pydantic_config__" in ast.unparse(section):
            for field, sentence in itertools.pairwise([*section.body, ast.Pass()]):
                if isinstance(field, ast.AnnAssign):
                    assert isinstance(sentence, ast.Expr), f"{section.name}: {ast.unparse(field.target)}"


def test_a_configuration_is_frozen_and_can_be_copied_and_pickled() -> None:
    config = parsed(MINIMAL + '[streams.a]\n[spark]\nmaster = "local[1]"\n')
    assert pickle.loads(pickle.dumps(config)) == copy.deepcopy(config) == config
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.metrics_prometheus_port = 1  # type: ignore[misc]
    with pytest.raises(TypeError):
        config.streams["b"] = Stream()  # type: ignore[index]


def test_reading_a_job_file_loads_neither_azure_nor_spark() -> None:
    program = (
        "import sys; from samza_azure.config import Config; "
        f"Config.parse({MINIMAL!r}); "
        "print(sorted({'azure', 'pyspark', 'pyarrow', 'asyncio', 'typer'} & set(sys.modules)))"
    )
    assert subprocess.check_output([sys.executable, "-c", program], text=True) == "[]\n"


@pytest.mark.parametrize(
    "line",
    [
        "container.warm = false",
        "job.drain-monitor.enabled = false",
        "job.drain-monitor.poll.interval.ms = 1000",
    ],
)
def test_a_key_that_nothing_obeys_yet_is_refused(line: str) -> None:
    with pytest.raises(ConfigError, match=r"is not supported by this version.*Remove it"):
        Config.parse(f"{line}\n{MINIMAL}")


@pytest.mark.parametrize(
    "line", ["container.warm = true", "job.drain-monitor.poll.interval.ms = 60000", "container = {}"]
)
def test_a_key_that_nothing_obeys_may_have_its_default(line: str) -> None:
    assert Config.parse(f"{line}\n{MINIMAL}") == Config.parse(MINIMAL)


@pytest.mark.parametrize(
    ("section", "kept"),
    [
        ('retention = "7 d"\nretention.bytes = "1 GiB"', (604_800.0, 1 << 30)),
        ('retention.bytes = "1 GiB"\nretention = "1 week"', (604_800.0, 1 << 30)),
        ('retention = "400 days"\ntable = "t"\ntable.time = "at"', (400 * 86_400.0, None)),
        ('retention.time = "1 h"', (3600.0, None)),
        ("", (None, None)),
    ],
)
def test_how_long_a_stream_keeps_its_rows(section: str, kept: tuple[float | None, int | None]) -> None:
    stream = Config.parse(f"{MINIMAL}\n[streams.flights]\n{section}").streams["flights"]
    assert (stream.retention_s, stream.retention_bytes) == kept


@pytest.mark.parametrize(
    "line", ['retention = "0 s"', "retention.bytes = 0", 'retention.bytes = "7 d"', "retention = 7"]
)
def test_an_invalid_retention_limit_is_refused(line: str) -> None:
    with pytest.raises(ConfigError, match=r"streams\.flights\.retention.* cannot be used"):
        Config.parse(f"{MINIMAL}\n[streams.flights]\n{line}")


@pytest.mark.parametrize(
    ("lines", "process_s", "drain_s"),
    [
        ("", None, None),
        ("task.callback.timeout.ms = 100", 0.1, 0.1),
        ("task.callback.drain.timeout.ms = 100", None, 0.1),
        ("task.callback.timeout.ms = 200\ntask.callback.drain.timeout.ms = 100", 0.2, 0.1),
        ("task.callback.timeout.ms = 200\ntask.callback.drain.timeout.ms = 0", 0.2, None),
        ("task.callback.timeout.ms = 0", None, None),
    ],
)
def test_how_long_the_calls_of_a_handler_may_take(lines: str, process_s: float | None, drain_s: float | None) -> None:
    """testGetDrainCallbackTimeoutMs; where only the other timeout is set, it counts."""
    task = Config.parse(f"{lines}\n{MINIMAL}").task
    assert (task.callback_timeout_s, task.callback_drain_timeout_s) == (process_s, drain_s)


BY_FILE = MINIMAL.replace('connect = "UseDevelopmentStorage=true"', 'connect.file = "secret/connect"')


def test_a_connection_string_may_stand_in_a_file_beside_the_job(tmp_path: Path) -> None:
    file = tmp_path / "secret/connect"
    file.parent.mkdir()
    file.write_text(f"{CONNECT}\n")
    storage = Config.parse(BY_FILE, path=tmp_path / "job.toml").storage
    assert storage.connect is not None
    assert (storage.connect.value, storage.connect_file) == (CONNECT, file)
    url = "https://house.blob.core.windows.net"
    with pytest.raises(ConfigError, match=r"connect\.file and azure\.storage\.account are both set"):
        Config.parse(BY_FILE + f'account = "{url}"', path=tmp_path / "job.toml")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "should be the path of a readable file: No such file or directory"),
        (b"\xff", "should be the path of a readable file: it is not text"),
        (b" \n", "The file that azure.storage.connect.file names is empty"),
        (b"nonsense", "The file that azure.storage.connect.file names is not a connection string"),
    ],
)
def test_a_file_without_a_connection_string_is_refused(text: bytes | None, said: str, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / "secret").mkdir()
        (tmp_path / "secret/connect").write_bytes(text)
    with pytest.raises(ConfigError, match=re.escape(said)):
        Config.parse(BY_FILE, path=tmp_path / "job.toml")


def test_a_secret_in_place_of_its_file_name_is_not_shown(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as raised:
        Config.parse(BY_FILE.replace("secret/connect", CONNECT), path=tmp_path / "job.toml")
    assert KEY not in "".join(traceback.format_exception(raised.value))


def test_each_connector_says_whether_many_write_a_partition() -> None:
    """Without a line in CLOCKS a missing frontier lag is accepted, and rows out of order are dropped as late."""
    alone = {"tail"}  # one process writes a file
    assert CLOCKS.keys() | alone == BUILT_IN.keys() and not CLOCKS.keys() & alone
