"""The scenario that a seed determines: the size of the fleet, its faults, and their rate.

Each seed has only some of the faults, so that they do not mask each other. There are three styles: a *storm*, in which
anything happens at any moment; a *busy* fleet, whose leaders, members and runs change all the time; and *mild* trouble
that never ends, under which the work must continue.

`draw` gives most busy fleets the same size, profile and clocks. `dense` makes them smaller, and more happens to them.
`wide` varies size, profile and clocks, and lets faults last.
"""

from dataclasses import dataclass, replace
from random import Random

from samza_azure.group.timing import PROFILES, Timing

#: The faults of a fleet. Those of single calls are in `Weather`.
FAULTS = (
    "crash",
    "crash, other id",
    "container dies",
    "supervisor freezes",
    "container freezes",
    "machine freezes",
    "clock jumps",
    "outage",
    "cut off",
    "leaves",
    "joins",
    "drain",
    "cancel",
    "stop",
    "garbage",
    "poison",
    "old code",
    "bad machine",
    "other stages",
    "access refused",
)
#: Faults that were added later. They have random numbers of their own, so that older seeds keep their histories.
LATER = ("bad machine", "other stages", "access refused")
#: Notices, after which the processors die: one, the leader, two at once, all at once; and one that is withdrawn.
NOTICED = ("noticed", "noticed, the leader", "noticed, several", "noticed, all", "notice withdrawn")
#: The faults of a busy fleet: they change the leader, move tasks and end runs, without long silences.
BUSY = (*["leaves"] * 12, *["drain"] * 8, "crash", "crash", "stop")
#: The faults of a dense fleet: processors are asked to leave as soon as they are back.
DENSE = (*["leaves"] * 20, *["drain"] * 7, "crash", "crash", "stop")
#: The faults that wait for a step in a busy fleet. An outage is drawn four times as often: it has four kinds.
AIMED = tuple(kind for kind in (*FAULTS, *["outage"] * 3) if kind != "crash, other id" and kind not in LATER)

#: Faults last for at most this many heartbeats of all processors together, so that each wide fleet takes seconds.
WIDE_BEATS = 1200.0


@dataclass(frozen=True, slots=True)
class Scenario:
    """One scenario: the fleet and its faults."""

    seed: int
    style: str  # storm, busy, mild
    processors: int
    sources: int
    counts: int
    profile: str
    fault_s: float  # how long faults last
    every_s: float  # the mean time between faults
    faults: tuple[str, ...] = ()
    aimed: float = 0.0  # part of the faults that wait for a certain protocol step
    tail: float = 0.0
    refused: float = 0.0
    lost: float = 0.0
    late: float = 0.0
    slow_batch: float = 0.0
    slow_release: float = 0.0
    clocks: bool = False  # clocks run at different rates
    forgets: bool = False  # containers delete old blobs of logs that are read
    audited: bool = False  # a second stage reads the source
    handled: bool = False  # the second stage has low-level tasks
    shuts_down: bool = False  # these ask for their shutdown
    aims: tuple[str, ...] = ()  # the faults that wait; if empty, they are drawn like the others
    timing: Timing | None = None  # that of a job; otherwise the profile's
    rare: tuple[tuple[str, str], ...] = ()  # the pairs of fault and step of most faults that wait
    lasting: bool = False  # faults outlast leases and versions, writes land after an outage, the last drain's run fails
    throttled: bool = False  # in one of the outages the service refuses a part of the calls
    watched: bool = False  # when no processor is left, one is started with the code of the run
    pauses: bool = False  # at times the sources have no new rows, and their readers report that
    lulls: bool = False  # one processor dies without other faults until that must have healed
    replicas: int = 0  # of each task with state
    bells: bool = False  # processors have doorbells: lost, late, doubled and false ones too
    waits: bool = False  # most processors wait for an upgrade after a drain, until an operator replaces them


