"""The README and the changelog are short, and what the two READMEs repeat is as it is elsewhere."""

import re
from pathlib import Path

import pytest

from samza_azure.config import Config
from tests.sim.mutants import ELSEWHERE, MUTANTS, Elsewhere, Mutant

ROOT = Path(__file__).parents[1]


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


def test_the_job_file_of_the_readme_is_that_of_the_example() -> None:
    folder = ROOT / "examples" / "flights"
    job = (ROOT / "README.md").read_text().partition("\n```toml\n")[2].partition("```")[0]
    environment = {"AZURE_STORAGE_CONNECTION_STRING": "UseDevelopmentStorage=true"}
    shown = Config.parse(job, path=folder / "job.toml", environment=environment)
    assert shown == Config.load(folder / "job.toml", environment=environment)


def test_the_figures_of_the_readme_are_those_of_the_document() -> None:
    section = (ROOT / "README.md").read_text().partition("\n## Measured\n")[2].partition("\n## ")[0]
    rows = [each for each in section.splitlines() if each.startswith("| ")]
    measured = (ROOT / "docs" / "measured.md").read_text().splitlines()
    assert len(rows) > 3 and [each for each in rows if each not in measured] == []


@pytest.mark.parametrize(("name", "most"), [("README.md", 900), ("CHANGELOG.md", 430)])
def test_what_strangers_read_first_is_short(name: str, most: int) -> None:
    """Words of prose and tables, without blocks of code, pictures and addresses. More belongs into a page of docs/."""
    text = re.sub(
        r"^```.*?^```$|!\[.*?\]\(.*?\)|(?<=\])\(.*?\)", "", (ROOT / name).read_text(), flags=re.DOTALL | re.MULTILINE
    )
    words = [each for each in text.split() if re.search(r"\w", each)]
    assert 200 < len(words) <= most


def test_an_asterisk_tells_what_no_part_of_the_benchmarks_runs() -> None:
    """And what the README shows without one is in the first part, which is the short one."""
    lines = (ROOT / "benchmarks" / "run.py").read_text()
    first, rest = (set(re.findall(r"(\w+)\.\w+,\n", part)) for part in lines.split('"rest": [', 1))
    assert len(first) >= 3 and len(rest) > 10
    for document, run in (("docs/measured.md", first | rest), ("README.md", first)):
        found = re.findall(r"`(\w+)\.py[^`/]*`(\*?)", (ROOT / document).read_text().partition("| what | figure")[2])
        assert len(found) > 3
        assert {name for name, asterisk in found if not asterisk} <= run, document
        assert {name for name, asterisk in found if asterisk}.isdisjoint(first | rest), document
