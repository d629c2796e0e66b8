"""How soon there is a leader and all tasks run after a kill, a leave or a join: processes without Spark on Azurite,
peers beside them.

Counted from just before the signal is sent, by the one clock of this machine, to the moment at which the process knows
it from the storage: a leader that its first write was accepted, an owner that its row says RUNNING. Kills come at
random moments of the heartbeats. Several groups at a time share the machine; its load average is printed.
"""

import math
import random
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import peers
from common import Claim, main, middle, p95, say
from group import Group, Life, Said, Say, group

from samza_azure import Config, SharedTasks
from samza_azure.commands.azurite.emulator import Azurite
from samza_azure.group.rows import LeaderRow
from samza_azure.group.timing import PROFILES, Timing
from samza_azure.group.view import View
from samza_azure.library import factory
from samza_azure.messages import Phase
from samza_azure.metrics.observer import Observer

T = TypeVar("T")
NAMES, FOURTH = ("one", "two", "three"), "four"
TASKS = 16
JOB = """
app = {{ name = "coordination", id = "{id}", main = "coordination:Mine" }}
azure.storage.connect = "{connect}"
job.coordinator.profile = "{profile}"
"""


# A processor.


class Told(factory.ThreadedCoordinator):
    """Tells what the storage has accepted: leadership, being a named successor, tasks that its row calls RUNNING."""

    def __init__(self, name: str, config: Config, say: Say) -> None:
        settings = factory.settings(name, config)
        super().__init__(settings, lambda: factory._azure(config), Observer(name))
        self._say_, self._runs, self._follows = say, frozenset[tuple[str, int]](), 0

    def _watch(self, view: View) -> None:
        super()._watch(view)
        reports = view.own.written.tasks.values() if view.own.written is not None else ()
        runs = frozenset((each.task, each.generation) for each in reports if each.phase is Phase.RUNNING)
        if runs != self._runs:
            self._runs = runs
            self._say_("runs", runs)
        row = view.others.leader_row
        if isinstance(row, LeaderRow) and view.me in row.successors and row.epoch != self._follows:
            self._follows = row.epoch
            self._say_("follows", row.epoch)


class Mine(SharedTasks):
    """Tasks that start and stop at once, and say so."""

    def __init__(self, coordinator: factory.ThreadedCoordinator, say: Say, count: int) -> None:
        super().__init__(coordinator, "part", count)
        self._say_ = say

    def on_start(self, task: str, generation: int) -> None:
        self._say_("starts", task)

    def on_stop(self, task: str) -> None:
        self._say_("stops", task)

    def on_leadership(self, leads: bool, epoch: int) -> None:
        if leads:
            self._say_("leads", epoch)


def processor(name: str, say: Say, count: int, job: str) -> None:
    """The life of a processor's process. SIGTERM makes it leave."""
    coordinator = Told(name, Config.parse(job), say)
    coordinator.ask(new_run=False, wait_for_upgrade=False, only_holder=True)
    mine = Mine(coordinator, say, count)
    signal.signal(signal.SIGTERM, lambda *_: coordinator.stop())
    say("begins")
    mine.start()
    coordinator.wait()


# What is seen of a group.


def balanced(members: Group, count: int) -> float | None:
    """Since when all tasks run, each at one of those that live, as evenly as can be; None while they do not."""
    runs = [said for name in members.alive if (said := members.latest.get((name, "runs"))) is not None]
    shares = [said.about[0] for said in runs]
    tasks = {task for share in shares for task, _ in share}
    if len(runs) < len(members.alive) or not len(tasks) == count == sum(map(len, shares)):
        return None
    return max(said.at for said in runs) if max(map(len, shares)) - min(map(len, shares)) <= 1 else None


def leader(members: Group) -> Said | None:
    """The leader and since when: the last processor that reported to lead."""
    leading = [said for (_, what), said in members.latest.items() if what == "leads"]
    return max(leading, key=lambda said: said.at) if leading else None


def settled(members: Group, count: int) -> str | None:
    """The leader's name, when all is well and all others are its named successors."""
    leads = leader(members)
    if leads is None or balanced(members, count) is None:
        return None
    following = [members.latest.get((name, "follows")) for name in members.alive if name != leads.who]
    return leads.who if all(said is not None and said.about == leads.about for said in following) else None


def owners(members: Group) -> dict[str, str]:
    """The owner of each task."""
    return {task: name for name in members.alive for task, _ in members.latest[name, "runs"].about[0]}