def draw(seed: int, *, processors: int | None = None, fault_s: float | None = None) -> Scenario:
    """The scenario of a seed."""
    dice = Random(f"scenario {seed}")
    style = dice.choice(["storm"] * 4 + ["busy"] * 3 + ["mild"])
    drawn = {"storm": _storm, "busy": _busy, "mild": _mild}[style](seed, dice, processors, fault_s)
    # Added later, with random numbers of their own.
    forgets, audited = Random(f"forgets {seed}").random() < 0.5, Random(f"audited {seed}").random() < 0.3
    handled = Random(f"handled {seed}").random() < 0.5
    shuts_down = handled and Random(f"shuts down {seed}").random() < 0.5
    waits = style != "mild" and Random(f"waits {seed}").random() < 0.15
    return replace(drawn, forgets=forgets, audited=audited, handled=handled, shuts_down=shuts_down, waits=waits)


def dense(seed: int) -> Scenario:
    """The busy fleet of this seed, but smaller and with more faults, so that each second shows more.

    It has random numbers of its own, like `wide`.
    """
    dice = Random(f"dense {seed}")
    processors = dice.choice([3, 4, 4, 5])
    drawn = draw(seed, processors=processors, fault_s=400.0)
    return replace(drawn, sources=dice.choice([2, 2, 3]), every_s=0.9, aimed=0.16, faults=DENSE, watched=True)


def wide(seed: int) -> Scenario:
    """A scenario of any style for this seed, in a fleet of any size, with any profile and clocks.

    It has random numbers of its own, so that the scenarios of `draw` stay as they are.
    """
    dice = Random(f"wide {seed}")
    drawn = draw(dice.getrandbits(31))
    is_mild = drawn.style == "mild"
    processors = dice.randint(2 if is_mild else 1, 12)  # a single one may die
    # For `fast`, a call of a second is not mild.
    profile = dice.choice(["eco", "default"] if is_mild else list(PROFILES))
    most_s = WIDE_BEATS * PROFILES[profile].heartbeat_s / processors
    return replace(
        drawn,
        seed=seed,
        processors=processors,
        profile=profile,
        fault_s=min(drawn.fault_s, most_s),
        clocks=dice.random() < 0.5,
        lasting=dice.random() < 0.9,
        throttled=dice.random() < 0.5,
        pauses=dice.random() < 0.5,
        lulls=dice.random() < 0.9,
    )


def noticed(seed: int) -> Scenario:
    """A fleet whose processors are told that they will go, and then die, with little else; in every second one also
    with other faults. It has random numbers of its own, like `wide`.
    """
    dice = Random(f"noticed {seed}")
    others = dice.choice([(), (), ("drain", "cancel", "leaves"), ("crash", "outage", "drain", "container dies")])
    return Scenario(
        seed=seed,
        style="storm",
        processors=dice.choice([2, 3, 3, 4, 5]),
        sources=dice.choice([1, 2, 4]),
        counts=dice.choice([1, 3]),
        profile=dice.choice(["fast", "default", "default", "eco"]),
        fault_s=300.0,
        every_s=dice.choice([10.0, 30.0, 30.0]),
        faults=(*NOTICED, *others),
        aimed=dice.choice([0.0, 0.3]),
        lost=dice.choice([0.0, 0.0, 0.02]),
        slow_batch=dice.choice([0.0, 0.0, 0.2]),
        clocks=dice.random() < 0.3,
        watched=True,
    )


def replicated(seed: int) -> Scenario:
    """The fleet of `noticed` or a storm, whose processors keep replicas of each other's tasks; logs roll often, and old
    blobs of half of them are deleted.
    """
    dice = Random(f"replicated {seed}")
    drawn = draw(dice.getrandbits(31)) if dice.random() < 0.5 else noticed(dice.getrandbits(31))
    processors = max(drawn.processors, 2)
    return replace(
        drawn, seed=seed, processors=processors, replicas=dice.choice([1, 1, 2]), forgets=dice.random() < 0.5
    )


