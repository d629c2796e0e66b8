"""A processor whose Spark is on a cluster of three workers, through deaths and departures: equal to the batch.

python tests/prove/cluster.py [--rows 100000] [--state memory] [--state rocksdb] [--hidden]
python tests/prove/cluster.py --stages [--rows 100000] [--state memory] [--state rocksdb] [--hidden]
python tests/prove/cluster.py --leaving [--rows 40000] [--state memory] [--state rocksdb] [--hidden]

The workers have addresses of their own. With `--hidden`, which needs root, they do not see the processor's folder
either. One stage calls a Python function, the next one has windows and calls it, too. Batches wait at the function
while a strike is made: their executors are killed (kill -9), their workers are decommissioned by SIGTERM, a worker is
killed with its executor, and all old workers are decommissioned at once, after two others have come. Before that the
processor is killed and started again, and the master removes its application. What each of these took is printed, with
the tasks of Spark that failed of it: some do of a kill, none of a decommissioning that had computed anything, and never
a whole stage.

With `--stages` there are windows, sessions, a join of two streams, deduplication, a Python function with state, and
with RocksDB a state machine, some in two partitions. Of each a batch loses its executor, or its worker, in its midst.
Then the processor is killed: the next one restores its tasks, and executors load what was restored. The last rows are
too late, which each stage must count.

With `--leaving` a stage with two partitions counts by windows. A worker leaves between batches and in mid-batch, two
leave at once, and the last one of all leaves: told beforehand, when no task of Spark may fail that has computed
anything, and nothing may run twice; and by kill -9.
"""

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp

sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "flights"))

import pyarrow as pa
import pyarrow.parquet as pq
from flights import write

from tests.end_to_end import cluster_leaving, cluster_stages, clusters, real_processes

#: What is played, and with how many rows.
PLAYS = {
    "stages": (cluster_stages.play, 100_000),
    "leaving": (cluster_leaving.play, 40_000),
    "": (clusters.play, 100_000),
}


def main() -> None:
    """Each kind of state once."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--stages", action="store_const", dest="play", const="stages", help="every kind of state")
    options.add_argument("--leaving", action="store_const", dest="play", const="leaving", help="how workers leave")
    options.add_argument("--rows", type=int)
    options.add_argument("--state", action="append", choices=["memory", "rocksdb"])
    options.add_argument("--hidden", action="store_true")
    asked = options.parse_args()
    real_processes.PATIENCE_S = clusters.PATIENCE_S = 900.0  # a proof may run beside much else
    play, rows = PLAYS[asked.play or ""]
    for state in asked.state or ["memory", "rocksdb"]:
        with prepared() as (folder, flights):
            play(folder, flights, asked.rows or rows, state, hidden=asked.hidden)


@contextmanager
def prepared() -> Iterator[tuple[Path, pa.Table]]:
    """A folder, and the flights."""
    folder = Path(mkdtemp(prefix="samza-azure-cluster-"))
    write(folder / "flights.parquet")
    try:
        yield folder, pq.read_table(folder / "flights.parquet")
    except BaseException:
        print(f"What the trial has left, with the logs of master, workers, executors and processor, is in {folder}.")
        raise
    rmtree(folder)


if __name__ == "__main__":
    main()
