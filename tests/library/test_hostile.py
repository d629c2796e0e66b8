"""What foreign programs with access to the account may write, and how real processors on Azurite take it: a clear end,
or no effect.

A foreign program has the account's key and follows none of our rules: the SDK's own clients, no leases respected, no
ETags asked for.
"""

import datetime as dt
import gzip
import json
import subprocess
import sys
import time
import uuid
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from azure.core.exceptions import HttpResponseError
from azure.data.tables import EdmType, EntityProperty, TableClient, UpdateMode
from azure.storage.blob import BlobClient, BlobLeaseClient

from samza_azure import AzureJobCoordinatorFactory, Config, SharedTasks
from samza_azure.commands.azurite.emulator import Azurite
from samza_azure.errors import Ending
from samza_azure.group.control import Control, decode, encode
from samza_azure.library.threaded import ThreadedCoordinator
from samza_azure.metrics.facts import facts
from samza_azure.storage.connection import Account

JOB = """
app = {{ name = "hostile", main = "three:Mine" }}
azure.storage = {{ connect = "{connect}", container = "{name}", table = "{name}" }}
job.coordinator.profile = "fast"
job.coordinator.azure.blob.length = {limit}
"""
COMMAND = [sys.executable, "-c", "from samza_azure.cli import main; main()"]
PATIENCE_S = 40.0
TASKS = 8