def belled(seed: int) -> Scenario:
    """A fleet whose processors have doorbells, of which some are lost, late, doubled, false or hostile: a small one
    with little else, or, every third, one of any kind. It has random numbers of its own, like `wide`.
    """
    dice = Random(f"belled {seed}")
    bells = ("false bell", "false bell", "hostile bells")
    if seed % 3 == 2:
        drawn = dice.choice([draw, draw, wide, noticed])(dice.getrandbits(31))
        faults = (*drawn.faults, *bells, "crash") if drawn.style != "mild" else ()
        return replace(drawn, seed=seed, bells=True, processors=max(drawn.processors, 3), faults=faults)
    return Scenario(
        seed=seed,
        style="storm",
        processors=3,
        sources=1,
        counts=1,
        profile=dice.choice(["default", "default", "eco"]),
        fault_s=120.0,
        every_s=8.0,
        faults=(*bells, "crash", "crash", "crash", "crash, other id", "machine freezes", "cut off"),
        aimed=0.3,
        lost=dice.choice([0.0, 0.0, 0.02]),
        clocks=dice.random() < 0.3,
        bells=True,
    )


def _storm(seed: int, dice: Random, processors: int | None, fault_s: float | None) -> Scenario:
    def some(most: float) -> float:
        return dice.choice([0.0, most / 10, most])

    drawn = dice.choice([1, 2, 3, 3, 3, 5])
    later = tuple(kind for kind in LATER if Random(f"{kind} {seed}").random() < 0.4)
    return Scenario(
        seed=seed,
        style="storm",
        processors=processors or drawn,
        sources=dice.choice([1, 2, 3, 4]),
        counts=dice.choice([1, 2, 3]),
        profile=dice.choice(["fast", "default", "default", "eco"]),
        fault_s=fault_s or dice.choice([60.0, 120.0, 240.0]),
        every_s=dice.choice([5.0, 15.0, 40.0]),
        faults=tuple(kind for kind in FAULTS if kind not in LATER and dice.random() < 0.4) + later,
        aimed=dice.choice([0.0, 0.5]),
        tail=some(0.2),
        refused=some(0.2),
        lost=some(0.2),
        late=some(0.1),
        slow_batch=some(0.1),
        slow_release=some(0.5),
        clocks=dice.random() < 0.3,
    )


def _busy(seed: int, dice: Random, processors: int | None, fault_s: float | None) -> Scenario:
    some = dice.choice([0.0, 0.0, 0.0, 0.01])
    later = LATER if Random(f"later {seed}").random() < 0.7 else ()
    return Scenario(
        seed=seed,
        style="busy",
        processors=processors or 5,
        sources=4,
        counts=dice.choice([2, 3]),
        profile="default",
        fault_s=fault_s or 300.0,
        every_s=1.0,
        faults=BUSY,
        aimed=0.25,
        tail=some,
        refused=some,
        lost=some,
        late=some / 2,
        slow_batch=dice.choice([0.0, 0.0, 0.08]),
        slow_release=dice.choice([0.0, 0.0, 0.5]),
        clocks=False,
        aims=AIMED + later,
    )


def _mild(seed: int, dice: Random, processors: int | None, fault_s: float | None) -> Scenario:
    """1 % errors, one call of a hundred takes up to a second."""
    return Scenario(
        seed=seed,
        style="mild",
        processors=processors or dice.choice([3, 5]),
        sources=dice.choice([2, 4]),
        counts=dice.choice([1, 3]),
        profile=dice.choice(["default", "default", "eco"]),
        fault_s=fault_s or 240.0,
        every_s=60.0,
        faults=(),
        aimed=0.0,
        tail=0.01,
        refused=0.005,
        lost=0.005,
        late=0.0,
        slow_batch=0.0,
        slow_release=0.0,
        clocks=dice.random() < 0.3,
    )


__all__ = [
    "AIMED",
    "BUSY",
    "DENSE",
    "FAULTS",
    "NOTICED",
    "Scenario",
    "belled",
    "dense",
    "draw",
    "noticed",
    "replicated",
    "wide",
]
