"""What the commands say of a job whose coordinator is not Azure's: a group of one, or one of the user's.

On the emulator, without Spark. `tests/spark/test_drain_integration.py` plays upstream's tests with the group of
one.
"""

import json
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from aiohttp import web

from samza_azure import Config, ConfigError, DrainMonitor, DrainNotification, DrainNotifications
from samza_azure.cli import COMMANDS, app
from samza_azure.commands.azurite.emulator import Azurite
from samza_azure.commands.job import is_seen, processors_of
from samza_azure.commands.run import page_of
from samza_azure.errors import Verdict
from samza_azure.group.ending import NOT_ALONE
from samza_azure.library.factory import PassthroughJobCoordinatorFactory
from tests.commands.test_asking import PATIENCE_S, Group, all_run, generations

ALONE = 'job.coordinator.factory = "samza_azure.PassthroughJobCoordinatorFactory"\n'
MakeGroup = Callable[[str], Group]


@pytest.fixture
def make(emulator: Azurite, tmp_path: Path) -> Iterator[MakeGroup]:
    made: list[Group] = []

    def group(more: str) -> Group:
        directory = tmp_path / str(len(made))
        directory.mkdir()
        made.append(Group(emulator, directory, more))
        return made[-1]

    yield group
    for each in made:
        each.close()


