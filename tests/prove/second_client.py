"""Microsoft's client for JavaScript, @azure/event-hubs, sends to the fake of Event Hubs and receives from it. So the
fake is not only what the SDK of Python and we make of it.

python tests/prove/second_client.py [--events 3000]

What it has sent, what it receives, and what our connector reads must be equal, in the same order of each partition; and
it must receive what our connector sends.
"""

import argparse
import base64
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import pyarrow as pa

from samza_azure import SystemStream, SystemWriter
from samza_azure.commands.azurite.emulator import find_node
from samza_azure.eventhubs.connector import EventHubsFactory
from samza_azure.eventhubs.emulator import EventHubs
from samza_azure.stream_io import ddl

ROOT = Path(__file__).parents[2]
PACKAGE, VERSION = "@azure/event-hubs", "6.0.4"
PARTITIONS, PATIENCE_S = 4, 180.0
READ = "body binary, sequence_number bigint, offset string, enqueued_time timestamp, partition_key string, "
READ += "properties map<string, string>"


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--events", type=int, default=3_000)
    count: int = options.parse_args().events
    packages = installed()
    with EventHubs({"hub": PARTITIONS}) as hubs:
        sent = client(hubs, packages, "send", count)
        received = client(hubs, packages, "receive", count)
        read = read_by_us(hubs, count)
        assert in_order(received) == in_order(read), "it receives something else than we read"
        named = ("id", "body", "key")
        shown = [{name: event[name] for name in named} for event in received]
        assert sorted(shown, key=number) == sorted(sent, key=number), "it receives something else than it has sent"
    with EventHubs({"hub": PARTITIONS}) as hubs:
        bodies = send_by_us(hubs, count)
        found = [base64.b64decode(event["body"]) for event in client(hubs, packages, "receive", count)]
        assert sorted(found) == sorted(bodies), "it receives something else than we have sent"
    print(f"{count:,} events of {PACKAGE} {VERSION}: it receives them, and so do we; and it receives what we send")


def installed() -> Path:
    """Its packages, which npm brings once."""
    folder = ROOT / "build" / "second-client"
    packages = folder / "node_modules"
    about = packages / PACKAGE / "package.json"
    if not about.exists() or json.loads(about.read_text())["version"] != VERSION:
        folder.mkdir(parents=True, exist_ok=True)
        npm = [*find_node().npm, "install", "--ignore-scripts", "--no-audit", "--no-fund", "--silent"]
        subprocess.run([*npm, "--prefix", str(folder), f"{PACKAGE}@{VERSION}"], check=True, stdout=sys.stderr)
    return packages


def client(hubs: EventHubs, packages: Path, what: str, count: int) -> list[dict[str, Any]]:
    """What the client says of each event that it sends or receives."""
    script = Path(__file__).with_suffix(".js")
    environment = {**os.environ, "EVENTHUBS": hubs.connection_string, "PACKAGES": str(packages)}
    ran = subprocess.run(
        [find_node().program, script, what, str(count)],
        env=environment, stdout=subprocess.PIPE, text=True, check=True, timeout=PATIENCE_S,
    )  # fmt: skip
    found = [json.loads(line) for line in ran.stdout.splitlines()]
    assert len(found) == count, f"{len(found)} of {count} events"
    return found


def read_by_us(hubs: EventHubs, count: int) -> list[dict[str, Any]]:
    """What our connector reads, in the words of the client."""
    envelope = ", ".join(name for name in ddl.arrow_schema(READ).names if name != "body")
    given = {"connect": hubs.connection_string, "name": "hub", "format": "raw", "envelope": envelope}
    consumer = EventHubsFactory().get_consumer(
        SystemStream("s", PARTITIONS, ddl.arrow_schema(READ), given, Path(), owner=1024)
    )
    for partition in range(PARTITIONS):
        consumer.open(partition, (0, 0))
    found, end = list[dict[str, Any]](), time.monotonic() + PATIENCE_S
    while len(found) < count:
        assert time.monotonic() < end, f"{len(found)} of {count} events"
        if (rows := consumer.read()) is None:
            time.sleep(0.01)
            continue
        found += [
            {
                "id": dict(row["properties"]).get("id"),
                "body": base64.b64encode(row["body"]).decode(),
                "key": row["partition_key"],
                "partition": rows.partition,
                "number": row["sequence_number"],
                "offset": row["offset"],
                "ms": round(row["enqueued_time"].timestamp() * 1000),
            }
            for row in rows.table.to_pylist()
        ]
    consumer.close()
    return found


def send_by_us(hubs: EventHubs, count: int) -> list[bytes]:
    """The bodies of what our connector sends."""
    schema = pa.schema([("body", pa.binary())])
    given = {"connect": hubs.connection_string, "name": "hub", "format": "raw"}
    producer = EventHubsFactory().get_producer(SystemStream("s", 1, schema, given, Path(), is_output=True))
    producer.open(SystemWriter("g:r:out-0", PARTITIONS, 1))
    bodies = [b"\x00\xff %d" % each for each in range(count)]
    assert not producer.send(0, pa.table({"body": bodies}, schema=schema))
    producer.flush()
    producer.close()
    return bodies


def in_order(events: list[dict[str, Any]]) -> dict[int, list[dict[str, Any]]]:
    """Those of each partition, as they came."""
    return {each: [event for event in events if event["partition"] == each] for each in range(PARTITIONS)}


def number(event: dict[str, Any]) -> int:
    return int(event["id"])


if __name__ == "__main__":
    main()
