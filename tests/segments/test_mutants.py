"""Each rule of timelines that is dropped is noticed, by the invariant that is about it; those of tables are in
`tests/storage/test_table_users.py`.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random
from typing import Any

import pytest

from samza_azure.segments import Chunk, Timeline
from samza_azure.segments import chunk as chunk_module
from samza_azure.segments import timeline as timeline_module
from tests.segments import encodings, histories

SEEDS = 150

Patch = pytest.MonkeyPatch


@dataclass(frozen=True)
class Mutant:
    """`mistake` is made; the message of what must notice begins with `killed_by`."""

    name: str
    killed_by: str
    mistake: Callable[[Patch], None]
    kind: str = "history"


def the_highest_version_wins(patch: Patch) -> None:
    patch.setattr(timeline_module, "_winner", lambda stack: stack[0] if stack else None)


def half_groups_are_complete(patch: Patch) -> None:
    true = Chunk._join

    def join(chunk: Chunk, node: Any, segment: Any) -> None:
        true(chunk, node, segment)
        node.complete = max(node.complete, segment.generation)

    patch.setattr(Chunk, "_join", join)


def the_first_outcome_stays(patch: Patch) -> None:
    """Of a group that is compacted again, which has the same cover then."""
    true = Chunk._join

    def join(chunk: Chunk, node: Any, segment: Any) -> None:
        before = node.complete
        true(chunk, node, segment)
        node.complete = before if before >= 0 else node.complete

    patch.setattr(Chunk, "_join", join)


def children_never_make_up_a_cover(patch: Patch) -> None:
    patch.setattr(chunk_module._Node, "is_full", property(lambda node: node.complete >= 0))


def nothing_falls_back(patch: Patch) -> None:
    patch.setattr(Chunk, "_newest_complete", staticmethod(lambda node: -1))


def ancestors_are_not_updated(patch: Patch) -> None:
    patch.setattr(Chunk, "_settle", lambda chunk, node, was_full: None)


def core_sets_do_not_count(patch: Patch) -> None:
    patch.setattr(Chunk, "_want", lambda chunk, core: None)
    patch.setattr(Chunk, "_want_no_more", lambda chunk, core: None)


def standbys_are_garbage(patch: Patch) -> None:
    patch.setattr(Chunk, "overshadowed", lambda chunk: [one for one, _ in chunk._hidden()])


MUTANTS = [
    Mutant("the highest version wins", "I22", the_highest_version_wins),
    Mutant("half groups are complete", "I15", half_groups_are_complete),
    Mutant("children never make up a cover", "I22", children_never_make_up_a_cover),
    Mutant("nothing falls back", "I19", nothing_falls_back),
    Mutant("ancestors are not updated", "I19", ancestors_are_not_updated),
    Mutant("core sets do not count", "I21", core_sets_do_not_count),
    Mutant("the first outcome stays", "I22", the_first_outcome_stays, "encodings"),
    Mutant("standbys are garbage", "I22", standbys_are_garbage),
]


def play(kind: str, seed: int) -> str:
    """What a seed finds, or nothing."""
    choose = Random(seed).randrange
    try:
        if kind == "encodings":
            encodings.check(choose)
            return ""
        timeline, made = Timeline(), histories.across(choose)
        for segment in histories.shuffled(made, choose):
            histories.add(timeline, segment)
        for segment in histories.shuffled(made, choose):
            histories.remove(timeline, segment)
    except AssertionError as error:
        return str(error)
    except (ValueError, KeyError, IndexError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def findings(mutant: Mutant) -> Iterator[str]:
    with pytest.MonkeyPatch.context() as patch:
        mutant.mistake(patch)
        for seed in range(SEEDS):
            yield play(mutant.kind, seed)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mistake_is_noticed(mutant: Mutant) -> None:
    seen: dict[str, int] = {}
    for found in findings(mutant):
        if found.startswith(f"{mutant.killed_by}:"):
            return
        seen[found[:60]] = seen.get(found[:60], 0) + 1
    pytest.fail(f"{mutant.name}: {mutant.killed_by} never notices; seen were {seen}")