def test_the_commands_see_a_group_of_one_and_what_they_ask_is_done(
    make: MakeGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of it was in memory: each command answered that nothing runs, with exit code 0."""
    group = make(ALONE)
    monkeypatch.setenv("CONNECT", group.environment["CONNECT"])
    [member] = group.start("a", reads=False)
    before = group.until("all run", all_run)
    run_id = before["run_id"]
    code, said, _ = group.command("status", "--json")
    shown = json.loads(said)
    assert (code, shown["phase"], shown["leader"], generations(shown)) == (0, "RUNNING", "a", generations(before))
    for command in (("delete", "--all", "--yes"), ("rewind", "--to", "earliest")):
        assert refused(group.job, *command).startswith("Processors of 'asked' run: a.")

    code, said, _ = group.command("stop", "--wait")
    assert (code, said.startswith(f"Run {run_id} is stopped after ")) == (0, True)
    assert member.coordinator.wait(PATIENCE_S)  # type: ignore[attr-defined]
    [member] = group.start("a", reads=False)
    after = group.until("all run again", lambda shown: all_run(shown) and shown["phase"] == "RUNNING")
    assert after["run_id"] == run_id
    assert all(generations(after)[task] > generation for task, generation in generations(before).items())

    called: list[DrainNotification] = []
    monitor = DrainMonitor(DrainNotifications.of(group.config), run_id, 0.05)
    monitor.register_drain_callback(called.append)
    monitor.start()
    assert called == []
    code, said, progress = group.command("drain", "--wait")
    assert (code, f"Drain of run {run_id} requested." in progress) == (0, True)
    assert member.coordinator.wait(PATIENCE_S)  # type: ignore[attr-defined]
    assert (group.status()["phase"], member.steps[-1]) == ("DRAINED", "DRAINED")
    assert group.command("drain") == (0, f"Run {run_id} is already drained.\n", "")
    group.until("the monitor has called", lambda _: [each.run_id for each in called] == [run_id])


def test_a_second_processor_of_a_group_of_one_is_refused_and_moves_nothing(make: MakeGroup) -> None:
    """Both ran all tasks, and took each other's logs over."""
    group = make(ALONE)
    group.start("a", reads=False)
    before = group.until("all run", all_run)
    [second] = group.start("b", reads=False)
    assert second.coordinator.wait(PATIENCE_S)  # type: ignore[attr-defined]
    assert second.ending is not None
    assert (second.ending.code, second.ending.message) == (Verdict.REFUSED, NOT_ALONE.format(leader="a"))
    shown = group.status()
    assert (generations(shown), shown["version"], all_run(shown)) == (generations(before), before["version"], True)
    ended = {each["id"]: each["failure"] for each in shown["processors"]}
    assert ended == {"a": None, "b": {"exit_code": 2, "message": NOT_ALONE.format(leader="a")}}
    with pytest.raises(ConfigError, match="a runs this job"):
        second.stop()
    group.members.remove(second)


def test_of_two_processors_that_start_at_once_one_stays(make: MakeGroup) -> None:
    group = make(ALONE)
    both = group.start("a", "b", reads=False)
    shown = group.until("one has ended", lambda shown: all_run(shown) and any(member.ending for member in both))
    [stays] = [member for member in both if member.ending is None]
    [ended] = [member for member in both if member.ending is not None]
    assert ended.ending is not None and ended.ending.code == Verdict.REFUSED
    assert {task["owner"] for task in shown["tasks"]} == {shown["leader"]} == {stays.coordinator._settings.processor}  # type: ignore[attr-defined]
    assert ended.tasks == ()
    group.members.remove(ended)


def test_the_other_factory_takes_a_group_of_one_over(make: MakeGroup) -> None:
    """First as a standby, when its processor leaves as its owner; and the run goes on."""
    group = make(ALONE)
    [first] = group.start("a", reads=False)
    before = group.until("all run", all_run)
    group.job.write_text(group.job.read_text().replace(ALONE, ""))
    group.config = Config.load(group.job, environment=group.environment)
    group.start("b", reads=False)
    shown = group.until("b has joined", lambda shown: [each["ready"] for each in shown["processors"]] == [True, True])
    assert {task["owner"] for task in shown["tasks"]} == {"a"}
    first.stop()
    after = group.until("b runs all", lambda shown: all_run(shown) and shown["leader"] == "b")
    assert (after["run_id"], {task["owner"] for task in after["tasks"]}) == (before["run_id"], {"b"})


def test_the_run_of_a_group_of_one_is_named_by_hand_and_drained_before_it_starts(make: MakeGroup) -> None:
    """app.run.id was ignored, and the notification of a run before its start stayed in the account unread."""
    group = make(ALONE)
    group.config = replace(group.config, app=replace(group.config.app, run_id="by-hand"))
    assert group.command("drain", "--run-id", "by-hand")[0] == 0
    [member] = group.start("a", reads=False)
    assert member.coordinator.wait(PATIENCE_S)  # type: ignore[attr-defined]
    assert (member.ending is not None and member.ending.code, group.status()["phase"]) == (Verdict.DONE, "DRAINED")
    assert (group.status()["run_id"], member.tasks) == ("by-hand", ())


# A factory of the user's.

OWN = """
from samza_azure import AzureJobCoordinatorFactory

class Elsewhere:
    def get_job_coordinator(self, processor_id, config, metrics=None):
        raise NotImplementedError

class Wrapped(AzureJobCoordinatorFactory):
    pass
"""
NOWHERE = "BlobEndpoint=http://127.0.0.1:9/a;TableEndpoint=http://127.0.0.1:9/a;AccountName=a;AccountKey=YQ=="
#: Each command that is about the group, with what it needs to get as far as that.
ABOUT_THE_GROUP = (
    ("status",),
    ("status", "--json"),
    ("status", "--watch"),
    ("ui", "--port", "0"),
    ("drain",),
    ("drain", "--wait"),
    ("drain", "--when-caught-up"),
    ("drain", "--run-id", "r1"),
    ("drain", "--cancel"),
    ("decommission", "p0"),
    ("stop",),
    ("stop", "--wait"),
    ("rewind", "--to", "earliest"),
    ("delete", "--run", "r1", "--yes"),
    ("delete", "--stream", "s", "--yes"),
    ("delete", "--all", "--yes"),
    ("recover",),
)
#: Those that read and write rows, which are in logs and tables whoever coordinates.
OF_ROWS = frozenset({"produce", "export", "peek", "follow", "table", "compact"})
#: `run` and `guard` ask the factory themselves, `dev` is refused before its emulator starts, and the others know no
#: group.
OTHERS = frozenset(
    {"run", "guard", "dev", "azurite", "master", "worker", "executor", "check", "explain", "positions", "verify"}
)


def job_with(factory: str, directory: Path, connect: str = "UseDevelopmentStorage=true") -> Path:
    (directory / "own_factory_of_a_test.py").write_text(OWN)
    (directory / "job.toml").write_text(
        'app = { name = "own", main = "none:none" }\n'
        f'azure.storage.connect = "{connect}"\njob.coordinator.factory = "{factory}"\n'
    )
    return directory / "job.toml"


def refused(job: Path, name: str, *options: str) -> str:
    with pytest.raises(ConfigError) as caught:
        app([name, str(job), *options], standalone_mode=False)
    return str(caught.value)


@pytest.mark.parametrize("command", ABOUT_THE_GROUP, ids=" ".join)
def test_commands_that_would_see_nobody_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    """Before they reach an account: nothing listens there."""
    monkeypatch.syspath_prepend(str(tmp_path))
    job = job_with("own_factory_of_a_test.Elsewhere", tmp_path, NOWHERE)
    said = refused(job, *command)
    assert said.startswith("own_factory_of_a_test.Elsewhere coordinates this job, and keeps its group elsewhere")


def test_each_command_says_what_it_does_with_a_coordinator_of_ones_own() -> None:
    """Whoever adds a command decides where it belongs."""
    assert {name for name, *_ in ABOUT_THE_GROUP} | OF_ROWS | OTHERS == set(COMMANDS)


def test_commands_of_rows_work_whoever_coordinates(
    emulator: Azurite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    job = job_with("own_factory_of_a_test.Elsewhere", tmp_path, emulator.connection_string)
    with job.open("a") as more:
        more.write(f'azure.storage.container = "own-{uuid.uuid4().hex}"\n[streams.s]\nschema = "v int"\n')
    (tmp_path / "rows.jsonl").write_text('{"v": 1}\n{"v": 2}\n')
    for name, *options in (
        ("produce", "s", str(tmp_path / "rows.jsonl")),
        ("peek", "s"),
        ("export", "s", "--to", str(tmp_path / "out.jsonl")),
        ("follow", "s", "--from", "earliest", "--until-now"),
    ):
        capsys.readouterr()
        app([name, str(job), *options], standalone_mode=False)
        assert "2 rows" in (said := "".join(capsys.readouterr())) or said.startswith('{"v": 1}\n{"v": 2}\n'), name
    assert "has no reader 'nobody'" in refused(job, "delete", "--stream", "s", "--reader", "nobody")
    assert (tmp_path / "out.jsonl").read_text() == '{"v": 1}\n{"v": 2}\n'


def test_a_factory_that_says_so_is_seen_and_one_that_cannot_be_loaded_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    assert is_seen(Config.load(job_with("own_factory_of_a_test.Wrapped", tmp_path)))
    assert is_seen(Config.load(job_with("samza_azure.PassthroughJobCoordinatorFactory", tmp_path)))
    job = job_with("own_factory_of_a_test.Missing", tmp_path)
    said = "job.coordinator.factory = 'own_factory_of_a_test.Missing' cannot be loaded: AttributeError: "
    for command in ("status", "check", "stop"):
        assert refused(job, command).startswith(said)


def test_a_group_of_one_has_one_processor(tmp_path: Path) -> None:
    """`dev` asks the same, once its emulator runs, and so does the simulator."""
    config = Config.load(job_with("samza_azure.PassthroughJobCoordinatorFactory", tmp_path))
    assert (processors_of(config, None, 3), processors_of(config, 1, 3)) == (1, 1)
    assert "a job has one processor" in refused(config.path, "explain", "--processors", "2")
    others = Config.load(job_with("samza_azure.AzureJobCoordinatorFactory", tmp_path))
    assert (processors_of(others, None, 3), processors_of(others, 2, 3)) == (3, 2)


def test_a_processor_has_no_page_if_the_account_does_not_have_its_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    shown = {}
    for factory in ("own_factory_of_a_test.Elsewhere", "own_factory_of_a_test.Wrapped"):
        config, served = Config.load(job_with(factory, tmp_path)), web.Application()
        page_of(config, PassthroughJobCoordinatorFactory().get_job_coordinator("a", config))(served)
        shown[factory.rpartition(".")[2]] = "/" in {each.canonical for each in served.router.resources()}
    assert shown == {"Elsewhere": False, "Wrapped": True}


def test_the_factory_sends_nothing_before_the_start() -> None:
    config = Config.parse(f'app = {{ name = "own", main = "none:none" }}\nazure.storage.connect = "{NOWHERE}"\n')
    assert PassthroughJobCoordinatorFactory().get_job_coordinator("a", config).job_model is None
