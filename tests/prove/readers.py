"""A reader is killed (-9) at random moments and goes on from its token, while rows come in.

python tests/prove/readers.py [--kills 20] [--seed N]

The reader stores the rows of each table and the token beside it in one transaction of SQLite. In the end it has what an
export has, each row once. A second reader, which is not killed, measures how long after its append a row is seen: at
most 1.5 s in a log that it knows, on a machine that is not busy with other things. A failing run prints its seed.
"""

import argparse
import random
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

import pyarrow as pa  # noqa: E402  (needs the path above)

from samza_azure.account import Secret, Storage  # noqa: E402
from samza_azure.commands.azurite.emulator import Azurite  # noqa: E402
from samza_azure.storage.connection import Account  # noqa: E402
from samza_azure.stream_io.reader import Reader  # noqa: E402
from samza_azure.stream_io.source_stream import SourceWriter  # noqa: E402
from tests.storage.stored_rows import batches_of  # noqa: E402

SEEN_S = 1.5
#: Rows of one append, and the time between two.
ROWS, EVERY_S = 20, 0.1


def account(connect: str, name: str) -> Account:
    return Account.from_config(Storage(Secret(connect), None, f"c{name}", f"t{name}"))


def read(connect: str, name: str, database: str) -> None:
    """The reader that is killed: rows and token in one transaction."""
    with sqlite3.connect(database) as stored:
        stored.execute("create table if not exists rows (v integer)")
        stored.execute("create table if not exists token (text)")
        token = next((text for (text,) in stored.execute("select text from token")), "")
    print("reads", flush=True)
    reader = Reader(account(connect, name).blobs(), "s", token=token, table_bytes=2_000)
    for table in reader:
        with stored:
            stored.executemany("insert into rows values (?)", [(value,) for value in table["v"].to_pylist()])
            stored.execute("delete from token")
            stored.execute("insert into token values (?)", (reader.token,))


class Play:
    """A producer and the reader that measures, each on a thread of its own."""

    def __init__(self, place: Account) -> None:
        self.place, self.over = place, threading.Event()
        self.number = 0
        self.appended: dict[int, float] = {}  # the first row of an append, and when it was reported as stored
        self.took: list[float] = []

    def produce(self) -> None:
        writer = SourceWriter(self.place.blobs(), self.place.hints(), "s", 3)
        while not self.over.is_set():
            at = time.monotonic()
            writer.write(pa.table({"v": range(self.number, self.number + ROWS)}))
            self.appended[self.number] = at  # before it is sent: what is measured is rather too long
            writer.flush()
            self.number += ROWS
            self.over.wait(EVERY_S)
        writer.close()

    def measure(self) -> None:
        seen = 0
        for table in Reader(self.place.blobs(), "s"):
            now = time.monotonic()
            firsts = [value for value in table["v"].to_pylist() if value in self.appended]
            self.took += [now - self.appended[value] for value in firsts]
            seen += table.num_rows
            if self.over.is_set() and seen >= self.number:
                return


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    parser.add_argument("--read", nargs=3, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.read:
        read(*chosen.read)
        return 0
    print(f"seed {chosen.seed}", flush=True)
    chance, name = random.Random(chosen.seed), uuid.uuid4().hex
    with Azurite().start() as azurite, tempfile.TemporaryDirectory() as folder:
        place, database = account(azurite.connection_string, name), str(Path(folder) / "stored.db")
        place.ensure_created()
        SourceWriter(place.blobs(), place.hints(), "s", 3).close()  # readers look for new logs every five seconds
        play = Play(place)
        threads = [threading.Thread(target=each) for each in (play.produce, play.measure)]
        for thread in threads:
            thread.start()
        command = [sys.executable, __file__, "--read", azurite.connection_string, name, database]
        for _ in range(chosen.kills):
            with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
                assert process.stdout is not None
                process.stdout.readline()
                time.sleep(chance.uniform(0.0, 1.5))  # the random moment
                process.kill()
        play.over.set()
        for thread in threads:
            thread.join()
        exported = [value for batch in batches_of(place.blobs(), "s") for value in batch["v"].to_pylist()]
        with subprocess.Popen(command) as process:
            while len(stored(database)) < len(exported):
                time.sleep(0.1)  # the pace of asking
            process.kill()
        found = stored(database)
        place.close()
    took = sorted(play.took)
    print(
        f"{chosen.kills} kills, {len(found)} rows, each once; seen after {took[len(took) // 2]:.2f} s in the median, "
        f"{took[int(len(took) * 0.99)]:.2f} s at the 99th percentile, {took[-1]:.2f} s at most"
    )
    if sorted(found) != list(range(play.number)) or sorted(exported) != sorted(found):
        print("The rows that were stored are not those of the stream.")
        return 1
    if took[-1] > SEEN_S:
        print(f"A row was seen later than {SEEN_S} s after its append.")
        return 1
    return 0


def stored(database: str) -> list[int]:
    """The rows that the reader has stored."""
    with sqlite3.connect(database) as rows:
        return [value for (value,) in rows.execute("select v from rows")]


if __name__ == "__main__":
    sys.exit(main())
