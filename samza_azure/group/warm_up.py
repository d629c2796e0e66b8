"""Which tasks wait until the processor that will get them has a copy of their state, as KIP-441 of Kafka has it.

A task that moves to balance runs until then where it is. So a processor that joins or comes back first follows the logs
of some tasks (it *warms up*), and each moves when its copy is near the end of its log. A task without a living owner
goes at once to a processor whose copy is near, also to one that has its share already: what is above that moves later,
once all that were taken over have appended.

Not promised: that a copy is near when the task moves. One that is not after `WARM_UP_S`, as on a full disk, is not
waited for any longer, so all shares are balanced in the end.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

#: A replica with at most so many bytes of its log to read is near: reading them takes less than a second.
NEAR_BYTES = 8 << 20
#: So many tasks warm up on one processor at a time: its network and its disk are those of the tasks that it runs.
AT_ONCE = 2
#: A task waits so long for its next owner to follow it, in seconds.
WARM_UP_S = 600.0


@dataclass(frozen=True, slots=True)
class Shares:
    """Who runs each task now, and by whom tasks are followed that will move there."""

    owners: Mapping[str, str]
    warm_ups: Mapping[str, str]  # task -> its next owner


def waiting(
    wanted: Mapping[str, str],
    current: Mapping[str, str],
    near: Mapping[str, Sequence[str]],
    *,
    heavy: Collection[str],
    follow: Collection[str],
    overdue: Collection[tuple[str, str]],
    settling: Collection[str] = (),
) -> Shares:
    """Have `heavy` tasks, those with a state to restore, wait until the processor that `wanted` gives them to is near.

    `current` has the tasks whose owner can go on. `near` says which processors have a copy, the best first. Those of
    `follow` can get one. `overdue` are tasks and processors that have been waited for long enough. Tasks that are
    `settling`, since their owner has yet to append, stay with it for now. With `heavy` empty, all is as `wanted` says.

    Each processor gets one such task at a time: a container starts its queries one after the other, and meanwhile a
    task that has been released for it stands still.
    """
    owners, moves = dict(wanted), []
    sizes, gains = Counter(wanted.values()), Counter[str]()
    for task in wanted:
        to, ready = wanted[task], near.get(task, ())
        if task not in heavy or current.get(task) == to:
            continue
        if (owner := current.get(task)) is not None:
            if to not in follow:  # an older release has no replicas to wait for
                continue
            may_move = task not in settling and ((task, to) in overdue or to in ready)
            gains[to] += may_move
            if not may_move or gains[to] > 1:
                owners[task] = owner
                moves.append((task, to))
        elif ready and to not in ready:
            owners[task] = least = min(ready, key=lambda name: (sizes[name], name))
            sizes[to] -= 1
            sizes[least] += 1
    return Shares(owners, dict(moves))


def begun(warm_ups: Mapping[str, str], followed: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """The warm-ups that are under way or begin: up to `AT_ONCE` for each processor. Those that have begun go on."""
    chosen: dict[str, str] = {}
    room = Counter(dict.fromkeys(warm_ups.values(), AT_ONCE))
    for task, to in sorted(warm_ups.items(), key=lambda each: each[1] not in followed.get(each[0], ())):
        if room[to] > 0:
            room[to] -= 1
            chosen[task] = to
    return chosen
