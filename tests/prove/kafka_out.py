"""From topic to job to topic to job, while the tasks of both jobs are killed, wake up late, lose answers and
connections, and go through drains: the last log must hold each message once, and with transactions so must the topic
between the jobs, for a reader of committed ones (`tests/kafka/chain.py`).

python tests/prove/kafka_out.py [--seeds 30] [--seed N] [--events 600]

Each seed plays with transactions and without. A failing run prints its seed.
"""

import sys
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.kafka.chain import play
from tests.storage.chain import main


def both(seed: int, events: int) -> Counter[str]:
    """With transactions and without."""
    return play(seed, events, in_transactions=True) + play(seed, events, in_transactions=False)


if __name__ == "__main__":
    main("kafka_out.py", both)
