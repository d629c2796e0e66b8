"""Looks at the end of what is silent: only one that has succeeded says that there is nothing more."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from samza_azure.errors import AccessDenied, StorageUnavailable
from samza_azure.machine.clock import boot_time
from samza_azure.systems.patience import RETRY_MAX_S as REFUSED_MAX_S
from samza_azure.systems.patience import RETRY_S as REFUSED_S

#: What has been silent for so long is looked at, and again after as long.
LOOK_S = 5.0
#: Where a look takes a connection: again after such a part of the silence, if that is longer, and at most so long.
PART, SELDOM_S = 0.3, 60.0
#: Between a look that has failed, and the next one. Who is refused waits as its task does before it is let in.
RETRY_S = 1.0
T = TypeVar("T")


class Look:
    """Looks now and then, in a thread, while nothing comes. `lost` says in words that the end is not known; the first
    look may come at once. With `is_dear` it looks the more seldom, the longer nothing has come.
    """

    def __init__(self, look: Callable[[], None], lost: str, *, at_once: bool = False, is_dear: bool = False) -> None:
        self._look, self._lost, self._is_dear = look, lost, is_dear
        self._looking: Future[None] | None = None
        self._heard_at = boot_time() - LOOK_S * at_once
        self._began_at = self._not_before = 0.0
        self._refusals = 0  # one after the other
        self.unseen: StorageUnavailable | None = None  # why the end is not known

    def heard(self) -> None:
        """Note that something has come."""
        self._heard_at, self.unseen = boot_time(), None

    def see(self, seen_at: float, *, soon: bool = False) -> None:
        """Look if it is time. `seen_at`: when the end was last said; `soon`: not seldom, though a look is dear.

        Raises:
            SamzaAzureError: what the look has raised, but for `StorageUnavailable`, which is kept in `unseen`.

        """
        looking, now = self._looking, boot_time()
        if looking is not None and looking.done():
            self._looking = self.unseen = None
            self._not_before, refusals, self._refusals = now + RETRY_S, self._refusals, 0
            try:
                looking.result()
            except StorageUnavailable as error:
                self.unseen = error
            except AccessDenied:
                self._not_before = now + min(REFUSED_S * 2 ** min(refusals, 10), REFUSED_MAX_S)
                self._refusals = refusals + 1
                raise
            else:
                self._not_before = now
            return
        is_seldom = self._is_dear and not soon
        pause_s = max(LOOK_S, min(PART * (now - self._heard_at), SELDOM_S)) if is_seldom else LOOK_S
        if now < self._not_before or now < max(seen_at, self._heard_at) + pause_s:
            return
        if looking is None:
            self._looking, self._began_at = begun(self._look), now
        elif now > self._began_at + 2 * LOOK_S:
            self.unseen = StorageUnavailable(self._lost)


def begun(function: Callable[[], T]) -> "Future[T]":
    """Call a function in a thread that nobody waits for when the process ends: a client may hang."""
    called: Future[T] = Future()
    name = getattr(function, "__name__", "ask")
    threading.Thread(target=_call, args=[function, called], name=name, daemon=True).start()
    return called


def _call(function: Callable[[], T] | None, called: "Future[T] | None") -> None:
    assert function is not None and called is not None
    try:
        called.set_result(function())
    except Exception as error:  # noqa: BLE001 it is raised where the result is asked for
        called.set_exception(error)
    finally:
        function = called = None  # else the error would hold them by its traceback, and they the error
