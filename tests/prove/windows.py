"""Four partitions of 100,000 events each, through a windowed stage on Spark, while the leader and an owner of tasks are
killed (kill -9): what comes out must equal the batch, each row once, and what is no row must be put aside, each once.

python tests/prove/windows.py [--events 400000] [--over hub] [--over topic]

Over the fake of Event Hubs, and over tansu (`tests/end_to_end/takings.py`).
"""

import argparse
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.end_to_end import real_processes
from tests.end_to_end.takings import over_a_hub, over_a_topic


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--events", type=int, default=400_000)
    options.add_argument("--over", action="append", choices=["hub", "topic"])
    asked = options.parse_args()
    real_processes.PATIENCE_S = 900.0  # a proof may run beside much else
    for over in asked.over or ["hub", "topic"]:
        begun = time.monotonic()
        with TemporaryDirectory(prefix="samza-azure-windows-") as folder:
            if over == "hub":
                over_a_hub(Path(folder), asked.events, by_the_sdk=False)
            else:
                over_a_topic(Path(folder), asked.events)
        print(
            f"{asked.events:,} events over a {over}: equal to the batch; {time.monotonic() - begun:.0f} s", flush=True
        )


if __name__ == "__main__":
    main()
