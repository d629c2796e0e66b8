"""*Owned*, *Least moves* and *Warm*: who gets which task, by two consecutive values of the control blob alone."""

from collections import Counter
from collections.abc import Callable

from samza_azure.group.control import Control, Owner, RunPhase


def unowned(before: Control, after: Control) -> tuple[bool, str | None]:
    """Owned: whether a new version could be judged, and the trouble with one that leaves a task without an owner.

    A task whose owner was restarted may wait for its new incarnation: then it keeps its former owner.
    """
    if not after.members or after.phase not in (RunPhase.RUNNING, RunPhase.DRAINING):
        return False, None
    idle = [task for task, each in after.tasks.items() if each.owner is None]
    if not idle:
        return True, None
    able = [member.processor for member in after.members]
    return True, f"Owned: version {after.version} names no owner of {idle}, and {able} could run them"


def needless_moves(before: Control, after: Control, *, replicas: bool) -> tuple[bool, str | None]:
    """Least moves: whether a new version could be judged, and the trouble with it. With `replicas` tasks may wait.

    It cannot be judged while a task is given up, which counts in the share of who gave it up; nor when a processor was
    restarted, whose tasks may or may not have waited for it. Whoever asks looks for processors without a container.
    """
    kept = {task: each.owner for task, each in before.tasks.items() if each.owner is not None}
    lives = {member.processor: member.incarnation for member in after.members}
    is_plain = after.run_id == before.run_id and not before.given_up and not after.given_up
    same = all(lives.get(owner.processor, owner.incarnation) == owner.incarnation for owner in kept.values())
    running = after.phase in (RunPhase.RUNNING, RunPhase.DRAINING)
    if not (is_plain and same and running and lives) or before.tasks.keys() != after.tasks.keys():
        return False, None
    awaits = {task for task, owner in kept.items() if owner.processor not in lives and after.tasks[task].owner == owner}
    shares = Counter(owner.processor for owner in kept.values() if owner.processor in lives)
    floor, larger = divmod(len(after.tasks) - len(awaits), len(lives))
    by_size = sorted((shares[name] for name in lives), reverse=True)
    above = sum(max(size - floor - (rank < larger), 0) for rank, size in enumerate(by_size))
    balances = after.phase is RunPhase.RUNNING
    moved = [
        task for task, owner in kept.items() if owner.processor in lives and _moves(owner, after.tasks[task].owner)
    ]
    waits = balances and replicas  # until a replica is where a task will move, or its owner has appended
    if len(moved) == (above if balances else 0) or (waits and len(moved) < above):
        return True, None
    return True, (
        f"Least moves: version {after.version} moves {len(moved)} tasks of processors that stay, {moved}, and "
        f"{above if balances else 0} are above the shares of {len(lives)}: {dict(shares)}"
    )


def cold_moves(before: Control, after: Control, is_heavy: Callable[[str], bool]) -> tuple[int, str | None]:
    """Warm: how many moves of tasks with state could be judged, and the trouble with one of them.

    `is_heavy` says of a task whether it had begun its state long before. Whoever asks looks for processors without a
    container.
    """
    lives = {*after.members}
    if not before.replicas or not after.replicas or before.given_up or after.given_up or after.run_id != before.run_id:
        return 0, None
    judged = 0
    for task, processors in before.replicas.items():  # one without state has none
        old, new = before.tasks[task].owner, after.tasks[task].owner
        if old is None or new is None or old.member not in lives or not _moves(old, new) or not is_heavy(task):
            continue
        judged += 1
        if new.processor not in processors:
            return judged, f"Warm: version {after.version} moves {task} to {new.processor}, which had no replica of it"
    return judged, None


def _moves(before: Owner, after: Owner | None) -> bool:
    return after is None or after.processor != before.processor


__all__ = ["cold_moves", "needless_moves", "unowned"]
