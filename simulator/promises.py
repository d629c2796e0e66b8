"""The checks of promises about time, work and memory: *Overlap*, *Patience*, *Bound* and *Leak*.

The ledger sees only what the storage accepts. Only the world sees whether two containers work on one task at the same
moment, and for how long none does.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sized
from dataclasses import replace
from typing import TypeAlias

from samza_azure.explain import WorstCases, bounds
from samza_azure.group.answers import ANSWERS
from samza_azure.group.control import Control, RunPhase
from samza_azure.group.rows import MEMBERS, REQUESTS, RequestKind
from samza_azure.group.tasks import PATIENCE, assigned
from samza_azure.group.timing import CHURN_MAX, RETRY_S, Timing
from samza_azure.group.view import LocalTask
from samza_azure.group.warm_up import AT_ONCE
from samza_azure.host.processor import Processor, call_timeout_s
from samza_azure.messages import Command, Permit, Phase, ReleaseTask, StartTask
from simulator.container import REPLICA_S
from simulator.ledger import CLOCK_RATE, Ledger, demand
from simulator.life import Life
from simulator.network import Weather

#: `explain` prints a worst case for a storage that answers at once. This many times that bound is allowed.
ALLOWED = 1.5
#: The longest time of a call over the simulated network without a fault.
CALL_S = 0.5

#: Bounds are checked if at most this share of the calls fails or is slow. At most this many in a row get no answer.
FAIR, IN_VAIN = 0.02, 3
#: The name of the vacancy when no processor leads.
LEADERSHIP = "the leadership"
#: The name of what is missing when a processor idles, or has fewer tasks than its share.
FAIR_SHARE = "its share of the tasks"
#: The interval between checks of each life's memory, which grows slowly.
GROWS_S = 5.0
#: A life may remember one entry for each kind of call, beside rows and tasks.
KINDS_OF_CALLS = len(ANSWERS)
#: How long a task that was interrupted waits at most, by the slowest clock, in seconds.
STARTS_AGAIN_S = RETRY_S / CLOCK_RATE + 1.0

#: A processor, its life, and the task that it waits to start: with its generation, or with the attempt that has ended.
WaitForTask: TypeAlias = tuple[str, int, str, int]


def check_command(ledger: Ledger, lives: Iterable[Life], life: Life, command: Command, shutdown_s: float) -> None:
    """Check S4, S5 and Overlap when a command is given."""
    view, control = life.processor.view, ledger.control
    if isinstance(command, StartTask):
        permitted = life.clock.now() < view.work.permit_sent  # the container may have died, unnoticed so far
        demand(permitted, f"S4: {life.name} starts {command.task} without a permit")
        check_overlap(ledger, lives, life, command, shutdown_s)
    if isinstance(command, Permit) and command.until > 0:
        bound = ledger.permit_bound(view.incarnation)
        true = life.clock.instant(command.until)
        demand(true <= bound, f"S4: {life.name} permits work until {true:.2f}, and {bound:.2f} is allowed")
    if isinstance(command, ReleaseTask) and control is not None and view.ending is None:
        owner = control.tasks[command.task].owner if command.task in control.tasks else None
        local = view.work.tasks.get(command.task)
        running = control.phase in (RunPhase.RUNNING, RunPhase.DRAINING)
        still = (
            owner is not None
            and local is not None
            and (owner.member, owner.generation) == (view.member, local.generation)
        )
        demand(not (running and still), f"S5: {life.name} releases {command.task}, which is still its own")


def check_leader(ledger: Ledger, lives: Iterable[Life], life: Life) -> None:
    """Check Leader when a processor has had a turn, in which it may have begun to say that it leads."""
    if not _says_that_it_leads(life):
        return
    ledger.seen["judged Leader"] += 1
    now, bound = ledger.facts.instant(), ledger.permit_bound(life.processor.view.incarnation)
    demand(now <= bound, f"Leader: {life.name} says so at {now:.2f}, and its permit ended by {bound:.2f}")
    others = [other.name for other in lives if other is not life and _says_that_it_leads(other)]
    demand(not others, f"Leader: {life.name} says so, and so does {', '.join(others)}")


def _says_that_it_leads(life: Life) -> bool:
    return life.supervisor.alive and life.processor.view.is_leader(life.clock.now())


def check_overlap(ledger: Ledger, lives: Iterable[Life], life: Life, start: StartTask, shutdown_s: float) -> None:
    """Check Overlap: no task starts while an earlier owner, alive and permitted, still runs it, unless the time for its
    release is over."""
    facts, now = ledger.facts, ledger.facts.instant()
    published = ledger.published_at(start.run_id, start.task, start.generation)
    waited = published is not None and now >= published + PATIENCE * shutdown_s * CLOCK_RATE
    if waited or (published is not None and facts.jumped(life.name, published)):
        return
    for other in lives:
        container = other.container
        work = container.tasks.get(start.task) if container is not None else None
        if work is None or container is None or other.finish is not None or work.phase is not Phase.RUNNING:
            continue
        theirs = work.start
        earlier = theirs.run_id == start.run_id and theirs.generation < start.generation
        works = container.may_append() and not container.process.frozen and not other.supervisor.frozen
        ledger.seen["judged Overlap"] += earlier
        demand(
            not (earlier and works and ledger.owns_alive(other.name, theirs.run_id, theirs.task, theirs.generation)),
            f"Overlap: {life.name} starts {start.task}, and {other.name} still runs it",
        )


def may_work(life: Life) -> bool:
    """Whether a processor may start tasks now: it is well, and permits its container work of the run in progress."""
    view, share, container = life.processor.view, life.processor.view.share, life.container
    able = life.supervisor.alive and not life.supervisor.frozen and view.ending is None and share is not None
    if not able or share is None or container is None or not container.may_append() or not view.work.container:
        return False
    return view.work.plan is not None and view.work.plan.fingerprint == share.control.fingerprint


def not_begun(local: LocalTask | None, generation: int) -> int | None:
    """Under which generation an owner has yet to start a task."""
    return generation if local is None or (local.generation != generation and local.closed) else None


def interrupted(local: LocalTask | None, generation: int) -> int | None:
    """Which attempt ended for want of a permit or a container, so that the owner has yet to start another."""
    is_ours = local is not None and local.generation == generation
    return local.attempt if local is not None and is_ours and local.phase is Phase.RESTART else None


def waiting(
    lives: Iterable[Life],
    waits_as: Callable[[LocalTask | None, int], int | None],
    known: Mapping[WaitForTask, float],
    now: float,
) -> dict[WaitForTask, float]:
    """The tasks that their owners could start but have not, and since when."""
    found = {}
    for life in filter(may_work, lives):
        for task, owner in assigned(life.processor.view).items():
            number = waits_as(life.processor.view.work.tasks.get(task), owner.generation)
            if number is not None:
                wait = (life.name, life.number, task, number)
                found[wait] = known.get(wait, now)
    return found


def waits_at_most(timing: Timing, shutdown_s: float) -> float:
    """How long a task waits at most for its earlier owners, by the slowest clock."""
    return PATIENCE * shutdown_s / CLOCK_RATE + timing.heartbeat_s + 1.0


def stated(timing: Timing, control: Control, processors: int) -> WorstCases:
    """The bounds that `explain` prints. After wrong suspicions, the next leader is suspected later."""
    patience = 2.0 ** min(control.churn, CHURN_MAX)
    return bounds(replace(timing, leader_timeout_s=patience * timing.leader_timeout_s), processors, CALL_S)


def applies(weather: Weather) -> bool:
    """Whether so few calls fail that a bound applies."""
    return max(weather.tail, weather.refused, weather.lost, weather.late) <= FAIR


def vacant(control: Control, lives: Iterable[Life]) -> set[str]:
    """The leadership and the tasks that no live processor has, although one could."""
    if control.phase not in (RunPhase.RUNNING, RunPhase.DRAINING) or control.stop is not None:
        return set()
    alive = [life for life in lives if life.supervisor.alive]
    if not any(is_able(life, control) for life in alive):
        return set()
    there = {life.processor.view.incarnation for life in alive}
    owners = {task: each.owner.incarnation if each.owner is not None else "" for task, each in control.tasks.items()}
    unled = {LEADERSHIP} if control.leader is None or control.leader.incarnation not in there else set()
    return unled | {task for task, owner in owners.items() if owner not in there}


def unshared(control: Control, lives: Iterable[Life]) -> set[str]:
    """Whether a processor that could run tasks has two less than another. A task that was given up counts otherwise."""
    if control.phase is not RunPhase.RUNNING or control.stop is not None or control.given_up:
        return set()
    sizes = Counter(each.owner.incarnation for each in control.tasks.values() if each.owner is not None)
    able = [sizes[life.processor.view.incarnation] for life in lives if is_able(life, control)]
    return {FAIR_SHARE} if able and max(able) > min(able) + 1 else set()


def is_able(life: Life, control: Control) -> bool:
    """Whether a processor lives and could run tasks of this pipeline, and neither leaves nor ends."""
    view = life.processor.view
    stays = not life.asked_to_leave and view.ending is None and view.work.container and view.own.etag is not None
    stays = stays and not view.notices
    return life.supervisor.alive and stays and life.habits.plan.fingerprint == control.fingerprint


def vacant_at_most(
    timing: Timing, control: Control, processors: int, what: str, weather: Weather, *, replicas: bool
) -> float:
    """The bound of `explain` if the successors are lost, too. If calls fail at times, some wait until their timeout."""
    bounds = stated(timing, control, processors)
    lost = bounds.leader_and_successors_lost - (bounds.follower_lost if what == LEADERSHIP else 0.0)
    is_clear = not max(weather.tail, weather.refused, weather.lost, weather.late)
    in_vain = 0.0 if is_clear else IN_VAIN * call_timeout_s(timing)
    if what != FAIR_SHARE or not replicas:
        return lost + in_vain
    # No replica begins before what was taken over has appended, or a barrier's time is over.
    return lost + in_vain + timing.barrier_timeout_s + warm_ups_s(timing, control, processors, in_vain)


def warm_ups_s(timing: Timing, control: Control, processors: int, patience_s: float) -> float:
    """How long the last task of a processor that joins waits for its replica.

    Each turn of `AT_ONCE` tasks needs two writes of the leader, which it debounces, a follower that reads the first,
    follows the log and says so with its heartbeat, and the leader's scan. `patience_s` is for calls in vain.
    """
    turns = -(-len(control.tasks) // AT_ONCE)
    follows = 1.5 * REPLICA_S + timing.look_every_s(processors) + timing.heartbeat_s + timing.scan_s
    return turns * (2 * timing.debounce_s + follows + patience_s)


def grown(processor: Processor, most: int) -> str | None:
    """What a processor remembers more of than there is in the world; None if nothing."""
    view = processor.view
    parts = (view.own, view.others, view.leadership or view.candidacy, view.work, view.calls)
    known = {name: getattr(part, name) for part in parts for name in part.__slots__}
    sizes = {name: len(each) for name, each in known.items() if isinstance(each, Sized) and not isinstance(each, str)}
    sizes["calls under way"] = processor.under_way
    return next((f"{size} {name}" for name, size in sizes.items() if size > most + KINDS_OF_CALLS), None)


def within(bound_s: float, *, clocks: bool) -> float:
    """The time that is allowed for a bound of `explain`. The calls that it does not count are short here."""
    return ALLOWED * bound_s / (CLOCK_RATE if clocks else 1.0)


def runs_within(timing: Timing, processors: int, start_s: float) -> float:
    """The longest time from a new assignment until the tasks run."""
    return timing.heartbeat_s + timing.look_every_s(processors) + 2 * start_s


class Watch:
    """Checks repeatedly which tasks wait, what is vacant, and what grows. A broken promise raises `Violation`."""

    def __init__(self, ledger: Ledger, lives: Mapping[str, Life], weather: Weather, *, clocks: bool) -> None:
        self._ledger, self._lives, self._weather, self._clocks = ledger, lives, weather, clocks
        self._waiting: dict[WaitForTask, float] = {}  # processors that wait for a task, and since when
        self._interrupted: dict[WaitForTask, float] = {}  # those that have yet to start one again, and since when
        self._vacant: dict[str, float] = {}  # the leadership, or a task, that no live processor has -> since when
        self._judging: dict[str, tuple[float, float]] = {}  # what is or was vacant -> start of the quiet time, bound
        self._grown_at = 0.0  # the time of the last check for growth
        self._most = 0  # the most rows and tasks that there were at once

    def look(self, shutdown_s: float, quiet_from: float) -> None:
        """Check now. Since `quiet_from` there was no disturbance."""
        now, timing = self._ledger.facts.instant(), self._ledger.facts.timing
        self._look_for_patience(now, waits_at_most(timing, shutdown_s))
        self._look_for_bounds(now, timing, quiet_from)
        self._look_for_growth(now)

    def _look_for_patience(self, now: float, bound: float) -> None:
        """Check Patience: the new owner of a task starts it in time, and so does its owner after an interruption."""
        before, self._waiting = self._waiting, waiting(self._lives.values(), not_begun, self._waiting, now)
        self._ledger.seen["judged Patience"] += len(self._waiting.keys() - before.keys())
        for (name, _, task, _), since in self._waiting.items():
            late = now > since + bound
            demand(not late, f"Patience: {name} may work, was given {task} {bound:.1f} s ago, and waits")
        before = self._interrupted
        self._interrupted = waiting(self._lives.values(), interrupted, before, now)
        self._ledger.seen["judged interruption"] += len(self._interrupted.keys() - before.keys())
        for (name, _, task, _), since in self._interrupted.items():
            late = now > since + STARTS_AGAIN_S
            demand(not late, f"Patience: {name} may work, and has not started {task} again for {STARTS_AGAIN_S:.1f} s")

    def _look_for_bounds(self, now: float, timing: Timing, quiet_from: float) -> None:
        """Check Bound: a vacant leadership or task is filled within the stated time, unless there is a disturbance."""
        control = self._ledger.control
        if control is None or not applies(self._weather):
            self._vacant.clear()
            self._judging.clear()
            return
        found = set() if self._ledger.asked(RequestKind.STOP) else vacant(control, self._lives.values())
        if not found and self._ledger.have_containers(control):
            found = unshared(control, self._lives.values())
        self._vacant = {what: self._vacant.get(what, now) for what in found}
        for what, since in self._vacant.items():
            quiet = max(since, quiet_from)
            replicas = self._ledger.facts.replicas
            bound = vacant_at_most(timing, control, len(self._lives), what, self._weather, replicas=replicas)
            bound = within(bound, clocks=self._clocks)
            who = "Idle: a processor has not" if what == FAIR_SHARE else "Bound: nobody has"
            demand(now <= quiet + bound, f"{who} had {what} for {bound:.1f} s in which nothing else happened")
            self._judging[what] = quiet, bound
        self._count_judgements(now, quiet_from)

    def _count_judgements(self, now: float, quiet_from: float) -> None:
        """Count the vacancies with a quiet time as long as the bound after them: one that lasted would be noticed."""
        for what, (quiet, bound) in list(self._judging.items()):
            is_over = now > quiet + bound
            if is_over:
                named = f"Bound of {what if what == LEADERSHIP else 'a task'}" if what != FAIR_SHARE else "Idle"
                self._ledger.seen[f"judged {named}"] += 1
            if is_over or quiet_from > quiet:
                del self._judging[what]

    def _look_for_growth(self, now: float) -> None:
        """Check Leak: no life remembers more than there ever was at once."""
        ledger = self._ledger
        if now < self._grown_at + GROWS_S:
            return
        self._grown_at = now
        tasks = len(ledger.control.tasks) if ledger.control is not None else 0
        self._most = max(self._most, len(ledger.keys(MEMBERS)) + len(ledger.keys(REQUESTS)) + tasks)
        for life in self._lives.values():
            wrong = grown(life.processor, self._most) if life.supervisor.alive else None
            demand(wrong is None, f"Leak: {life.name} remembers {wrong}; there have never been more than {self._most}")
