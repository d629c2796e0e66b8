"""A low-level task: one message at a time goes to an object of its own, here one that tells people of late flights.

After a crash somebody may be told twice; each row is in the stream `alerts` exactly once.

    samza-azure dev examples/lowlevel/job.toml
    samza-azure produce examples/lowlevel/job.toml flights flights.parquet
    samza-azure follow examples/lowlevel/job.toml alerts --from earliest
"""

import asyncio
import json
from datetime import timedelta

from samza_azure import Application, Collector, Envelope, TaskCoordinator

app = Application()
LATE_MINUTES = 120
SUMMARY_AFTER = timedelta(minutes=1)


async def tell(text: str) -> None:
    """Whoever waits for the flight: a request to some service."""
    await asyncio.sleep(0.001)


@app.task("flights", output="alerts", max_concurrency=16)
class Alert:
    """Up to 16 requests are under way at once. How many people were told survives restarts and moves."""

    def __init__(self) -> None:
        self.told = self.lately = 0

    async def process(self, envelope: Envelope, collector: Collector, coordinator: TaskCoordinator) -> None:
        """One flight."""
        delay = envelope.row["dep_delay"]
        if delay is not None and delay > LATE_MINUTES:
            text = f"{envelope.row['carrier']} of {envelope.row['ts']:%d %B, %H:%M} is {delay / 60:.1f} hours late"
            await tell(text)
            if not self.lately:
                coordinator.set_timer("summary", SUMMARY_AFTER)
            self.told += 1
            self.lately += 1
            collector.send({"text": text, "number": 1})

    def on_timer(self, key: str, collector: Collector) -> None:
        """A minute is over, or the run is drained: then the last minute is shorter."""
        collector.send({"text": "told in a minute", "number": self.lately})
        self.lately = 0

    def on_drain(self, collector: Collector) -> None:
        """Every flight that was read is done, no request is under way, and all timers have fired."""
        collector.send({"text": "told in this run", "number": self.told})

    def snapshot(self) -> bytes:
        """With each commit."""
        return json.dumps([self.told, self.lately]).encode()

    def restore(self, state: bytes) -> None:
        """As the last commit had it."""
        self.told, self.lately = json.loads(state)
