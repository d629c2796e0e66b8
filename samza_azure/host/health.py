"""Is this processor alive, and is it ready? Answered from memory: nothing here reads the storage, or waits.

*Alive* means that the coordinator's loop and the main thread run. An unreachable storage, a group without a leader, a
container that starts again and a drain do not count against it: a restart cures none, and costs a start of Java.
*Ready* means that it is a member that can take tasks. No traffic depends on it. It paces a roll-out, which stops at the
first processor that does not join.

Silence is counted in ticks of an observer that stops when the process stops, not in seconds of a clock. So a machine
that was frozen has not been silent, and its processors are not killed when it thaws.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from samza_azure.coordinator import JobCoordinator
from samza_azure.group.actions import CONTROL
from samza_azure.group.ending import patience_s
from samza_azure.group.timing import OUT_OF_REACH
from samza_azure.group.view import View
from samza_azure.machine.clock import boot_time

__all__ = ["TICK_S", "WAKE_AFTER", "Health", "Pulse", "Reason", "patience", "readiness"]

#: The length of the observer's tick, in seconds.
TICK_S = 1.0
#: After how many silent ticks the main thread is woken, to see whether it runs. Waking it more often would hide the
#: silence of a container, which the supervisor counts in waits that time out.
WAKE_AFTER = 10


class Reason(StrEnum):
    """Why a processor is not ready."""

    JOINING = "joining"
    ACCESS = "access"
    STORAGE = "storage"
    CONTAINER = "container"
    LEAVING = "leaving"


def patience(heartbeat_s: float) -> int:
    """The number of silent ticks in a row after which a loop counts as stuck."""
    return int(max(30.0, 10 * heartbeat_s) / TICK_S)


@dataclass(slots=True)
class Pulse:
    """Watches a count. `silent` is the number of ticks for which it has not changed."""

    count: int = -1
    silent: int = 0

    def tick(self, count: int) -> None:
        """Note the present count."""
        self.silent = 0 if count != self.count else self.silent + 1
        self.count = count


def readiness(
    view: View | None, now: float, *, adopted: bool, container: bool, leaving: bool
) -> tuple[Reason, str] | None:
    """Why a processor is not ready, in a word and a sentence; None: it is ready. `view` may be unknown."""
    if leaving:
        return Reason.LEAVING, "The processor hands over its tasks and ends."
    if view is not None and (going := view.going) is not None:
        return Reason.LEAVING, f"The processor will go ({going.why}): {going.in_words()}."
    if view is not None and (denied := list(view.calls.denied.values())):
        last_s = patience_s(denied[0], let_in=view.calls.let_in)
        return Reason.ACCESS, f"{denied[0].reason} If this lasts for {last_s:.0f} s, the processor ends."
    if view is not None and view.own.etag is None:
        return Reason.JOINING, "The processor has no row in the group yet."
    if view is not None and now > view.permit_until:
        silent_s = now - view.own.accepted_at
        return Reason.STORAGE, f"No heartbeat was accepted for {silent_s:.0f} s. Work pauses, and resumes by itself."
    if view is not None and view.failing_calls(CONTROL) >= OUT_OF_REACH:
        return Reason.STORAGE, "The control blob does not answer. If others reach it, they get this processor's tasks."
    if not adopted:
        return Reason.JOINING, "The processor has adopted no version of the job model yet."
    if not container or (view is not None and view.hangs):
        return Reason.CONTAINER, "The container is starting, starts again, or hangs. See its log."
    return None


class Health:
    """The answers of the routes: an HTTP status code and a document."""

    def __init__(
        self,
        coordinator: JobCoordinator,
        *,
        steps: Callable[[], int],
        wake: Callable[[], None],
        container: Callable[[], bool],
        leaving: Callable[[], bool],
        patience: int,
    ) -> None:
        """`steps` returns the number of the main thread's rounds; `wake` makes it do another one."""
        self._coordinator, self._steps, self._wake = coordinator, steps, wake
        self._container, self._leaving, self._patience = container, leaving, patience
        self._loop, self._main = Pulse(), Pulse()

    def tick(self) -> None:
        """Another `TICK_S` of this process's own time has passed."""
        turns = self._coordinator.turns
        if turns is not None:  # a coordinator of the user's own need not count
            self._loop.tick(turns)
        self._main.tick(self._steps())
        if self._main.silent >= WAKE_AFTER:
            self._wake()

    @property
    def alive(self) -> bool:
        """Whether neither the loop nor the main thread counts as stuck."""
        return max(self._loop.silent, self._main.silent) < self._patience

    def live(self) -> tuple[int, dict[str, Any]]:
        """The answer of `/livez`."""
        silent_s = {"coordinator": self._loop.silent * TICK_S, "main": self._main.silent * TICK_S}
        return 200 if self.alive else 503, {"alive": self.alive, "silent_s": silent_s}

    def ready(self) -> tuple[int, dict[str, Any]]:
        """The answer of `/readyz`."""
        why = readiness(
            getattr(self._coordinator, "view", None),
            boot_time(),
            adopted=self._coordinator.job_model is not None,
            container=self._container(),
            leaving=self._leaving(),
        )
        if why is None:
            return 200, {"ready": True}
        return 503, {"ready": False, "reason": why[0], "message": why[1]}
