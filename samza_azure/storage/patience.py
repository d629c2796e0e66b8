"""Refused access that counts as an outage: whoever waits while the storage does not answer waits for access, too."""

from collections.abc import Callable
from typing import Any

from samza_azure.errors import AccessDenied, StorageUnavailable
from samza_azure.group.timing import DENIED_S
from samza_azure.machine.clock import boot_time


class Patient:
    """A storage whose refusals are raised as `StorageUnavailable`, since a running task may be let in again: a token
    expired, a rule changed. A key that was wrong from the beginning is found earlier, by the supervisor."""

    def __init__(self, storage: Any) -> None:
        self._storage = storage

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._storage, name)

        def patiently(*arguments: Any, **options: Any) -> Any:
            try:
                answer = call(*arguments, **options)
            except AccessDenied as error:
                if not self._bears(error):
                    raise
                raise StorageUnavailable(str(error)) from error
            self._let_in()
            return answer

        return patiently

    def _bears(self, error: AccessDenied) -> bool:
        return True

    def _let_in(self) -> None:
        pass


class PatientOnceLetIn(Patient):
    """The same for a program that nobody watches: only for refusals that may pass, only after a call was let in, and
    not for longer than a processor is refused before it ends."""

    def __init__(self, storage: Any, now: Callable[[], float] = boot_time) -> None:
        super().__init__(storage)
        self._now = now
        self._was_let_in = False
        self._refused_since: float | None = None

    def _bears(self, error: AccessDenied) -> bool:
        if self._refused_since is None:
            self._refused_since = self._now()
        return self._was_let_in and error.may_pass and self._now() < self._refused_since + DENIED_S

    def _let_in(self) -> None:
        self._was_let_in, self._refused_since = True, None
