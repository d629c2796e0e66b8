"""Messages from outside that are no rows: they are put aside in the record that they came with, and kept in a stream of
their own, `<stream>-dead`.
"""

import pyarrow as pa

from samza_azure.application import Collector, Envelope
from samza_azure.errors import SamzaAzureError
from samza_azure.stream_io import ddl

#: What is kept of each: its bytes, why it is no row, where it was, and when it came.
SCHEMA_DDL = "raw binary, reason string, place string, time timestamp"
SCHEMA: pa.Schema = ddl.arrow_schema(SCHEMA_DDL)


def too_many(stream: str, number: int, most: int, place: str, reason: str) -> SamzaAzureError:
    """So many messages of a stream are no rows, and one record takes fewer. `place` and `reason` are of the last."""
    return SamzaAzureError(
        f"{number} messages of stream {stream!r} are no rows, and one record takes {most} such, as "
        f"streams.{stream}.dead_letters says. The last, {place}: {reason} None of them is in the log. Mend who writes "
        "them or how they are read, or write a greater number."
    )


class Keep:
    """The low-level task of `<stream>-dead`."""

    def process(self, envelope: Envelope, collector: Collector) -> None:
        collector.send(envelope.row)
