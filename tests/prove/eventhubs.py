"""A partition of Event Hubs is read by owner after owner, while connections are cut, owners die and are superseded, the
service is throttled or restarts, and events expire.

python tests/prove/eventhubs.py [--seeds 100] [--seed N] [--events 1000] [--memory 1000000] [--dead 100000]

The log must hold each event once, in order (`tests/eventhubs/chaos.py`). A failing run prints its seed. Then as many
events as `--memory` says go through one reader, whose memory must stay flat, the fake's included. At last as many as
`--dead` says, one in a hundred of which is no row, go through source tasks that are killed: rows and dead letters must
both be exact.
"""

import argparse
import random
import sys
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

sys.path.insert(0, str(Path(__file__).parents[2]))

import psutil

from samza_azure.errors import StorageUnavailable, Superseded
from samza_azure.eventhubs.emulator import EventHubs
from samza_azure.eventhubs.hub import EventHub
from samza_azure.eventhubs.partition_reader import PartitionReader
from samza_azure.stream_io.log import LogReader
from samza_azure.tasks.source_task import SourceTask
from tests.eventhubs.chaos import PATIENCE_S, play
from tests.storage.test_source_task import GROUP, PREFIX, Run, turn

#: What a reader may grow by after its first tenth, in MiB.
GROWTH_MIB = 60
BODY = bytes(200)


def memory(events: int) -> None:
    """Read many events, and see that the process does not grow. What was read expires at once."""
    chunk, own = 5_000, psutil.Process()
    with EventHubs({"hub": 1}) as hubs:
        room = threading.Semaphore(4)

        def feed() -> None:
            for _ in range(0, events, chunk):
                room.acquire()
                hubs.send("hub", 0, [BODY] * chunk)

        threading.Thread(target=feed, daemon=True).start()
        read, first = 0, 0
        hub = EventHub("hub", connect=lambda: hubs.connection_string)
        with PartitionReader(hub, "0", "oldest", level=1) as reader:
            while read < events:
                arrival = reader.read(PATIENCE_S)
                assert arrival is not None, f"nothing came after {read} events"
                assert arrival.rows["sequence_number"][0].as_py() == read
                for _ in range((read + arrival.rows.num_rows) // chunk - read // chunk):
                    room.release()
                read += arrival.rows.num_rows
                hubs.trim("hub", 0, read)
                if not first and read > events // 10:
                    first = own.memory_info().rss
    grown = (own.memory_info().rss - first) >> 20
    print(f"{events:,} events through one reader: it has grown by {grown} MiB after the first tenth")
    assert grown < GROWTH_MIB


JOB = """
[app]
name = "hubs"
main = "outside:app"
[azure.storage]
connect = "UseDevelopmentStorage=true"
[task]
[streams.clicks]
system = "eventhubs"
options.connect = "CONNECT"
options.name = "hub"
partitions = 2
dead_letters = 10000
schema = "n bigint not null"
[streams.seen]
schema = "n bigint"
"""


def dead_letters(dice: random.Random, events: int) -> None:
    """Owner after owner puts rows and what is none into its log; a predecessor may still be at it."""
    sent, kills = 0, 0
    zombies: list[SourceTask] = []
    bad = {number for number in range(events) if dice.random() < 0.01}
    with EventHubs({"hub": 2}) as hubs, TemporaryDirectory() as folder:
        run = Run(Path(folder), JOB.replace("CONNECT", hubs.connection_string))
        task = run.owner(first=True)
        end = time.monotonic() + events / 50 + PATIENCE_S
        while sent < events or sum(each.position[1] for each in task._partitions.values()) < events or task._has_moved:
            assert time.monotonic() < end, "no progress"
            numbers = range(sent, min(events, sent + dice.randint(0, 2_000)))
            for partition in range(2):
                own = [n for n in numbers if n % 2 == partition]
                hubs.send("hub", partition, [b"no %d" % n if n in bad else b'{"n": %d}' % n for n in own])
            sent = numbers.stop
            with suppress(StorageUnavailable):
                turn(task)
            if dice.random() < 20 * 1_000 / events:
                kills += 1
                (zombies.append if dice.random() < 0.3 else SourceTask._leaves)(task)
                task = run.owner()
            for zombie in zombies:
                with suppress(StorageUnavailable, Superseded):
                    zombie._turn()
        for each in [task, *zombies]:
            each._leaves()
        assert task._writer is not None
        found = []
        for destinations in ({0, 1}, {2, 3}):  # of rows, and of what is none
            reader = LogReader(run.blobs, PREFIX, frozenset(destinations), group_id=GROUP)
            batches = [
                batch for scan in reader.scans((0, 0), task._writer.position) for batch in reader.rows(scan.parts)
            ]
            found.append(sorted(value for batch in batches for value in batch.column(0).to_pylist()))
        assert found[0] == sorted({*range(events)} - bad), "rows are missing, or twice"
        assert found[1] == sorted(b"no %d" % number for number in bad), "dead letters are missing, or twice"
    print(f"{events - len(bad):,} rows and {len(bad):,} dead letters are exact after {kills} kills")


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--seeds", type=int, default=100)
    options.add_argument("--seed", type=int)
    options.add_argument("--events", type=int, default=1_000)
    options.add_argument("--memory", type=int, default=1_000_000)
    options.add_argument("--dead", type=int, default=100_000)
    asked = options.parse_args()
    first = random.randrange(1 << 32) if asked.seed is None else asked.seed
    faults: Counter[str] = Counter()
    for seed in range(first, first + (asked.seeds if asked.seed is None else 1)):
        try:
            faults += play(seed, asked.events).faults
        except BaseException:
            print(f"python tests/prove/eventhubs.py --seed {seed} --events {asked.events}")
            raise
    print(f"exact; what happened: {dict(faults)}")
    if asked.seed is None:
        memory(asked.memory)
        dead_letters(random.Random(first), asked.dead)


if __name__ == "__main__":
    main()
