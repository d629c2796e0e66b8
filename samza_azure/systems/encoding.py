"""From rows to bytes: each row of a stream that goes outside becomes one message.

Promised: the same row becomes the same bytes again, and `parsing` reads them back as the same row, or refuses it: one
with a year after 9999. In JSON bytes are base64, and what is no UTF-8 in a text is replaced.
"""

from collections.abc import Mapping, Sequence

import pyarrow as pa

from samza_azure.errors import ConfigError
from samza_azure.stream_io.values.json_lines import lines_of
from samza_azure.systems.api import SystemStream
from samza_azure.systems.options import BODY, FORMAT, JSON, RAW

#: With `format = "raw"`: what else a message has.
PROPERTIES = "properties"


class Encoder:
    """Makes messages of the rows of one stream, as its options say."""

    def __init__(self, stream: SystemStream) -> None:
        """Raise ConfigError for a wrong option, or for columns that no message holds."""
        key, given = f"streams.{stream.name}.options.{FORMAT}", stream.options.get(FORMAT, JSON)
        if given not in (JSON, RAW):
            raise ConfigError(f"{key} is {given!r}. Write {JSON} or {RAW}, for a stream that is written.")
        self._is_raw = given == RAW
        if not self._is_raw:
            return
        types = {field.name: field.type for field in stream.schema}
        if not _is_bytes(types.get(BODY)):
            raise ConfigError(
                f"{key} is {RAW!r}, so the stage that writes the stream needs a column {BODY!r} of bytes or text; it "
                f"has {', '.join(types)}."
            )
        texts = pa.map_(pa.string(), pa.string())
        if PROPERTIES in types and types[PROPERTIES] != texts:
            raise ConfigError(f"{key} is {RAW!r}, so the column {PROPERTIES!r} should be a map<string, string>.")
        if unknown := [name for name in types if name not in (BODY, PROPERTIES)]:
            raise ConfigError(
                f"{key} is {RAW!r}, which sends the columns {BODY} and {PROPERTIES}, and the stage also writes "
                f"{', '.join(unknown)}. Leave them out, or write {JSON!r}."
            )

    def bodies(self, rows: pa.Table) -> Sequence[bytes | None]:
        """The bytes of each row; None where the body is null, as it may be with `raw`."""
        if self._is_raw:
            bodies: list[bytes | None] = rows[BODY].cast(pa.binary()).to_pylist()
            return bodies
        return [line.encode(errors="replace") for line in lines_of(rows)]

    def properties(self, rows: pa.Table) -> Sequence[Mapping[str, str]]:
        """What else the message of each row has."""
        if not self._is_raw or PROPERTIES not in rows.column_names:
            return [{}] * rows.num_rows
        return [{name: value or "" for name, value in each or ()} for each in rows[PROPERTIES].to_pylist()]


def _is_bytes(kind: pa.DataType | None) -> bool:
    return kind is not None and (pa.types.is_binary(kind) or pa.types.is_string(kind))
