"""A processor whose Spark is on a cluster of three workers, through deaths and departures: equal to the batch.

python tests/prove/cluster.py [--rows 60000] [--state memory] [--state rocksdb] [--hidden]

The workers have addresses of their own. With `--hidden`, which needs root, they do not see the processor's folder
either. One stage calls a Python function, the next one has windows and calls it, too. Batches wait at the function
while a strike is made: their executors are killed (kill -9), their workers are decommissioned by SIGTERM, a worker is
killed with its executor, and all old workers are decommissioned at once, after two others have come. Before that the
processor is killed and started again. What each of these took is printed, with the tasks of Spark that failed of it:
some do of a kill, none of a decommissioning, and never a whole stage.
"""

import argparse
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "flights"))

import pyarrow.parquet as pq
from flights import write

from tests.end_to_end import clusters, real_processes


def main() -> None:
    """Each kind of state once."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rows", type=int, default=60_000)
    options.add_argument("--state", action="append", choices=["memory", "rocksdb"])
    options.add_argument("--hidden", action="store_true")
    asked = options.parse_args()
    real_processes.PATIENCE_S = clusters.PATIENCE_S = 900.0  # a proof may run beside much else
    for state in asked.state or ["memory", "rocksdb"]:
        with TemporaryDirectory(prefix="samza-azure-cluster-") as folder:
            write(Path(folder, "flights.parquet"))
            flights = pq.read_table(Path(folder, "flights.parquet"))
            clusters.play(Path(folder), flights, asked.rows, state, hidden=asked.hidden)


if __name__ == "__main__":
    main()
