"""Every order of events, as deep as the time allows: python tests/prove/model.py [--seconds S] [--states N].

Prints what each fence is for, with the states that were tried and the verdict: first the claims that `make test` checks
and those that it has no time for, then larger models, as far as they come. Ends with 1 if a claim is wrong, and tells
the shortest way there.
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.model.checker import Result, check
from tests.model.fences import ALL, CLAIMS, HEADER, LARGER, WHOLE, Claim, row


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=240.0, help="for what goes on without end")
    parser.add_argument("--states", type=int, default=3_000_000, help="at once, in memory; a million take a gigabyte")
    parser.add_argument("--stories", action="store_true", help="tell the shortest way to each violation")
    asked = parser.parse_args()
    print(HEADER)
    wrong = 0
    for claim in (*CLAIMS, *WHOLE):
        result = check(claim.model(), depth=claim.depth)
        wrong += not told(claim, result, claim.holds(result), asked.stories)
    print("\nFurther:")
    further = [*(claim for claim in CLAIMS if claim.depth < ALL), *LARGER]
    for claim in further:
        result = check(claim.model(), seconds=asked.seconds / len(further), states=asked.states)
        wrong += not told(claim, result, result.violation is None, asked.stories)
    print(f"\n{wrong} claims are wrong" if wrong else "\nAll claims hold")
    return 1 if wrong else 0


def told(claim: Claim, result: Result, holds: bool, stories: bool) -> bool:
    """Print what was found."""
    print(row(claim, result) + ("" if holds else "  WRONG"), flush=True)
    if result.violation and (stories or not holds):
        print(result.story(), flush=True)
    return holds


if __name__ == "__main__":
    sys.exit(main())
