"""300 cases of hostile contents; `tests/prove/hostile.py` plays 10,000."""

import resource
import shutil
from collections import Counter
from pathlib import Path

from tests.hostile import contents
from tests.hostile.contents import PLAYS, play

#: More than one case may take at a time.
GROWTH_MAX = 1 << 30
#: What `tests/prove/hostile.py` has found: a place without a record, zones that do not exist, statistics with one bound
#: or none, a control blob that contradicts itself, texts that are no UTF-8, a count without room. Other plays are drawn
#: beside these since.
FOUND = {
    2202: contents.play_restore,
    2774: contents.play_rows,
    2795: contents.play_table,
    3257: contents.play_group,
    4815: contents.play_rows,
    9249: contents.play_table,
    50760: contents.play_table,
}


def test_hostile_contents_are_refused_with_their_place_or_do_no_harm(tmp_path: Path) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    ends: Counter[tuple[str, bool]] = Counter()
    for seed in (*range(300), *FOUND):
        directory = tmp_path / str(seed)
        directory.mkdir()
        try:
            verdict = play(seed, directory, FOUND.get(seed))
        except BaseException as error:
            error.add_note(f"This was the case of seed {seed}.")
            raise
        ends[verdict.play, verdict.is_accepted] += 1
        shutil.rmtree(directory)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10
    assert grown < GROWTH_MAX, f"{grown >> 20} MiB"
    assert all(ends[each.__name__.removeprefix("play_"), False] for each, _ in PLAYS), ends
