"""What the machinery of drains costs a job that does not drain: the example as it is, and with all of it taken out.

Taken out are the gate that sources look at before each batch, their acknowledgements, and what the container does with
these several times a second (`without_drain/sitecustomize.py`). A part of it is for releases and idleness as well, so
what is measured is rather too much. The two ways take turns.
"""

import os
from pathlib import Path

from common import Claim, flights, main, middle
from throughput import Speed, run_ours

#: It may take so much of the pipeline's throughput.
MOST = 0.01
WITHOUT = "SAMZA_AZURE_WITHOUT_DRAIN"


def measure(quick: bool) -> list[Claim]:
    """Each way in turn, several times."""
    years, rounds = (2, 1) if quick else (8, 7)
    rows = flights(years)
    path = os.environ.get("PYTHONPATH", "")
    found: dict[bool, list[Speed]] = {True: [], False: []}
    for number in range(rounds):
        for is_there in (True, False) if number % 2 == 0 else (False, True):
            try:
                if not is_there:
                    os.environ["PYTHONPATH"] = f"{Path(__file__).with_name('without_drain')}{os.pathsep}{path}"
                    os.environ[WITHOUT] = "1"
                found[is_there].append(run_ours(rows))
            finally:
                os.environ["PYTHONPATH"] = path
                os.environ.pop(WITHOUT, None)
    clock = {name: middle([speed.by_clock for speed in speeds]) for name, speeds in found.items()}
    processor = {name: middle([speed.by_processor for speed in speeds]) for name, speeds in found.items()}
    share = 1 - processor[True] / processor[False]
    return [
        *(
            Claim(
                f"both stages, {'as they are' if name else 'nothing of drains'}",
                f"{clock[name]:,.0f} rows/s, {processor[name]:,.0f} per CPU second",
            )
            for name in (True, False)
        ),
        Claim("drains cost a job without one, of the CPU time", f"{share:+.1%}", f"{MOST:.0%}", share <= MOST),
        Claim("the same by the clock", f"{1 - clock[True] / clock[False]:+.1%}"),
    ]


if __name__ == "__main__":
    main(measure, __doc__)
