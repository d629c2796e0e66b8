"""Processors of the last release and of today's code in one group: all is well and every log is exact, whichever of
them leads.

`releases/` holds what a member needs of each release that is pinned. The next release does not exist yet: what it may
write is written here, into a real blob and by a real leader.
"""

import gzip
import json
import uuid
import zipfile
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from samza_azure.commands.azurite.emulator import Azurite
from samza_azure.errors import TooOld
from samza_azure.group.rows import LEADER, MEMBERS, ProcessorState, leader_row, processor_row
from samza_azure.group.timing import LEASE_S
from samza_azure.outcomes import Refused
from samza_azure.storage.interface import Content

from .group_members import GroupOnAzurite

RELEASES = sorted((Path(__file__).parent / "releases").glob("*.zip"))
#: They stay: their processors may be out there.
PINNED = {"45062d0"}
CALL_S = 5.0
T = TypeVar("T")


@pytest.fixture
def group(emulator: Azurite) -> Iterator[GroupOnAzurite]:
    """A group that shares six tasks, without members yet."""
    made = GroupOnAzurite(emulator, tasks=6, profile="default")  # a timeout that also a busy machine keeps
    yield made
    made.close()


@pytest.fixture(params=RELEASES, ids=lambda path: path.stem)
def release(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The code of a pinned release, unpacked: so it is compiled once, and not at each start."""
    with zipfile.ZipFile(request.param) as pinned:
        pinned.extractall(tmp_path)
    return tmp_path


def starts(group: GroupOnAzurite, release: Path, *names: str) -> None:
    """Start members of a release. They are not forked from a process that has loaded everything, so it takes longer."""
    group.start(*names, release=release)
    group.until(lambda: f"{names} have not joined", lambda: all(group.members[name].of("version") for name in names))


class Writer:
    """Writes the control blob, with a lease as a leader has it."""

    def __init__(self, group: GroupOnAzurite) -> None:
        self._blob, self._run = group.account.control_blob(), group.runner.run
        self.lease = str(uuid.uuid4())

    def _done(self, call: Awaitable[T]) -> T:
        async def wait() -> T:
            return await call

        answer = self._run(wait())
        assert not isinstance(answer, Refused), answer
        return answer

    def read(self) -> tuple[dict[str, Any], str]:
        """The blob's JSON, and its ETag."""
        content = self._done(self._blob.read(timeout=CALL_S))
        assert isinstance(content, Content)
        return json.loads(gzip.decompress(content.data)), content.etag

    def write(self, changed: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
        """Depose the present leader, and write the blob once."""
        self._run(self._blob.break_now(timeout=CALL_S))  # a refusal means that the blob has no lease
        self._done(self._blob.acquire(self.lease, seconds=LEASE_S, timeout=CALL_S))
        fields, etag = self.read()
        data = gzip.compress(json.dumps({**changed(fields), "revision": fields["revision"] + 1}).encode())
        self._done(self._blob.write(data, etag=etag, lease_id=self.lease, timeout=CALL_S))
        self._done(self._blob.release(self.lease, timeout=CALL_S))


def test_each_release_that_was_pinned_is_there() -> None:
    assert {path.stem for path in RELEASES} == PINNED


@pytest.mark.long  # tests/group/golden has what each format means
def test_a_group_of_two_releases_works_whichever_of_them_leads(group: GroupOnAzurite, release: Path) -> None:
    starts(group, release, "old0", "old1")
    assert group.settled()["leader"] in ("old0", "old1")
    group.start("new0", "new1")
    group.settled()
    group.kill("old0", "old1")
    assert group.settled()["leader"] in ("new0", "new1")
    starts(group, release, "old0", "old1")
    group.settled()
    group.kill("new0", "new1")
    assert group.settled()["leader"] in ("old0", "old1")


@pytest.mark.long  # what is read and kept, tests/group/test_later_release.py shows
def test_fields_of_a_later_release_outlive_leaders_of_this_one(group: GroupOnAzurite) -> None:
    """In the control blob at its root and with a task, and in the leader's row."""
    group.start("p0", "p1")
    group.settled()
    writer = Writer(group)
    added = {"since_then": {"a": [1]}}

    def changed(fields: dict[str, Any]) -> dict[str, Any]:
        fields["tasks"] = {task: each | added for task, each in fields["tasks"].items()}
        return fields | added | {"leader": None, "successor": None}

    writer.write(changed)
    rows = group.account.rows()
    row = group.runner.run(rows.get(LEADER, LEADER, timeout=CALL_S))
    while row is None or isinstance(
        group.runner.run(rows.merge(LEADER, LEADER, {"since_then": 1}, etag=row.etag, timeout=CALL_S)), Refused
    ):
        row = group.runner.run(rows.get(LEADER, LEADER, timeout=CALL_S))
    before = group.settled()
    group.start("p2")
    group.settled()
    group.kill(before["leader"])
    after = group.settled()
    assert after["epoch"] > before["epoch"]
    fields, _ = writer.read()
    assert fields["since_then"] == added["since_then"]
    assert [each["since_then"] for each in fields["tasks"].values()] == [added["since_then"]] * 6
    row = group.runner.run(rows.get(LEADER, LEADER, timeout=CALL_S))
    assert row is not None
    assert row.values["since_then"] == 1
    assert leader_row(row.etag, row.values).epoch == after["epoch"]


@pytest.mark.long  # what is read and kept, tests/group/test_later_release.py shows
def test_processors_that_are_too_old_release_their_tasks_and_stand_by(group: GroupOnAzurite) -> None:
    group.start("p0", "p1", "p2")
    group.settled()
    writer = Writer(group)
    writer.write(lambda fields: fields | {"format": 2, "leader": None, "successor": None})

    def stand_by() -> bool:
        found = group.runner.run(group.account.rows().query(MEMBERS, timeout=CALL_S))
        rows = [processor_row(row.key, row.etag, row.values) for row in found]
        return [(row.state, row.too_old_for, row.tasks) for row in rows] == [(ProcessorState.LEAVING, 2, {})] * 3

    group.until(lambda: "they do not all stand by", stand_by)
    assert group.alive == ["p0", "p1", "p2"]
    with pytest.raises(TooOld, match=r"control.json has format 2 of a later samza-azure; this one knows 1"):
        group.status()
    fields, _ = writer.read()
    assert fields["leader"] is None
    writer.write(lambda fields: fields | {"format": 1})
    for name in ("p0", "p1", "p2"):
        group.leave(name)
    group.start("p0", "p1", "p2")
    group.settled()
