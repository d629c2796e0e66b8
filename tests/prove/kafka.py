"""Two partitions of a topic are read by source task after source task, while connections are cut, answers are lost and
held back, and tasks die and are superseded.

python tests/prove/kafka.py [--seeds 100] [--seed N] [--messages 1000] [--memory 5000000] [--dead 100000]

The log must hold each message once, in order (`tests/kafka/chaos.py`). Each seed also plays against librdkafka's mock
cluster, which refuses requests, ends connections, and deletes messages and topics (`tests/kafka/mock_chaos.py`). A
failing run prints its seed. Then as many messages as `--memory` says go through one consumer, whose memory must stay
flat. At last as many as `--dead` says, one in a hundred of which is no row, go through source tasks that are killed:
rows and dead letters must both be exact. A part with 0 is left out.
"""

import argparse
import random
import sys
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

sys.path.insert(0, str(Path(__file__).parents[2]))

import psutil

from samza_azure.kafka.local_broker import LocalBroker
from tests.kafka import mock_chaos
from tests.kafka.chaos import JOB, PATIENCE_S, play
from tests.kafka.clients import Messages, following
from tests.storage.aside import dead_letters

#: What a consumer may grow by after its first fifth, in MiB.
GROWTH_MIB = 60
MILLION = 1_000_000
BODY = b'{"n": 1, "s": "' + b"x" * 185 + b'"}'


def memory(messages: int) -> None:
    """Read many messages, a part of them at a time, and see that the process does not grow."""
    chunk, own = 100_000, psutil.Process()
    with LocalBroker({"t": 2}) as broker:
        written = Messages.of(broker.brokers, "t", **{"linger.ms": 20})

        def feed() -> None:
            for value in [BODY] * chunk:
                written.producer.produce("t", value, partition=0)
                written.producer.poll(0)
            assert written.producer.flush(PATIENCE_S) == 0

        reading = written.stream()
        read, first, fed, told = 0, 0, 0, 0
        while read < messages:
            if fed == read:
                feed()
                fed += chunk
            rows = following(reading)
            read += rows.table.num_rows
            assert rows.position[1] == read, "a message is missing, or came twice"
            if not first and read >= messages // 5:
                first = own.memory_info().rss
            if read // MILLION > told:
                told = read // MILLION
                print(f"  after {read:,} messages {own.memory_info().rss >> 20} MiB", flush=True)
        reading.close()
    grown = (own.memory_info().rss - first) >> 20
    print(f"{messages:,} messages through one consumer: it has grown by {grown} MiB after the first fifth")
    assert grown < GROWTH_MIB


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--seeds", type=int, default=100)
    options.add_argument("--seed", type=int)
    options.add_argument("--messages", type=int, default=1_000)
    options.add_argument("--memory", type=int, default=5_000_000)
    options.add_argument("--dead", type=int, default=100_000)
    asked = options.parse_args()
    first = random.randrange(1 << 32) if asked.seed is None else asked.seed
    faults: Counter[str] = Counter()
    for seed in range(first, first + (asked.seeds if asked.seed is None else 1)):
        try:
            with TemporaryDirectory() as folder:
                faults += play(seed, asked.messages, Path(folder)).faults
            sys.modules.pop("outside", None)  # the next one lies in another folder
            faults += mock_chaos.play(seed, asked.messages).faults
        except BaseException:
            print(f"python tests/prove/kafka.py --seed {seed} --messages {asked.messages}")
            raise
    print(f"exact; what happened: {dict(faults)}")
    if asked.seed is None and asked.memory:
        memory(asked.memory)
    if asked.seed is None and asked.dead:
        with LocalBroker({"clicks": 2}) as broker, TemporaryDirectory() as folder:
            job = JOB.replace("BROKERS", broker.brokers).replace(
                "partitions = 2", "partitions = 2\ndead_letters = 10000"
            )
            written = Messages.of(broker.brokers, "clicks", **{"enable.idempotence": True})
            dead_letters(random.Random(first), Path(folder), job, written.send, asked.dead, PATIENCE_S)


if __name__ == "__main__":
    main()