def until(what: str, holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


class Mine(SharedTasks):
    """Remembers which tasks came, with their generations."""

    def __init__(self, coordinator: ThreadedCoordinator, tasks: int) -> None:
        super().__init__(coordinator, "part", tasks)
        self.of = coordinator
        self.started: list[tuple[str, int]] = []

    def on_start(self, task: str, generation: int) -> None:
        self.started.append((task, generation))

    @property
    def version(self) -> int:
        """Of the job model that it knows."""
        model = self.of.job_model
        return model.version if model is not None else 0


class Place:
    """A container and a table, the group in it, and a foreign writer."""

    def __init__(self, connect: str, limit: int = 5_120_000) -> None:
        name = f"h{uuid.uuid4().hex}"
        self.job = JOB.format(name=name, connect=connect, limit=limit)
        self.config = Config.parse(self.job)
        Account.from_config(self.config.storage).ensure_created()
        self.blob = BlobClient.from_connection_string(connect, name, "control.json")
        self.table = TableClient.from_connection_string(connect, name)
        self.members: dict[str, Mine] = {}

    def member(self, name: str, tasks: int = TASKS) -> Mine:
        coordinator = AzureJobCoordinatorFactory().get_job_coordinator(name, self.config)
        assert isinstance(coordinator, ThreadedCoordinator)
        mine = self.members[name] = Mine(coordinator, tasks)
        mine.start()
        return mine

    def group(self, *names: str) -> list[Mine]:
        """Members that have shared all tasks."""
        members = [self.member(name) for name in names]
        until("shared", lambda: self.is_shared(members))
        return members

    def is_shared(self, members: list[Mine]) -> bool:
        counts = [len(mine.tasks) for mine in members]
        tasks = {task for mine in members for task in mine.tasks}
        return sum(counts) == len(tasks) == TASKS and max(counts) - min(counts) <= 1

    def ended(self, mine: Mine) -> Ending:
        until("ended", lambda: mine.of.ending is not None)
        assert mine.of.ending is not None
        return mine.of.ending

    def control(self) -> Control:
        return decode(self.read())

    def read(self) -> bytes:
        data = self.blob.download_blob().readall()
        assert isinstance(data, bytes)
        return data

    def overwrite(self, data: bytes) -> None:
        """As a foreign writer does it: the lease is broken, whatever its holder."""
        for _ in range(100):
            with suppress(HttpResponseError):  # it is not leased
                BlobLeaseClient(self.blob).break_lease(0)
            with suppress(HttpResponseError):  # it was leased meanwhile
                self.blob.upload_blob(data, overwrite=True)
                return
        raise AssertionError("the stranger never came through")

    def close(self) -> None:
        for mine in self.members.values():
            mine.coordinator.stop()
        for mine in self.members.values():
            assert mine.of.wait(PATIENCE_S)
        self.blob.close()
        self.table.close()


@pytest.fixture(scope="module")
def azurite() -> Iterator[Azurite]:
    with Azurite() as running:
        yield running


@pytest.fixture
def place(azurite: Azurite) -> Iterator[Place]:
    made = Place(azurite.connection_string)
    yield made
    made.close()


# The control blob.

OURS = encode(Control(group_id="ab" * 16), limit=1 << 20)
NEWER = gzip.compress(json.dumps({"format": 2, "group_id": "x"}).encode())
NO_RUN = gzip.compress(json.dumps(json.loads(gzip.decompress(OURS)) | {"tasks": {"part-0": "mine"}}).encode())


def bomb() -> bytes:
    """Less than a megabyte that unpacks to a hundred. It is made whenever these tests are collected."""
    packing = zlib.compressobj(1, wbits=16 + zlib.MAX_WBITS)
    return b"".join(packing.compress(bytes(1 << 20)) for _ in range(100)) + packing.flush()


STRANGE = {
    "text": (b"hello", "not one that samza-azure wrote"),
    "empty": (b"", "not one that samza-azure wrote"),
    "truncated": (OURS[:-9], "not one that samza-azure wrote"),
    "other fields": (NO_RUN, "holds what samza-azure does not write"),
    "a bomb": (bomb(), "not one that samza-azure wrote"),
    "large": (bytes(6_000_000), "not one that samza-azure wrote"),
}


@pytest.mark.parametrize("what", STRANGE)
def test_a_start_on_a_control_blob_that_is_not_ours_ends_with_1_and_leaves_it_alone(place: Place, what: str) -> None:
    data, message = STRANGE[what]
    place.blob.upload_blob(data)
    ending = place.ended(place.member("a"))
    assert (ending.code, place.read()) == (1, data)
    assert message in ending.message and "control.json" in ending.message


def test_a_group_whose_control_blob_is_overwritten_ends_with_1_and_goes_on_when_it_is_put_back(place: Place) -> None:
    members = place.group("a", "b")
    ours, before = place.read(), dict(members[0].started + members[1].started)
    place.overwrite(b"mine now")
    for mine in members:
        assert place.ended(mine).code == 1
        until("its tasks are taken back", lambda mine=mine: not mine.tasks)
        assert "not one that samza-azure wrote (blob control.json, position 0)" in place.ended(mine).message
    assert place.read() == b"mine now"
    place.overwrite(ours)
    again = place.group("c", "d")
    after = dict(again[0].started + again[1].started)
    assert all(after[task] > before[task] for task in before)


def test_a_group_that_finds_another_groups_control_blob_ends_with_1(place: Place) -> None:
    (mine,) = place.group("a")
    place.overwrite(OURS)
    assert place.ended(mine).code == 1
    assert "belongs to another group" in place.ended(mine).message


def test_an_older_copy_of_the_control_blob_ends_everybody_with_a_sentence(place: Place) -> None:
    """Versions would be given twice: a task waited forever for a release that had been of another version."""
    members = place.group("a", "b", "c")
    older = place.read()
    newcomer = place.member("d")
    until("shared by four", lambda: place.is_shared([*members, newcomer]))
    # A processor that keeps its tasks may not have read the newer copy yet. To it the older one would be nothing new.
    until("known", lambda: all(mine.version > decode(older).version for mine in members))
    place.overwrite(older)
    newcomer.coordinator.stop()  # so that the leader has something to write
    for mine in members:
        assert place.ended(mine).code == 1
        assert "an earlier copy was restored" in place.ended(mine).message


def test_a_model_that_is_too_large_ends_with_2_and_changes_nothing(azurite: Azurite) -> None:
    place = Place(azurite.connection_string, limit=1024)
    try:
        ending = place.ended(place.member("a", tasks=2000))
        assert ending.code == 2
        assert "job.coordinator.azure.blob.length allows 1024" in ending.message
        assert place.control().tasks == {}
    finally:
        place.close()


def test_a_model_that_grows_too_large_keeps_the_newcomer_waiting_and_the_group_running(place: Place) -> None:
    members = place.group("a", "b", "c")
    models = [mine.coordinator.job_model for mine in members]
    needed = len(encode(replace(place.control(), events=())))  # where there is no room, what happened lately goes first
    for mine in members:  # from now on there is no room for another one's long name
        assert mine.of.view is not None
        mine.of.view.settings = replace(mine.of.view.settings, blob_limit=needed + 16)
    newcomer = place.member("d" * 63)
    until(
        "refused",
        lambda: any(mine.of.view and (leads := mine.of.view.leadership) and leads.too_large for mine in members),
    )
    assert [mine.coordinator.job_model for mine in members] == models
    assert [mine.of.ending for mine in (*members, newcomer)] == [None] * 4
    newcomer.coordinator.stop()
    assert place.ended(newcomer).code == 0
    members[0].coordinator.stop()
    place.ended(members[0])
    until("the others share what it had", lambda: place.is_shared(members[1:]))


def test_a_command_says_it_in_a_sentence_too(place: Place, tmp_path: Path) -> None:
    place.blob.upload_blob(NEWER)
    job = tmp_path / "job.toml"
    job.write_text(place.job)
    ended = subprocess.run([*COMMAND, "status", str(job)], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 1
    assert "Start the later one here, too" in " ".join(ended.stderr.split())
    assert "Traceback" not in ended.stderr


# The table.

ANYTHING: dict[str, Any] = {
    "incarnation": 7.5,
    "beat": EntityProperty((1 << 63) - 1, EdmType.INT64),
    "adopted": "soon",
    "state": b"\x00\xff",
    "released": "[" * 30_000,
    "tasks": '{"part-0": {"generation": 1e999, "attempt": {}, "phase": "DANCING"}}',
    "tasks_columns": EntityProperty(1 << 62, EdmType.INT64),
    "fingerprint": dt.datetime(2026, 1, 1, tzinfo=dt.UTC),
    "new_run": dt.datetime.max.replace(tzinfo=dt.UTC),
    "boot": uuid.UUID(int=1),
}


def write(place: Place, partition: str, key: str, values: dict[str, Any]) -> None:
    """As a foreign program does it: without asking what is there."""
    place.table.upsert_entity({"PartitionKey": partition, "RowKey": key, **values}, mode=UpdateMode.REPLACE)


def strangers(members: list[Mine]) -> int:
    """How many rows the leader has counted that no processor wrote."""
    return max(facts(mine.of.view).strangers for mine in members if mine.of.view is not None)


def test_foreign_rows_are_counted_and_move_no_task(place: Place) -> None:
    members = place.group("a", "b")
    before = [list(mine.started) for mine in members]
    write(place, "members", "Nobody's row, 100 %", {"state": "ACTIVE", "incarnation": "me"})
    write(place, "members", "thermometer", {"temperature": 21.5})
    write(place, "members", "huge", {f"c{number}": "x" * 30_000 for number in range(15)})
    # It could be given tasks, and a control blob with a lone surrogate cannot be read.
    joins = {"state": "ACTIVE", "fingerprint": place.control().fingerprint, "adopted": 1}
    write(place, "members", "half", {"incarnation": "\ud800", **joins})
    until("counted", lambda: strangers(members) == 4)
    write(place, "members", "anything", ANYTHING)
    write(place, "hints", "nothing", ANYTHING)
    until("marked, since nobody beats there", lambda: state_of(place, "anything") == "DEAD")
    assert [mine.started for mine in members] == before
    assert {entity["RowKey"] for entity in place.table.query_entities("PartitionKey eq 'members'")} >= {
        "Nobody's row, 100 %",
        "thermometer",
        "huge",
    }
    joined = [*members, place.member("c")]
    until("shared with one more", lambda: place.is_shared(joined))


def state_of(place: Place, processor: str) -> object:
    return place.table.get_entity("members", processor)["state"]


LIES = {
    "a later epoch": {"epoch": EntityProperty(1 << 40, EdmType.INT64)},
    "the highest numbers": dict.fromkeys(("epoch", "version", "beat"), EntityProperty((1 << 63) - 1, EdmType.INT64)),
    "other types": {
        "epoch": "x",
        "version": 2.5,
        "successors": True,
        "control_etag": 7,
        "drain": b"\xff",
        "beat": None,
    },
    "nothing": {},
}


@pytest.mark.parametrize("lie", [pytest.param(lie, marks=[pytest.mark.long] * (lie != "other types")) for lie in LIES])
def test_a_forged_leader_row_is_corrected_and_moves_no_task(place: Place, lie: str) -> None:
    members = place.group("a", "b")
    before = [list(mine.started) for mine in members]
    write(place, "leader", "leader", LIES[lie])
    epoch = place.control().epoch
    until(
        "put right", lambda: place.table.get_entity("leader", "leader").get("epoch") in ((epoch, EdmType.INT64), epoch)
    )
    joined = [*members, place.member("c")]
    until("shared with one more", lambda: place.is_shared(joined))
    assert [mine.started for mine in members] == before
    assert place.control().epoch == epoch


def test_a_member_whose_row_is_overwritten_comes_back_and_all_tasks_run(place: Place) -> None:
    members = place.group("a", "b", "c")
    lives = {mine.of.view.incarnation for mine in members if mine.of.view is not None}
    for mine in members:
        write(place, "members", mine.of.view.me if mine.of.view is not None else "", ANYTHING)
    until(
        "they are new",
        lambda: lives.isdisjoint({mine.of.view.incarnation for mine in members if mine.of.view is not None}),
    )
    until("shared again", lambda: place.is_shared(members))
    assert [mine.of.ending for mine in members] == [None, None, None]


def test_invalid_requests_are_counted_and_a_valid_one_is_obeyed(place: Place) -> None:
    members = place.group("a", "b")
    write(place, "requests", "1 nonsense", ANYTHING)
    write(place, "requests", "2 huge", {"kind": "drain"} | {f"c{number}": "x" * 30_000 for number in range(15)})
    write(place, "requests", "3 unknown", {"kind": "x" * 30_000, "runId": "y" * 30_000})
    until("counted", lambda: max(facts(m.of.view).ignored for m in members if m.of.view is not None) == 3)
    assert place.is_shared(members)
    write(place, "requests", "4", {"kind": "drain", "uuid": "4", "runId": "", "drainMode": "DEFAULT"})
    assert [place.ended(mine).code for mine in members] == [0, 0]
    assert place.control().phase == "DRAINED"
