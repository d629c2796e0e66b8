"""Known mistakes of coordinators, each as one small change of ours, and the invariant that must catch it.

Numbers B1 to B28 are the defects of Samza's coordinator on Azure. A mutant that no seed kills would mean that the
simulator is blind, or that what it removes is not needed.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from samza_azure.host import perform as performing
from samza_azure.host import processor as hosting
from samza_azure.protocol import decide as deciding
from samza_azure.protocol import drain as draining
from samza_azure.protocol import lead as leading
from samza_azure.protocol import log as logs
from samza_azure.protocol import run as running
from samza_azure.protocol import view as viewing
from samza_azure.protocol.actions import MergeOwnRow, WriteControl
from samza_azure.protocol.age import Age
from samza_azure.protocol.messages import DrainStep, ReleaseTask
from samza_azure.sim import container as containers
from samza_azure.sim import memory

Patch = pytest.MonkeyPatch


@dataclass(frozen=True)
class Mutant:
    """`apply` makes the mistake; `killed_by` begins the message of what must notice. Tried from `seed` on."""

    name: str
    killed_by: str
    seed: int
    apply: Callable[[Patch], None]
    faults: tuple[str, ...] = ("crash", "supervisor freezes", "machine freezes", "leaves", "joins", "outage", "cut off")


def counted_from_the_answer(patch: Patch) -> None:
    """Deadlines start when the answer is there, not before the question was sent (etcd, DistributedLock)."""
    learn = viewing.learn
    patch.setattr(
        hosting, "learn", lambda view, action, answer, sent_at, now: learn(view, action, answer, sent_at=now, now=now)
    )


def trouble_is_an_etag(patch: Patch) -> None:
    """Any answer counts as accepted (DurableTask: every error but 409 and 412 counts as renewed)."""
    learn = viewing.learn

    def believing(view: Any, action: Any, answer: Any, *, sent_at: float, now: float) -> None:
        if isinstance(action, MergeOwnRow) and isinstance(answer, viewing.Trouble):
            answer = view.etag
        learn(view, action, answer, sent_at=sent_at, now=now)

    patch.setattr(hosting, "learn", believing)


def blind_retry_of_a_beat(patch: Patch) -> None:
    """A refused heartbeat is written again, whatever stands there now (B2, B18)."""
    perform = performing._perform

    async def forcing(action: Any, me: str, blob: Any, table: Any, *rest: Any) -> Any:
        answer = await perform(action, me, blob, table, *rest)
        if isinstance(action, MergeOwnRow) and isinstance(answer, viewing.No):
            row = await table.get("members", me, timeout=1.0)
            answer = await perform(replace(action, etag=row.etag), me, blob, table, *rest)
        return answer

    patch.setattr(performing, "_perform", forcing)


def age_by_the_clock(patch: Patch) -> None:
    """Silence is now minus when the row was last seen to change (B2, Patroni, Event Hubs)."""

    def observed(age: Age | None, etag: str, now: float, interval_s: float) -> Age:
        if age is None or age.etag != etag:
            return Age(etag, 0.0, 0, now)
        return Age(etag, age.seconds + now - age.read_at, 3, now)

    patch.setattr(viewing, "observed", observed)
    patch.setattr(viewing, "_forget_ages", lambda view, now: None)


def no_self_stop(patch: Patch) -> None:
    """Work goes on as long as the process does (B3)."""
    patch.setattr(viewing, "SELF_STOP", 1000.0)


def stop_the_world(patch: Patch) -> None:
    """Every version stops every task (Samza, kazoo's SetPartitioner)."""
    run = running.run

    def eager(view: Any, now: float) -> list[Any]:
        actions = run(view, now)
        version = getattr(view.control, "version", 0)
        if version != versions.get(id(view), version):
            actions += [running.Tell(ReleaseTask(task)) for task, local in view.tasks.items() if not local.closed]
        versions[id(view)] = version
        return actions

    versions: dict[int, int] = {}
    patch.setattr(running, "run", eager)


def zombie_leader(patch: Patch) -> None:
    """A leader whose write was refused goes on (B15)."""
    learn = viewing.learn

    def stubborn(view: Any, action: Any, answer: Any, *, sent_at: float, now: float) -> None:
        if isinstance(action, WriteControl) and isinstance(answer, viewing.No):
            answer = viewing.Trouble.UNAVAILABLE
        learn(view, action, answer, sent_at=sent_at, now=now)

    patch.setattr(hosting, "learn", stubborn)


def same_version_again(patch: Patch) -> None:
    """A version is a count of the leader's own, so two leaders give the same one (B8, B11)."""
    assignment = leading.with_assignment

    def reused(view: Any, control: Any, now: float) -> Any:
        after = assignment(view, control, now)
        return after if after is control else replace(after, version=max(1, control.version - 1))

    patch.setattr(leading, "with_assignment", reused)


def takes_the_log_back(patch: Patch) -> None:
    """Whoever has read to the end of a log may append EPOCH, also an older writer."""
    drop = logs.take_over

    def reckless(log: Any, **arguments: Any) -> Any:
        inner = drop(log, **arguments)
        answer = None
        while True:
            try:
                operation = inner.send(answer)
            except StopIteration as stop:
                return stop.value
            except logs.Superseded:
                yield from logs._place(log, (yield from logs._opening(log, {})))
                return None
            answer = yield operation

    patch.setattr(containers, "take_over", reckless)
    patch.setattr(logs.TaskLog, "_check", lambda self, header: None)


def unconditional_append(patch: Patch) -> None:
    """Appends carry no position (Event Hubs: unconditional checkpoints)."""
    append = memory.MemoryStorage.append

    def anywhere(self: Any, name: str, data: bytes, position: int) -> Any:
        blob = self._blobs.get(name)
        return append(self, name, data, len(blob.data) if blob else position)

    patch.setattr(memory.MemoryStorage, "append", anywhere)


def flushes_too_early(patch: Patch) -> None:
    """FLUSH is written when the first reader stands still."""

    def progress(control: Any, rows: Any, plan: Any) -> Any:
        drain = control.drain
        if drain is not None and drain.step is DrainStep.FREEZE and plan is not None:
            reports = [draining._report(control, rows, task) for task in control.tasks]
            ends = [report.ends for report in reports if report is not None and report.ends]
            if ends:
                ends_now = draining.furthest(ends, control.positions)
                return replace(control, drain=replace(drain, step=DrainStep.FLUSH, ends=ends_now))
        return original(control, rows, plan)

    original = draining.progress
    patch.setattr(leading, "progress", progress)


def drained_when_all_are_told(patch: Patch) -> None:
    """DRAINED is written when everybody has heard of FLUSH, not when every log ends in DRAINED."""

    def progress(control: Any, rows: Any, plan: Any) -> Any:
        drain = control.drain
        if drain is not None and drain.step is DrainStep.FLUSH and control.phase == "DRAINING":
            return replace(
                control, phase=draining.RunPhase.DRAINED, positions=drain.ends, past=(*control.past, control.run_id)
            )
        return original(control, rows, plan)

    original = draining.progress
    patch.setattr(leading, "progress", progress)


def the_owner_that_does_not_run(patch: Patch) -> None:
    """A task that failed once is owned and never started again (B10, durabletask#1389)."""
    may_start = running._may_start

    def once(view: Any, task: str, owner: Any, now: float) -> bool:
        return bool(task not in view.tasks and may_start(view, task, owner, now))

    patch.setattr(running, "_may_start", once)


def nobody_follows_the_leader(patch: Patch) -> None:
    """Leadership is sought at the start only (B6, B7: no failover)."""
    patch.setattr(deciding, "_suspect", lambda view: False)


def marks_while_cut_off(patch: Patch) -> None:
    """An observer judges others although its own beats are not accepted, and remembers an outage as their silence."""
    patch.setattr(viewing, "_forget_ages", lambda view, now: None)
    mark = leading._mark_dead

    def judging(view: Any, control: Any, now: float) -> list[Any]:
        known, view.accepted_at = view.accepted_at, now
        try:
            return mark(view, control, now)
        finally:
            view.accepted_at = known

    patch.setattr(leading, "_mark_dead", judging)


MUTANTS = [
    Mutant("deadlines from the answer", "S4", 0, counted_from_the_answer),
    Mutant("an error counts as accepted", "S4", 0, trouble_is_an_etag),
    Mutant("blind retry of a heartbeat", "S3", 0, blind_retry_of_a_beat),
    Mutant("age by the clock", "S10", 0, age_by_the_clock, ("outage",)),
    Mutant("no self-stop", "S4", 0, no_self_stop),
    Mutant("every version stops the world", "S5", 0, stop_the_world),
    Mutant("a refused leader goes on", "S6", 7, zombie_leader),
    Mutant("a version twice", "S1", 0, same_version_again),
    Mutant("an older writer takes the log back", "S2", 26, takes_the_log_back),
    Mutant("appends without a position", "S2", 1, unconditional_append),
    Mutant("FLUSH before all stand still", "S12", 0, flushes_too_early),
    Mutant("DRAINED before the logs are", "S12", 0, drained_when_all_are_told),
    Mutant("an owner that does not run", "L1", 0, the_owner_that_does_not_run, ("container dies",)),
    Mutant("no failover", "L1", 0, nobody_follows_the_leader, ("crash, other id",)),
    Mutant("judging while cut off", "S10", 0, marks_while_cut_off, ("outage",)),
]

__all__ = ["MUTANTS", "Mutant"]
