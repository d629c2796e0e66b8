"""The leader's process is killed: how soon another one leads, with doorbells and without, in each profile.

Processes without Spark on Azurite, three in a group, half of the groups with `processor.bells`; each with a port, as
`samza-azure run` opens it. Counted by the one clock of this machine from just before SIGKILL to the moment at which the
next leader knows that its first write of the control blob was accepted. With and without take turns in one run.
"""

import random
import signal
import time
from collections.abc import Sequence

from common import Claim, main, middle, say
from coordination import JOB, NAMES, TASKS, Mine, balanced
from group import Group, Say, group

from samza_azure import Config
from samza_azure.commands.azurite.emulator import Azurite
from samza_azure.group.rows import LeaderRow
from samza_azure.group.timing import PROFILES, Timing
from samza_azure.group.view import View
from samza_azure.host.bells import add_bell
from samza_azure.host.endpoint import Endpoint
from samza_azure.host.health import Health
from samza_azure.library import factory
from samza_azure.messages import Phase
from samza_azure.metrics.observer import Observer

GOAL_S = 0.25
#: Of each loss, by whether the leader was lost: seconds until the next leader's write, and until all tasks run again.
Losses = dict[bool, list[tuple[float, float]]]


class Told(factory.ThreadedCoordinator):
    """Tells its first write of a leadership, that it has named its successors, and the tasks that its row calls
    RUNNING."""

    def __init__(self, name: str, config: Config, say: Say) -> None:
        settings = factory.settings(name, config)
        super().__init__(settings, lambda: factory._azure(config), Observer(name))
        self._say_, self._wrote = say, 0
        self._named: tuple[int, tuple[str, ...]] = (0, ())
        self._runs: frozenset[tuple[str, int]] = frozenset()

    def _watch(self, view: View) -> None:
        super()._watch(view)
        reports = view.own.written.tasks.values() if view.own.written is not None else ()
        runs = frozenset((each.task, each.generation) for each in reports if each.phase is Phase.RUNNING)
        if runs != self._runs:
            self._runs = runs
            self._say_("runs", runs)
        if view.leads and self.epoch != self._wrote:
            self._wrote = self.epoch
            self._say_("leads", self.epoch)
        row = view.others.leader_row
        named = (row.epoch, row.successors) if isinstance(row, LeaderRow) and view.leads else (0, ())
        if named != self._named:
            self._named = named
            self._say_("names", *named)


def processor(name: str, say: Say, count: int, job: str, has_bell: bool) -> None:
    """The life of a processor's process."""
    coordinator = Told(name, Config.parse(job), say)
    coordinator.ask(new_run=False, wait_for_upgrade=False, only_holder=True)
    health = Health(
        coordinator, steps=lambda: 0, wake=lambda: None, container=lambda: True, leaving=lambda: False, patience=1 << 30
    )
    endpoint = Endpoint(health, more=lambda app: add_bell(app, coordinator))
    port = endpoint.start("127.0.0.1", 0)
    if has_bell and port is not None:
        coordinator.listens("127.0.0.1", port)
    Mine(coordinator, say, count).start()
    coordinator.wait()


def settled(members: Group, count: int) -> str | None:
    """The leader's name, when all is well and it has named all others as its successors."""
    leading = [said for (_, what), said in members.latest.items() if what == "leads"]
    if not leading or balanced(members, count) is None:
        return None
    last = max(leading, key=lambda said: said.about)
    named = members.latest.get((last.who, "names"))
    others = {name for name in members.alive if name != last.who}
    return last.who if named is not None and set(named.about[1]) == others and len(members.alive) > 2 else None


def loss(members: Group, timing: Timing, *, the_leader: bool) -> tuple[float, float]:
    """Kill a processor at a random moment: seconds until the next leader's write, and until all tasks run elsewhere."""
    leads = members.wait("a settled group", lambda: settled(members, TASKS))
    time.sleep(random.uniform(1, 2) * max(timing.heartbeat_s, 1.0))
    victim = leads if the_leader else next(name for name in members.alive if name != leads)
    before = members.latest[leads, "leads"].about
    at = members.send(victim, signal.SIGKILL)

    def led() -> float | None:
        later = [said.at for said in members.said if said.what == "leads" and said.about > before]
        return min(later, default=None)

    taken = members.wait("the next leader", led) - at if the_leader else 0.0
    ran = members.wait("all tasks elsewhere", lambda: balanced(members, TASKS)) - at
    say(f"  {'the leader' if the_leader else 'a follower'} killed: led {taken:.3f} s, ran {ran:.3f} s")
    members.start(victim)
    return taken, ran


def losses(azurite: Azurite, profile: str, times: int, *, bells: bool) -> Losses:
    """Kill the leader and a follower of one group, in turns."""
    job = JOB.format(id=f"{profile}-{bells}-{time.time_ns()}"[:30], connect=azurite.connection_string, profile=profile)
    found: Losses = {True: [], False: []}
    with group(processor, TASKS, job, bells) as members:
        members.start(*NAMES)
        for _ in range(times):
            for the_leader, taken in found.items():
                taken.append(loss(members, PROFILES[profile], the_leader=the_leader))
    return found


def claims_of(profile: str, found: dict[bool, Losses]) -> Sequence[Claim]:
    """The medians, with bells and without."""
    made = []
    for bells in (True, False):
        how = "with bells" if bells else "without"
        led = [taken for taken, _ in found[bells][True]]
        shown = f"{middle(led):.3f} s (median of {len(led)}, {min(led):.3f} to {max(led):.3f} s)"
        what = f"leader killed, until the next one's first accepted write, {profile}, {how}"
        made.append(Claim(what, shown, f"{GOAL_S} s", middle(led) <= GOAL_S) if bells else Claim(what, shown))
        for the_leader, who in ((True, "leader"), (False, "follower")):
            ran = [each for _, each in found[bells][the_leader]]
            made.append(Claim(f"{who} killed, until its tasks run elsewhere, {profile}, {how}", f"{middle(ran):.2f} s"))
    return made


def measure(quick: bool) -> list[Claim]:
    """Each profile, with and without in turns."""
    made: list[Claim] = []
    with Azurite() as azurite:
        for profile in PROFILES:
            rounds: dict[bool, Losses] = {bells: {True: [], False: []} for bells in (True, False)}
            for number in range(1 if quick else 2):
                for bells in (True, False) if number % 2 == 0 else (False, True):
                    say(f"{profile}, {'with' if bells else 'without'} bells")
                    for kind, taken in losses(azurite, profile, 2 if quick else 3, bells=bells).items():
                        rounds[bells][kind] += taken
            made += claims_of(profile, rounds)
    return made


if __name__ == "__main__":
    main(measure, __doc__)
