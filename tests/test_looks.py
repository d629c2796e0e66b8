"""How often the end of what is silent is looked at."""

from itertools import pairwise

import pytest

from samza_azure.systems import looks
from samza_azure.systems.looks import Look


@pytest.mark.parametrize(("is_dear", "most"), [(False, 200), (True, 35)])
def test_a_look_that_is_dear_becomes_seldom(monkeypatch: pytest.MonkeyPatch, *, is_dear: bool, most: int) -> None:
    """In a quarter of an hour of silence, and every five seconds until an input may count as idle."""
    now, looked_at = [0.0], [0.0]
    monkeypatch.setattr(looks, "boot_time", lambda: now[0])
    look = Look(lambda: looked_at.append(now[0]), "It is not known.", is_dear=is_dear)
    look.heard()
    for second in range(900):
        now[0] = float(second)
        look.see(looked_at[-1])
        if look._looking is not None:
            look._looking.result(60)
    gaps = [later - before for before, later in pairwise(looked_at)]
    assert gaps[:3] == [5.0] * 3 and most - 30 < len(gaps) < most
    assert max(gaps) == (60.0 if is_dear else 5.0)
