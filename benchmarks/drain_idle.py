"""What the machinery of drains costs a job that does not drain: its processor time, counted, and the job without it.

That machinery is the gate that sources look at before each batch, their acknowledgements, and what the container does
with these several times a second (`without_drain/sitecustomize.py`). A part of it is for releases and idleness as well,
so what is measured is rather too much. First its processor time is counted while the example runs, as a share of all.
Then the example runs in turns with all of it taken out. Two equal runs differ by several percent, so that comparison
only shows that no cost was overlooked which is larger than this; its spread is printed.
"""

import os
import struct
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from common import Claim, flights, main, middle
from throughput import Speed, run_ours

#: It may take this part of the job's processor time.
MOST = 0.01
METER, WITHOUT = "SAMZA_AZURE_METER_DRAIN", "SAMZA_AZURE_WITHOUT_DRAIN"


def measure(quick: bool) -> list[Claim]:
    """Count, then compare in turns."""
    years, rounds = (2, 1) if quick else (24, 5)
    rows = flights(years)
    metered = []
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(1 if quick else 3):
            with container_with({METER: folder}):
                metered.append(run_ours(rows, lambda: counted(Path(folder))).metered)
    found: dict[bool, list[Speed]] = {True: [], False: []}
    for number in range(rounds):
        for is_there in (True, False) if number % 2 == 0 else (False, True):
            with container_with({} if is_there else {WITHOUT: "1"}):
                found[is_there].append(run_ours(rows))
    pairs = list(zip(found[True], found[False], strict=True))
    clock = sorted(1 - there.by_clock / gone.by_clock for there, gone in pairs)
    processor = sorted(1 - there.by_processor / gone.by_processor for there, gone in pairs)
    share = max(metered)
    return [
        Claim("the machinery of drains, of a job's CPU time, counted", f"{share:.2%}", f"{MOST:.0%}", share <= MOST),
        *(
            Claim(
                f"both stages, {'as they are' if name else 'nothing of drains'}",
                f"{middle([speed.by_clock for speed in speeds]):,.0f} rows/s, "
                f"{middle([speed.by_processor for speed in speeds]):,.0f} per CPU second",
            )
            for name, speeds in found.items()
        ),
        Claim(f"drains cost by the clock, {rounds} pairs", spread(clock)),
        Claim("the same in CPU time", spread(processor)),
    ]


def spread(shares: list[float]) -> str:
    """The middle of sorted shares, the least and the greatest."""
    return f"{middle(shares):+.1%} ({shares[0]:+.1%} to {shares[-1]:+.1%})"


def counted(folder: Path) -> float:
    """The seconds that all processes have counted so far."""
    return sum(struct.unpack("d", each.read_bytes())[0] for each in folder.iterdir() if each.stat().st_size)


@contextmanager
def container_with(environment: dict[str, str]) -> Iterator[None]:
    """Containers that start meanwhile are changed as this environment says."""
    before, path = dict(os.environ), os.environ.get("PYTHONPATH", "")
    try:
        if environment:
            os.environ["PYTHONPATH"] = f"{Path(__file__).with_name('without_drain')}{os.pathsep}{path}"
            os.environ.update(environment)
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


if __name__ == "__main__":
    main(measure, __doc__)
