"""The control blob is lost, put back in an older version, or damaged; or the account has lost what came last.

`samza-azure recover` and one start bring the job back: nobody exits, all tasks run, and no row is lost or doubled. The
commands are those of docs/operate.md, "Disaster".
"""

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from azure.storage.blob import BlobClient

from samza_azure.commands.azurite.emulator import Azurite
from samza_azure.commands.recover import copies_in, recover
from samza_azure.config import Config
from samza_azure.errors import ConfigError
from samza_azure.group import control as control_blob
from samza_azure.group.control import NAME, Control, milestone
from samza_azure.host.copies import KEPT
from samza_azure.storage.connection import Account
from samza_azure.stream_io.log import LogReader

from .group_members import GroupOnAzurite


class Operator:
    """What an operator does to a group whose processors are stopped."""

    def __init__(self, group: GroupOnAzurite) -> None:
        self.group = group
        container = Config.parse(group.job).storage.container
        self.blob = BlobClient.from_connection_string(group.emulator.connection_string, container, NAME)

    def stop(self) -> None:
        for name in self.group.alive:
            self.group.leave(name)

    def recover(self, *, yes: bool = True) -> str:
        config = Config.parse(self.group.job)
        return recover(config, Account.from_config(config.storage), yes=yes)

    def content(self) -> bytes:
        return bytes(self.blob.download_blob().readall())

    def control(self) -> Control:
        return control_blob.decode(self.content())

    def put(self, data: bytes) -> None:
        self.blob.upload_blob(data, overwrite=True)

    def shorten(self, prefix: str, records: int) -> None:
        """Put back a log of one blob as it was before its last records."""
        blobs = self.group.account.blobs()
        (name, _), *_ = blobs.list(f"{prefix}/")
        ends, reader = [(0, 0)], LogReader(blobs, prefix)
        while not (found := reader.scan(ends[-1], 1)).at_end:
            ends.append(found.end)
        index, end = ends[-1 - records]
        assert index == int(name.rpartition("/")[2])
        span = blobs.read(name, 0, end)
        blobs.delete(name)
        blobs.create(name)
        blobs.append(name, bytes(span.data), 0)  # type: ignore[union-attr]


@pytest.fixture(scope="module")
def group(emulator: Azurite) -> Iterator[GroupOnAzurite]:
    made = GroupOnAzurite(emulator, tasks=4)
    try:
        made.start("p0", "p1")
        made.settled()
        yield made
    finally:
        made.close()


@pytest.fixture
def operator(group: GroupOnAzurite) -> Operator:
    return Operator(group)


@pytest.fixture(scope="module")
def old(group: GroupOnAzurite) -> bytes:
    """The control blob before tasks moved again."""
    before = Operator(group).content()
    for name in ("p1", "p0"):
        group.kill(name)
        group.settled()
        group.start(name)
        group.settled()
    return before


@pytest.mark.usefixtures("old")
def test_each_milestone_leaves_a_copy_and_the_oldest_are_deleted(group: GroupOnAzurite, operator: Operator) -> None:
    blobs = group.account.blobs()
    group.until(
        lambda: "the last milestone has no copy",
        lambda: milestone(operator.control()) in map(milestone, copies_in(blobs).values()),
    )
    assert 5 <= len(copies_in(blobs)) <= KEPT


def test_it_is_refused_while_processors_run(operator: Operator) -> None:
    for yes in (False, True):
        with pytest.raises(ConfigError, match=r"run: p.*Stop them first"):
            operator.recover(yes=yes)


def test_an_older_control_blob_was_put_back(group: GroupOnAzurite, operator: Operator, old: bytes) -> None:
    """It took 24 exits until all tasks ran again."""
    operator.stop()
    newest = operator.control()
    operator.put(old)
    said = operator.recover(yes=False)
    assert "Nothing was changed" in said
    assert operator.content() == old
    operator.recover()
    found = operator.control()
    assert found.revision > newest.revision
    assert found.epoch > newest.epoch
    assert found.run_id == newest.run_id
    group.start("p0", "p1")
    group.settled()
    operator.stop()
    assert "Nothing to recover" in operator.recover()


@pytest.mark.parametrize("loss", ["deleted", pytest.param("cut short", marks=pytest.mark.long)])
def test_the_control_blob_was_lost(group: GroupOnAzurite, operator: Operator, loss: str) -> None:
    operator.stop()
    before = operator.control()
    if loss == "deleted":
        operator.blob.delete_blob()
        refused = group.another("p0")
        refused.join(30)
        ((code, why),) = refused.of("ended")
        assert code == 1
        assert "control.json was deleted: there are copies of it" in why
        assert "samza-azure recover" in why
        assert not operator.blob.exists(), "a job never starts over beside its old logs"
    else:
        operator.put(operator.content()[:-9])
    operator.recover()
    found = operator.control()
    assert found.revision > before.revision
    assert (found.group_id, found.run_id, found.positions) == (before.group_id, before.run_id, before.positions)
    group.start("p0", "p1")
    group.settled()


def test_two_at_once_write_one_blob(group: GroupOnAzurite, operator: Operator) -> None:
    operator.stop()
    operator.blob.delete_blob()
    said = both(operator.recover)
    assert sorted(text.split()[0] for text in said) in (["A", "Wrote"], ["Nothing", "Wrote"], ["The", "Wrote"]), said
    group.start("p0", "p1")
    group.settled()


def test_logs_that_lost_their_end_go_on_from_there(group: GroupOnAzurite, operator: Operator) -> None:
    """A fail-over may lose the last minutes of each blob for itself. Here the control blob is the newer one."""
    operator.stop()
    shown = group.status()
    rows = {task["name"]: len(group.log(shown, task).rows) for task in shown["tasks"]}
    for task in ("count-0", "count-2"):
        prefix = f"runs/{shown['run_id']}/{task}"
        if len(group.account.blobs().list(f"{prefix}/")) == 1:
            operator.shorten(prefix, 3)
    assert "Nothing to recover" in operator.recover()
    group.past, group.members, group.logs = [], {}, {}  # what they were told of the lost rows no longer holds
    group.start("p0", "p1")
    shown = group.settled()
    assert all(len(group.log(shown, task).rows) > rows[task["name"]] - 3 for task in shown["tasks"])


def test_a_run_that_has_lost_a_log_is_not_brought_back(group: GroupOnAzurite, operator: Operator) -> None:
    operator.stop()
    before, blobs = operator.control(), group.account.blobs()
    gone = [name for name, _ in blobs.list(f"runs/{before.run_id}/count-1/")]
    kept = {name: bytes(blobs.read(name, 0).data) for name in gone}  # type: ignore[union-attr]
    blobs.delete_many(gone)
    with pytest.raises(ConfigError, match=r"(?s)The logs of count-1 are gone.*This run cannot go on") as refused:
        operator.recover()
    assert "app.id" in str(refused.value)
    assert operator.control() == before
    for name, data in kept.items():
        blobs.create(name)
        blobs.append(name, data, 0)
    operator.put(control_blob.encode(replace(before, group_id="ab" * 16)))
    with pytest.raises(ConfigError, match="2 groups"):
        operator.recover()


def both(act: Callable[[], str]) -> list[str]:
    """What two at the same time say."""
    said: list[str] = []

    def one() -> None:
        try:
            said.append(act())
        except ConfigError as error:
            said.append(str(error))

    threads = [threading.Thread(target=one) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return said
