"""Rows drawn from a seed come back as they were; bytes near to them are a row or refused, whatever is beside them."""

from pathlib import Path
from random import Random

import pytest

from .drawn import mutated, stream
from .streams import parsed

SEEDS = [*range(8), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(8, 300))]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("protobuf", [False, True], ids=["avro", "protobuf"])
def test_what_was_written_is_read(seed: int, protobuf: bool, tmp_path: Path) -> None:
    dice = Random(seed)
    drawn = stream(dice, tmp_path, protobuf=protobuf)
    rows = [drawn.draw(dice) for _ in range(30)]
    bodies = [drawn.write(row) for row, _ in rows]
    assert parsed(drawn.reads, [*bodies]) == ([read for _, read in rows], [])
    wrong = [mutated(dice, dice.choice(bodies)) for _ in range(30)]
    together = parsed(drawn.reads, [*wrong])
    alone = [parsed(drawn.reads, [body]) for body in wrong]
    each = [row for found, _ in alone for row in found], [why for _, reasons in alone for why in reasons]
    assert repr(together) == repr(each)  # some are nan
