"""How many typical mistakes `infra.check` sees: lists that were drawn before their authors had read it.

One that is no longer seen fails by its name. What is not seen is listed here, so that the count stays honest.
"""

import shutil
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from infra.check import __main__ as check
from infra.check import across, fleet, kql, prometheus
from infra.check.bicep import Finding
from infra.check.lines import Lines
from infra.check.types import Types

ROOT = Path(__file__).parents[2]
LISTS = Path(__file__).with_name("mistakes")
#: Titles of those that are not seen, and why they are not.
MISSED = {
    "a file that is not there": "the build says so at once, and the checker builds no image",
    "a window that no query rule has": "which windows a query may have was not found documented in one place",
    "a version of the metadata service that is none": "its versions are in no data that is here",
}


@dataclass(frozen=True, slots=True)
class Mistake:
    """One edit of one file."""

    title: str
    file: str
    old: str
    new: str


def drawn(name: str) -> list[Mistake]:
    """The list of a file."""
    return [Mistake(**each) for each in tomllib.loads((LISTS / f"{name}.toml").read_text())["mistake"]]


#: Each of them is tried in `make prove`. Here each third one is, and one of those that promtool sees, which takes
#: seconds.
OFTEN, TRIED = 3, "a metric that nobody has"
EVERY = [(path.stem, each) for path in sorted(LISTS.glob("*.toml")) for each in drawn(path.stem)]


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what is checked."""
    root = tmp_path_factory.mktemp("tree")
    for folder in ("infra", "docs"):
        shutil.copytree(ROOT / folder, root / folder, ignore=shutil.ignore_patterns("__pycache__"))
    return root


@pytest.fixture(scope="module")
def types() -> Types | None:
    return Types(check.TYPES) if check.TYPES.exists() else None


def findings(root: Path, changed: str, types: Types | None) -> Iterator[Finding]:
    """What `python -m infra.check` says, without the tools that do not read the changed file."""
    here, name = root / "infra", Path(changed).name
    files = check.templates(here=here)
    yield from check.findings(files, types, here)[0]
    yield from across.check(across.read(root))
    yield from Lines(root).check()
    for _, found in fleet.checks(here, name):
        yield from found
    if name == "observe.bicep" and kql.is_installed():
        yield from kql.check(files)
    if name == "rules.yml" and prometheus.find() is not None:
        yield from prometheus.check(here / "prometheus")


def test_nothing_is_found_without_a_mistake(tree: Path, types: Types | None) -> None:
    assert list(findings(tree, "", types)) == []


def test_what_is_missed_is_on_a_list() -> None:
    assert MISSED.keys() <= {each.title for _, each in EVERY}
    assert len(drawn("first")) == 70


@pytest.mark.parametrize(
    "mistake",
    [
        pytest.param(
            each,
            id=f"{name}: {each.title}",
            marks=[pytest.mark.long]
            * (each.title != TRIED and (number % OFTEN > 0 or each.file.endswith("rules.yml"))),
        )
        for number, (name, each) in enumerate(EVERY)
    ],
)
def test_a_mistake_is_seen(mistake: Mistake, tree: Path, types: Types | None) -> None:
    path = tree / mistake.file
    text = path.read_text()
    assert text.count(mistake.old) == 1
    path.write_text(text.replace(mistake.old, mistake.new))
    try:
        seen = next(findings(tree, mistake.file, types), None)
    finally:
        path.write_text(text)
    if seen is None and types is None:
        pytest.skip("this may be one that only the types see, and they are not on this machine")
    assert (seen is None) == (mistake.title in MISSED), seen