def side_by_side(works: Sequence[Callable[[], list[T]]]) -> list[list[T]]:
    """All at the same time; what came of each."""
    with ThreadPoolExecutor(len(works)) as threads:
        return [future.result() for future in [threads.submit(work) for work in works]]


@contextmanager
def processors(azurite: Azurite, name: str, profile: str, count: int = TASKS) -> Iterator[Group]:
    """Three of our processes, which share tasks."""
    job = JOB.format(id=name, connect=azurite.connection_string, profile=profile)
    with group(processor, count, job) as members:
        members.start(*NAMES)
        yield members


# One of them is lost.


@dataclass(frozen=True, slots=True)
class Loss:
    """What a processor's end meant, in seconds."""

    led: float  # until another processor led
    ran: float  # until all tasks ran elsewhere


def losses(profile: str, number: signal.Signals, repetitions: int, groups: int, *, the_leader: bool) -> list[Loss]:
    """The same loss again and again, in several groups at a time."""
    with Azurite() as azurite:

        def repeat(place: int) -> list[Loss]:
            with processors(azurite, f"{profile}-{place}", profile) as members:
                times = range(place, repetitions, groups)
                return [lose(members, PROFILES[profile], number, the_leader=the_leader) for _ in times]

        shares = side_by_side([partial(repeat, place) for place in range(groups)])
    return [loss for share in shares for loss in share]


def lose(members: Group, timing: Timing, number: signal.Signals, *, the_leader: bool) -> Loss:
    """End one processor at a random moment, see what happens, start it again."""
    leads = members.wait("a settled group", lambda: settled(members, TASKS))
    time.sleep(random.uniform(0, 2 * timing.heartbeat_s))
    victim = leads if the_leader else random.choice([name for name in members.alive if name != leads])
    at = members.send(victim, number)
    led = members.wait("a leader", lambda: leader(members)).at - at
    ran = members.wait("all tasks elsewhere", lambda: balanced(members, TASKS)) - at
    members.start(victim)
    return Loss(led, ran)


def elections(life: Life, arguments: Sequence[Any], repetitions: int, groups: int) -> list[float]:
    """The leader of a peer's group is killed again and again; seconds until another one's first write."""

    def repeat(place: int) -> list[float]:
        taken = []
        with group(life, *arguments, f"group-{place}") as members:
            members.start(*NAMES)
            for _ in range(place, repetitions, groups):
                leads = members.wait("a leader with followers", lambda: all_joined(members))
                time.sleep(random.uniform(0, 1))
                at = members.send(leads, signal.SIGKILL)
                taken.append(members.wait("a leader", lambda: leader(members)).at - at)
                members.start(leads)
        return taken

    return [taken for share in side_by_side([partial(repeat, place) for place in range(groups)]) for taken in share]


def all_joined(members: Group) -> str | None:
    """The leader's name, when all the others are candidates."""
    leads = leader(members)
    return leads.who if leads and all((name, "joined") in members.latest for name in members.alive) else None


def partitions(hosts: str, session_s: float, boundary_s: float, repetitions: int, groups: int) -> list[float]:
    """A member of a SetPartitioner is killed; seconds until all its tasks have an owner again."""

    def repeat(place: int) -> list[float]:
        taken = []
        with group(peers.kazoo_partitioner, TASKS, hosts, session_s, boundary_s, f"group-{place}") as members:
            members.start(*NAMES)
            for _ in range(place, repetitions, groups):
                members.wait("a balanced group", lambda: balanced(members, TASKS))
                time.sleep(random.uniform(0, 1))
                victim = random.choice(members.alive)
                at = members.send(victim, signal.SIGKILL)
                taken.append(members.wait("all tasks elsewhere", lambda: balanced(members, TASKS)) - at)
                members.start(victim)
        return taken

    return [taken for share in side_by_side([partial(repeat, place) for place in range(groups)]) for taken in share]


# One joins.


@dataclass(frozen=True, slots=True)
class Join:
    """What a fourth processor meant to three."""

    took: float
    moves: int
    unmoved: int
    pause: float  # the longest of a task that did not move
    pause_of_moved: float


def join(members: Group, count: int, quiet_s: float) -> Join:
    """Start a fourth processor in a group that has been quiet for `quiet_s`, see what happens, and end it again."""
    members.wait("a balanced group", lambda: balanced(members, count))
    time.sleep(quiet_s)
    before = owners(members)
    members.start(FOURTH)
    begins = members.wait("its process", lambda: members.latest.get((FOURTH, "begins"))).at
    took = members.wait("a balanced group of four", lambda: balanced(members, count)) - begins
    after = owners(members)
    unmoved = {task for task, owner in before.items() if after[task] == owner}
    stood = pauses(members.said, begins)
    members.send(FOURTH, signal.SIGTERM)
    return Join(
        took,
        count - len(unmoved),
        len(unmoved),
        max((seconds for task, seconds in stood.items() if task in unmoved), default=0.0),
        max((seconds for task, seconds in stood.items() if task not in unmoved), default=0.0),
    )


