"""The README of the tests lists the known mistakes as they are."""

from pathlib import Path

from tests.sim.mutants import ELSEWHERE, MUTANTS, Elsewhere, Mutant


def line(mutant: Mutant | Elsewhere) -> str:
    """One row of the table: what was done, whose mistake it was, what must notice."""
    what = " ".join((mutant.mistake.__doc__ or "").partition(": ")[2].split())
    killer = mutant.killed_by if isinstance(mutant, Mutant) else "an ordinary test"
    return f"| {mutant.name} | {mutant.whose} | {killer} | {what} |"


def test_every_known_mistake_has_its_line() -> None:
    text = (Path(__file__).parent / "README.md").read_text()
    section = text.partition("\n## Known mistakes\n")[2].partition("\n## ")[0]
    table = [each for each in section.partition("\n| mutant ")[2].splitlines()[2:] if each]
    assert table == [line(mutant) for mutant in (*MUTANTS, *ELSEWHERE)]
