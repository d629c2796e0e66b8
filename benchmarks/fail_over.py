"""How soon all tasks run elsewhere when a JVM, a container's Python or a whole processor is killed or frozen.

Two processors with Spark on Azurite, in the default profile, each with a ready container; the victim is the one that
does not lead. Counted from just before the signal to the moment at which the account shows that every task runs on the
other one. Between two of them the fleet comes to rest: the victim is back and has tasks again. The first one of all is
a figure of its own: the other one's Java has never run these queries before.
"""

import signal
import time
from collections.abc import Sequence
from contextlib import suppress

import psutil
from common import CONNECT, EXAMPLE, Azurite, Claim, main, middle, say, scratch

from samza_azure.commands.fleet import Fleet, all_running
from samza_azure.explain import bounds
from samza_azure.host.processor import call_timeout_s
from samza_azure.spark.jvm.java import GATEWAY, SUBMIT

NAMES = ("one", "two")
PATIENCE_S = 240.0
#: A task that moves is restored by Spark; this much later than the bound its owner may say that it runs.
MORE_S = 2.0
KINDS = ("processor", "JVM", "container's Python")
HOW = {signal.SIGKILL: "killed", signal.SIGSTOP: "frozen"}


def measure(quick: bool) -> list[Claim]:
    """Each kind, killed and frozen, several times."""
    times: dict[tuple[str, signal.Signals], list[float]] = {(kind, how): [] for how in HOW for kind in KINDS}
    with scratch() as directory, Azurite() as emulator:
        for name in ("job.toml", "pipeline.py"):
            (directory / name).write_text((EXAMPLE / name).read_text())
        fleet = Fleet(directory / "job.toml", directory / "logs", {CONNECT: emulator.connection_string})
        try:
            for name in NAMES:
                fleet.start(name)
            first = _moved(fleet, "processor", signal.SIGKILL)
            for _ in range(1 if quick else 5):
                for (kind, how), found in times.items():
                    found.append(_moved(fleet, kind, how))
        finally:
            _thaw(fleet)
            fleet.stop()
        timing = fleet.config.coordinator.timing
    worst = bounds(timing, len(NAMES), call_timeout_s(timing))
    until_they_run = timing.heartbeat_s + timing.look_every_s(len(NAMES))
    bound = worst.follower_lost + until_they_run + MORE_S
    claims = [
        Claim(
            f"fail-over, {kind} {HOW[how]}",
            f"{middle(found):.1f} s (median), {max(found):.1f} s (longest of {len(found)})",
            f"{bound:g} s",
            max(found) <= bound,
        )
        for (kind, how), found in times.items()
    ]
    return [*claims, Claim("fail-over, to a JVM that never ran the tasks", f"{first:.1f} s")]


def _moved(fleet: Fleet, kind: str, how: signal.Signals) -> float:
    """Send the signal; seconds until the other processor runs everything. Then wait until both share the tasks."""
    shown = fleet.wait_until("both run tasks", lambda shown: all_running(shown) and _owners(shown) == set(NAMES), 1e3)
    victim = next(name for name in NAMES if name != shown["leader"])
    whom = _processes(fleet, victim, kind)
    begun = time.monotonic()
    for process in whom:
        process.send_signal(how)
    fleet.wait_until(
        "the other one runs all tasks",
        lambda shown: all_running(shown) and _owners(shown) == {*NAMES} - {victim},
        PATIENCE_S,
    )
    took = time.monotonic() - begun
    say(f"{kind} {HOW[how]}: {took:.1f} s")
    _thaw(fleet)
    if victim not in fleet.alive():
        fleet.start(victim)
    return took


def _processes(fleet: Fleet, name: str, kind: str) -> Sequence[psutil.Process]:
    """Those that get the signal. When a whole processor is killed, the kernel ends what is below its supervisor."""
    supervisor = psutil.Process(fleet.processes[name].pid)
    below = supervisor.children(recursive=True)
    match kind:
        case "JVM":
            return [each for each in below if not {SUBMIT, GATEWAY}.isdisjoint(each.cmdline())]
        case "container's Python":
            return [each for each in below if "samza_azure.container" in each.cmdline()]
    return [supervisor, *below]


def _owners(shown: dict[str, list[dict[str, str]]]) -> set[str]:
    return {task["owner"] for task in shown["tasks"]}


def _thaw(fleet: Fleet) -> None:
    for name in fleet.alive():
        supervisor = psutil.Process(fleet.processes[name].pid)
        for process in (supervisor, *supervisor.children(recursive=True)):
            with suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGCONT)


if __name__ == "__main__":
    main(measure, __doc__)
