"""`system = "tail"`: follows local files of JSON lines that grow, one file for each partition, as `tail -f` does.

For development and tests: all processors must see the same files. A row is read once its line has an end. The position
is the offset in bytes, so a file may only grow; one that is shorter than what was read is an error.
"""

import io
import os
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
import pyarrow.json

from samza_azure.errors import ConfigError
from samza_azure.systems.api import SystemPosition, SystemRows, SystemStream

#: The most bytes that are read at once; a longer line is an error.
CHUNK_BYTES = 4 << 20


class TailedFiles:
    """The files of one stream: its admin and its consumer."""

    def __init__(self, stream: SystemStream) -> None:
        path = stream.options.get("path")
        if path is None or (stream.partitions > 1 and "{partition}" not in path):
            example = f"{stream.name}-{{partition}}.jsonl" if stream.partitions > 1 else f"{stream.name}.jsonl"
            raise ConfigError(
                f"streams.{stream.name}.options.path should be the path of a file, and has {{partition}} in it if "
                f'there are several. Write under [streams.{stream.name}]: options.path = "{example}".'
            )
        if unknown := stream.options.keys() - {"path"}:
            raise ConfigError(
                f"streams.{stream.name}.options.{min(unknown)} is not an option of tail, which has path alone. Remove "
                "the line."
            )
        if stream.dead_letters:
            raise ConfigError(
                f"streams.{stream.name}.dead_letters has no effect: tail puts nothing aside. Remove the line."
            )
        self._path, self._directory = path, stream.directory
        texts = [field for field in stream.schema if pa.types.is_string(field.type) or pa.types.is_binary(field.type)]
        self._texts = pa.schema([pa.field(field.name, pa.string()) for field in texts])
        self._names = stream.schema.names
        self._files: dict[int, tuple[Path, BinaryIO | None, int]] = {}
        self._turn = 0

    def partitions(self) -> int | None:
        return None

    def open(self, partition: int, position: SystemPosition) -> None:
        self._files[partition] = self._directory / self._path.replace("{partition}", str(partition)), None, position[1]

    def read(self) -> SystemRows | None:
        """The next lines of a file; each file has its turn."""
        partitions = sorted(self._files)
        for number in range(len(partitions)):
            partition = partitions[(self._turn + number) % len(partitions)]
            if (found := self._lines(partition)) is not None:
                self._turn += number + 1
                return found
        return None

    def close(self) -> None:
        for _, file, _ in self._files.values():
            if file is not None:
                file.close()

    def _lines(self, partition: int) -> SystemRows | None:
        path, file, offset = self._files[partition]
        if file is None:
            try:
                file = path.open("rb")
            except FileNotFoundError:
                return None  # it is not there yet
        file.seek(offset)
        data = file.read(CHUNK_BYTES)
        whole = data[: data.rfind(b"\n") + 1]
        self._files[partition] = path, file, offset + len(whole)
        if not whole:
            if not data and os.fstat(file.fileno()).st_size < offset:
                raise ConfigError(f"{path} is shorter than the {offset} bytes that were read of it. It may only grow.")
            if len(data) == CHUNK_BYTES:
                raise ConfigError(f"{path} has a line of more than {CHUNK_BYTES} bytes, at byte {offset}.")
            return None
        return SystemRows(partition, self._rows(whole, path, offset), (0, offset + len(whole)))

    def _rows(self, lines: bytes, path: Path, offset: int) -> pa.Table:
        options = pyarrow.json.ParseOptions(explicit_schema=self._texts)
        try:
            rows = pyarrow.json.read_json(io.BytesIO(lines), parse_options=options) if lines.strip() else pa.table({})
        except pa.ArrowInvalid as error:
            raise ConfigError(f"{path} has a line behind byte {offset} that is no row in JSON: {error}.") from error
        for name in self._names:
            if name not in rows.column_names:
                rows = rows.append_column(name, pa.nulls(rows.num_rows))
        return rows


class TailFactory:
    """The factory of `system = "tail"`."""

    def get_admin(self, stream: SystemStream) -> TailedFiles:
        return TailedFiles(stream)

    def get_consumer(self, stream: SystemStream) -> TailedFiles:
        return TailedFiles(stream)