def pauses(said: Sequence[Said], since: float) -> dict[str, float]:
    """For how long no processor ran each task that was stopped since then."""
    stopped: dict[str, float] = {}
    stood: dict[str, float] = {}
    for each in sorted(said, key=lambda each: each.at):
        if each.at < since or each.what not in ("stops", "starts"):
            continue
        (task,) = each.about
        if each.what == "stops":
            stopped[task] = each.at
        elif task in stopped:
            stood[task] = stood.get(task, 0.0) + each.at - stopped.pop(task)
    return stood


def joins(profile: str, count: int, repetitions: int) -> list[Join]:
    """A fourth joins three of our processes, and leaves again."""
    quiet_s = PROFILES[profile].debounce_s  # until then the end of the last fourth delays the next version
    beat_s = PROFILES[profile].heartbeat_s  # a join may begin at any moment between two heartbeats
    with Azurite() as azurite, processors(azurite, f"join-{profile}-{count}", profile, count) as members:
        return [join(members, count, quiet_s + random.uniform(0, beat_s)) for _ in range(repetitions)]


def joins_partitioner(hosts: str, session_s: float, boundary_s: float, repetitions: int) -> list[Join]:
    """A fourth joins three of a SetPartitioner, and leaves again."""
    with group(peers.kazoo_partitioner, TASKS, hosts, session_s, boundary_s, "join") as members:
        members.start(*NAMES)
        return [join(members, TASKS, 0.0) for _ in range(repetitions)]


# What is claimed.


def figures(values: Sequence[float]) -> str:
    """Median and 95th percentile."""
    return f"{middle(values):.2f} s, 95 % within {p95(values):.2f} s (of {len(values)})"


def takes(what: str, values: Sequence[float], median_s: float, p95_s: float = math.inf) -> Claim:
    """A claim on the median and, perhaps, on the 95th percentile."""
    goal = f"median {median_s:g} s" + (f", 95 % {p95_s:g} s" if p95_s < math.inf else "")
    return Claim(what, figures(values), goal, middle(values) <= median_s and p95(values) <= p95_s)


def bound_to_running(timing: Timing) -> float:
    """The bound that is stated for a leader that is lost together with its tasks."""
    patience = max(timing.leader_timeout_s, timing.heartbeat_timeout_s)
    return patience + 2 * timing.scan_s + 2 * timing.heartbeat_s


