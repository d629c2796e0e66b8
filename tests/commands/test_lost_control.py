"""A control blob that is lost while no processor runs: its copies say how far the sources were read, and stay right."""

import asyncio
import gzip
import json
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from azure.storage.blob import BlobClient

from samza_azure import Config, SourceWriter
from samza_azure.commands.azurite.emulator import Azurite
from samza_azure.commands.backlog import ends_of
from samza_azure.commands.delete import delete_stream
from samza_azure.commands.recover import recover
from samza_azure.errors import ConfigError, CorruptState, StateLost, TooOld
from samza_azure.group import control as control_blob
from samza_azure.group.control import NAME, Control, RunPhase
from samza_azure.host.copies import KEPT, copy_name, keep_copy
from samza_azure.host.runs import RunLogs
from samza_azure.logs.names import COPIES
from samza_azure.storage.connection import Account

JOB = """
app = {{ name = "{name}", main = "none:none" }}
azure.storage.connect = "{connect}"

[streams.orders]
partitions = 1
schema = "id BIGINT"
"""


class Drained:
    """A job with five rows, which a drained run has read. Its run has left no logs, as one that writes into tables."""

    def __init__(self, emulator: Azurite, folder: Path) -> None:
        self.emulator, path = emulator, folder / "job.toml"
        path.write_text(JOB.format(name=f"lost{uuid.uuid4().hex[:12]}", connect=emulator.connection_string))
        self.path, self.config = path, Config.load(path)
        self.produce(0)
        self.account = Account.from_config(self.config.storage)
        self.blobs = self.account.blobs()
        self.control = Control(
            group_id="a" * 32, revision=40, version=30, epoch=3, run_id="r1", phase=RunPhase.DRAINED,
            sources={"orders": 1}, positions=ends_of(self.blobs, ["orders/0"]), past=("r1",),
        )  # fmt: skip
        for revision in range(41 - KEPT, 41):
            keep_copy(self.blobs, replace(self.control, revision=revision))

    def produce(self, first: int) -> None:
        with SourceWriter.from_job(self.path, "orders") as writer:
            writer.write(pa.table({"id": range(first, first + 5)}))

    def put(self, name: str, data: bytes) -> None:
        BlobClient.from_connection_string(
            self.emulator.connection_string, self.config.storage.container, name
        ).upload_blob(data, overwrite=True)

    def recovered(self) -> Control:
        recover(self.config, Account.from_config(self.config.storage), yes=True)
        return control_blob.decode(bytes(self.blobs.read(NAME, 0).data))  # type: ignore[union-attr]


@pytest.fixture
def drained(emulator: Azurite, tmp_path: Path) -> Iterator[Drained]:
    made = Drained(emulator, tmp_path)
    yield made
    made.account.close()


def test_no_group_begins_beside_copies_of_another(drained: Drained) -> None:
    """It would read the sources once more from their beginning, and its rows would be doubled."""
    with pytest.raises(StateLost, match="samza-azure recover JOB"):
        asyncio.run(RunLogs(drained.blobs).refuse_if_any())


def test_a_copy_is_kept_beside_later_ones_of_another_group(drained: Drained) -> None:
    for revision in (2, 3):
        keep_copy(drained.blobs, replace(drained.control, group_id="b" * 32, revision=revision))
    names = [name for name, _ in drained.blobs.list(COPIES)]
    assert (names[0], len(names), names[-1]) == (copy_name(3), KEPT, copy_name(40))


def test_a_stream_that_was_deleted_and_filled_again_is_read_from_its_beginning(drained: Drained) -> None:
    drained.put(NAME, control_blob.encode(drained.control))
    delete_stream(drained.config, drained.account, "orders", yes=True)
    drained.produce(100)
    drained.blobs.delete(NAME)
    assert drained.recovered().positions == {}


def test_no_stream_is_deleted_while_nobody_knows_who_reads_it(drained: Drained) -> None:
    with pytest.raises(ConfigError, match="samza-azure recover"):
        delete_stream(drained.config, drained.account, "orders", yes=True)
    assert ends_of(drained.blobs, ["orders/0"]) == drained.control.positions


@pytest.mark.parametrize("number", [1 << 48, (1 << 63) - 1, 10**30, -5])
def test_a_copy_with_absurd_numbers_is_left_out(drained: Drained, number: int) -> None:
    """No row could hold what follows it, so no processor could lead."""
    drained.put(f"{COPIES}{'9' * 16}", control_blob.encode(replace(drained.control, revision=number, epoch=number)))
    assert 40 < drained.recovered().revision < 1 << 48


def test_older_copies_than_one_of_a_later_release_bring_nothing_back(drained: Drained) -> None:
    fields = json.loads(gzip.decompress(control_blob.encode(replace(drained.control, run_id="r9"))))
    drained.put(copy_name(41), gzip.compress(json.dumps(fields | {"format": 99}).encode()))
    with pytest.raises(TooOld, match="control/0000000000000041"):
        drained.recovered()
    keep_copy(drained.blobs, replace(drained.control, revision=42))
    assert drained.recovered().revision > 42


def test_many_sources_with_many_partitions_are_refused() -> None:
    """2.5 KB would become 100 million names."""
    many = Control(group_id="a" * 32, sources={f"s{number}": 100_000 for number in range(1000)})
    with pytest.raises(CorruptState):
        control_blob.decode(control_blob.encode(many))
