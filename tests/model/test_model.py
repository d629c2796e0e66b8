"""Every fence, shown by trying everything: with all of them nothing breaks, without one its invariant does.

Seen with `-s`: the table, and the shortest way to each violation.
"""

import pytest

from tests.model.checker import check
from tests.model.fences import CLAIMS, Claim, row

#: Each of them tries several times as much as the others.
SLOW = {
    "control blob: lease id alone, against other leaders",
    "drain: FLUSH without its ETag",
    "drain: standing still for whichever drain",
    "ending: a stopped run, nothing goes wrong",
    "hand-over: all fences, one fault while a task moves",
}


@pytest.mark.parametrize(
    "claim",
    [pytest.param(each, marks=[pytest.mark.long] * (each.name in SLOW)) for each in CLAIMS],
    ids=lambda claim: claim.name,
)
def test_a_fence_does_what_it_is_for(claim: Claim) -> None:
    result = check(claim.model(), depth=claim.depth)
    print(f"\n{row(claim, result)}")
    if result.violation:
        print(result.story())
    assert claim.holds(result), result.story()