def leader_killed(profile: str, quick: bool) -> list[Claim]:
    """Ours, ZooKeeper and etcd, their leaders killed at the same time."""
    fast = profile == "fast"
    times, groups, median_s, p95_s = (50, 2, 1.1, 2.0) if fast else (50, 5, 6.5, 8.0)
    times = 6 if quick else times
    tick_ms, session_s, ttl_s = (500, 1.0, 1) if fast else (2000, 10.0, 60)
    works: dict[str, Callable[[], list[Any]]] = {
        "ours": partial(losses, profile, signal.SIGKILL, times, groups, the_leader=True)
    }
    with ExitStack() as servers:
        if peers.has_zookeeper():
            hosts = servers.enter_context(peers.zookeeper(tick_ms))
            works["zookeeper"] = partial(elections, peers.kazoo_candidate, (hosts, session_s), times // 2, groups)
        if peers.has_etcd() and not (quick and not fast):
            url = servers.enter_context(peers.etcd())
            works["etcd"] = partial(elections, peers.etcd_candidate, (url, ttl_s), times // 2 if fast else 5, groups)
        found = dict(zip(works, side_by_side([*works.values()]), strict=True))
    led, ran = [loss.led for loss in found["ours"]], [loss.ran for loss in found["ours"]]
    bound = bound_to_running(PROFILES[profile])
    claims = [
        takes(f"{profile}: leader killed, to the next one's first write", led, median_s, p95_s),
        Claim(
            f"{profile}: its tasks reported running elsewhere", figures(ran), f"bound {bound:g} s", max(ran) <= bound
        ),
    ]
    if "zookeeper" in found:
        theirs, limit = found["zookeeper"], middle(found["zookeeper"]) if fast else session_s
        what = f"ZooKeeper, tick {tick_ms} ms, session {session_s:g} s"
        claims.append(Claim(what, figures(theirs), f"ours {limit:.2f} s at most", middle(led) <= limit))
    if "etcd" in found:
        claims.append(Claim(f"etcd, lease {ttl_s} s", figures(found["etcd"])))
    return claims


def leader_leaves(profile: str, quick: bool) -> list[Claim]:
    """It hands over before it goes."""
    found = losses(profile, signal.SIGTERM, 4 if quick else 20, 2 if profile == "fast" else 5, the_leader=True)
    median_s = 0.5 if profile == "fast" else 2.5
    return [takes(f"{profile}: leader leaves, to the next one's first write", [loss.led for loss in found], median_s)]


def follower_killed(profile: str, quick: bool) -> list[Claim]:
    """Ours, and a SetPartitioner at its default or at its fastest."""
    fast = profile == "fast"
    times, groups, median_s = (4 if quick else 20), 2 if fast else 5, 2.2 if fast else 10.0
    tick_ms, session_s, boundary_s = (500, 1.0, 0.1) if fast else (2000, 10.0, 30.0)
    works: list[Callable[[], list[Any]]] = [partial(losses, profile, signal.SIGKILL, times, groups, the_leader=False)]
    with ExitStack() as servers:
        if peers.has_zookeeper() and not (quick and not fast):
            hosts = servers.enter_context(peers.zookeeper(tick_ms))
            works.append(partial(partitions, hosts, session_s, boundary_s, times if fast else 4, 2))
        ours, *theirs = side_by_side(works)
    what = f"{profile}: follower killed, its share of 16 tasks running elsewhere"
    claims = [takes(what, [loss.ran for loss in ours], median_s)]
    what = f"SetPartitioner, session {session_s:g} s, boundary {boundary_s:g} s"
    return claims + [Claim(what, figures(each)) for each in theirs]


def fourth_joins(profile: str, count: int, quick: bool) -> list[Claim]:
    """As fast as promised, with the fewest moves, and without a pause of anything that stays."""
    found, limit = joins(profile, count, 2 if quick else 5), 1.0 if profile == "fast" else 3.5
    optimum, what = count // 4, f"{profile}: a fourth joins three with {count} tasks"
    moves = sorted({each.moves for each in found})
    return [
        Claim(
            f"{what}, balanced",
            figures([each.took for each in found]),
            f"median {limit:g} s",
            middle([each.took for each in found]) <= limit,
        ),
        Claim("  moves", ", ".join(map(str, moves)), f"{optimum}, the optimum", moves == [optimum]),
        Claim(
            "  longest pause of a task that stays",
            f"{max(each.pause for each in found):.2f} s",
            "0",
            not any(each.pause for each in found),
        ),
        Claim("  longest pause of a task that moves", f"{max(each.pause_of_moved for each in found):.2f} s"),
    ]


def fourth_joins_partitioner(quick: bool) -> list[Claim]:
    """What a join means to kazoo's SetPartitioner."""
    if not peers.has_zookeeper():
        return []
    claims = []
    for tick_ms, session_s, boundary_s in [(500, 1.0, 0.1), *([] if quick else [(2000, 10.0, 30.0)])]:
        with peers.zookeeper(tick_ms) as hosts:
            found = joins_partitioner(hosts, session_s, boundary_s, 2)
        what = f"SetPartitioner, boundary {boundary_s:g} s: a fourth joins three with 16 tasks"
        stays = max(each.pause for each in found)
        claims += [
            Claim(f"{what}, balanced", figures([each.took for each in found])),
            Claim(
                "  moves, and longest pause of a task that stays", f"{max(each.moves for each in found)}, {stays:.2f} s"
            ),
        ]
    return claims


#: Each takes three minutes at most.
PARTS: list[Callable[[bool], list[Claim]]] = [
    partial(leader_killed, "fast"),
    partial(leader_killed, "default"),
    partial(leader_leaves, "fast"),
    partial(leader_leaves, "default"),
    partial(follower_killed, "fast"),
    partial(follower_killed, "default"),
    partial(fourth_joins, "fast", 16),
    partial(fourth_joins, "fast", 1000),
    partial(fourth_joins, "default", 16),
    partial(fourth_joins, "default", 1000),
    fourth_joins_partitioner,
]


def measure(quick: bool) -> list[Claim]:
    """One after the other; what is compared runs at the same time."""
    claims = [Claim(text, "") for text in peers.missing()]
    for part in PARTS:
        claims += part(quick)
        for claim in claims[-4:]:
            say(f"{claim.what}: {claim.figure}")
    return claims


if __name__ == "__main__":
    main(measure, __doc__)
