"""From hub to job to hub to job, while the tasks of both jobs are killed, wake up late, lose answers and connections,
and go through drains: the last log must hold each event once (`tests/eventhubs/chain.py`).

python tests/prove/eventhubs_out.py [--seeds 30] [--seed N] [--events 600]

A failing run prints its seed.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.eventhubs.chain import play
from tests.storage.chain import main

if __name__ == "__main__":
    main("eventhubs_out.py", play)
