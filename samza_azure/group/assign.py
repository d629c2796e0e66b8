"""Which processor runs which task: sticky, balanced to within one, with the fewest possible moves, deterministic.

A pure function of the tasks, the processors and the current owners. It knows no storage, no versions, no time.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from heapq import heapify, heapreplace
from types import MappingProxyType

from samza_azure.logs.names import stage_of

NOBODY: Mapping[str, str] = MappingProxyType({})
NO_ONE: Mapping[str, Sequence[str]] = MappingProxyType({})


def assign(
    tasks: Sequence[str],
    members: Collection[str],
    current: Mapping[str, str],
    *,
    balance: bool = True,
    given_up: Mapping[str, str] = NOBODY,
    warm: Mapping[str, Sequence[str]] = NO_ONE,
) -> dict[str, str]:
    """Return an owner for each task. Empty if there are no members.

    If `balance` is false (a draining run), no task with a living owner moves.
    `given_up` says which member could not run a task. That task goes to another member, if there is one, and stays
    there. It still counts in the share of the member that gave it up: no other task moves because of it, and a machine
    on which everything fails does not get tasks that run well elsewhere.
    A task that gets another owner goes to a member that is `warm` for it, the first of these that has not got its
    share yet: shares come first, since a task runs longer than it is restored.
    Ties are broken by names, so equal inputs give equal results.
    """
    if not members:
        return {}
    names = sorted(members)
    away = {task: member for task, member in given_up.items() if member in members}
    assigned = _balanced(tasks, names, {**current, **away}, balance=balance, warm=warm)
    if not away:
        return assigned
    sizes = Counter(owner for task, owner in assigned.items() if task not in away)
    homeless = []
    for task in tasks:
        if task in away and (owner := current.get(task, "")) in members:
            assigned[task] = owner
            sizes[owner] += 1
        elif task in away:
            homeless.append(task)
    for task in homeless:
        others = [name for name in names if name != away[task]] or names
        assigned[task] = owner = min(others, key=lambda name: (sizes[name], name))
        sizes[owner] += 1
    return assigned


def _balanced(
    tasks: Sequence[str],
    members: Sequence[str],
    current: Mapping[str, str],
    *,
    balance: bool,
    warm: Mapping[str, Sequence[str]],
) -> dict[str, str]:
    shares: dict[str, list[str]] = {member: [] for member in members}
    orphans = set()
    for task in tasks:
        owner = current.get(task)
        if owner in shares:
            shares[owner].append(task)
        else:
            orphans.add(task)
    if balance:
        orphans.update(_surplus(shares, len(tasks)))
    for task, owner in _taken_warm(tasks, orphans, shares, warm):
        shares[owner].append(task)
        orphans.discard(task)
    smallest_first = [(len(share), member) for member, share in shares.items()]
    heapify(smallest_first)
    for task in tasks if orphans else ():
        if task not in orphans:
            continue
        size, least = smallest_first[0]
        shares[least].append(task)
        heapreplace(smallest_first, (size + 1, least))
    return {task: member for member, share in shares.items() for task in share}


def _taken_warm(
    tasks: Sequence[str],
    orphans: Collection[str],
    shares: Mapping[str, Sequence[str]],
    warm: Mapping[str, Sequence[str]],
) -> list[tuple[str, str]]:
    """The tasks that go to a member that is warm for them, as far as all shares can still be balanced after that."""
    floor, larger = divmod(len(tasks), len(shares))
    sizes = {member: len(share) for member, share in shares.items()}
    larger -= sum(size > floor for size in sizes.values())
    taken = []
    for task in tasks if warm and orphans else ():
        for member in warm.get(task, ()) if task in orphans else ():
            if member in sizes and (sizes[member] < floor or (sizes[member] == floor and larger > 0)):
                larger -= sizes[member] == floor
                sizes[member] += 1
                taken.append((task, member))
                break
    return taken


def _surplus(shares: dict[str, list[str]], total: int) -> list[str]:
    """Remove from each share what exceeds its target, and return it.

    The target is the floor, and one more for as many members as the remainder. The members with the most tasks get the
    larger target, which minimizes the moves. What a member keeps is of all its stages: the first processor of a run
    starts all tasks, and would otherwise keep those of the first stage, which may have most of the work.
    """
    floor, larger = divmod(total, len(shares))
    taken = []
    by_size = sorted(shares, key=lambda member: (-len(shares[member]), member))
    for rank, member in enumerate(by_size):
        target = floor + 1 if rank < larger else floor
        if len(shares[member]) > target:
            in_turn = _stages_in_turn(shares[member])
            shares[member] = in_turn[:target]
            taken.extend(in_turn[target:])
    return taken


def _stages_in_turn(share: Sequence[str]) -> list[str]:
    """The first task of each stage, then the second of each, and so on."""
    seen = Counter[str]()
    turns = {}
    for task in share:
        stage = stage_of(task)
        turns[task] = seen[stage]
        seen[stage] += 1
    return sorted(share, key=turns.__getitem__)
