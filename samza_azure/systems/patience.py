"""How long a refusal of the outside is waited for: a role counts some minutes after it was given.

Whoever was let in before waits as long as it takes: `Barred`.
"""

from samza_azure.errors import AccessDenied, StorageUnavailable
from samza_azure.group.timing import ROLE_S
from samza_azure.machine.clock import boot_time

#: Between two tries: at first, and at most.
RETRY_S, RETRY_MAX_S = 2.0, 30.0
#: After so long without a refusal a try counts as let in, also if nothing has come. The clients have waited for less.
CALM_S = 15.0


class Barred(StorageUnavailable):
    """The outside has let this task in before, and refuses it now."""


class Patience:
    """That of one task."""

    def __init__(self) -> None:
        self._since = self._tried_at = 0.0
        self._tries = 0
        self.not_before = 0.0  # the next try
        self.warning = ""  # for people, while it lasts

    def refused(self, error: AccessDenied) -> None:
        """Take in a refusal. Raise it if it cannot pass, or has not passed for ten minutes."""
        now = boot_time()
        self._since = self._since if self._tries else now
        if not error.may_pass or now >= self._since + ROLE_S:
            raise error
        self.not_before = now + min(RETRY_S * 2 ** min(self._tries, 10), RETRY_MAX_S)
        self._tries += 1
        self.warning = f"{error} A right counts some minutes after it was given, so it is tried for {ROLE_S:.0f} s."

    def tries(self) -> None:
        """Note that a try begins, or has neither succeeded nor been refused."""
        self._tried_at = boot_time()

    def let_in(self, *, surely: bool) -> None:
        """Note that a try was not refused. `surely`: something has come, and nobody needs to do anything now; but what
        comes of one partition does not say that the others are let in.
        """
        if boot_time() >= self._tried_at + CALM_S:
            self._tries = 0
        if surely or not self._tries:
            self.warning = ""
