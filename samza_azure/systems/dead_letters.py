"""Messages from outside that are no rows: they are put aside in the record that they came with, and kept in a stream of
their own, `<stream>-dead`.
"""

import pyarrow as pa

from samza_azure.application import Collector, Envelope
from samza_azure.stream_io import ddl

#: What is kept of each: its bytes, why it is no row, where it was, and when it came.
SCHEMA_DDL = "raw binary, reason string, place string, time timestamp"
SCHEMA: pa.Schema = ddl.arrow_schema(SCHEMA_DDL)


class Keep:
    """The low-level task of `<stream>-dead`."""

    def process(self, envelope: Envelope, collector: Collector) -> None:
        collector.send(envelope.row)
