"""A processor's id and its directory on this machine, which no other process here may take."""

import socket
from contextlib import suppress
from pathlib import Path

from samza_azure.errors import ConfigError
from samza_azure.machine.folders import private_folder, try_lock
from samza_azure.names import host_part

#: A start so soon after the drain, in seconds, counts as an orchestrator's restart, not as a person's start.
RESTARTED_S = 60.0


class Slot:
    """A processor's id and its directory, held by a lock so that no other process here takes them."""

    def __init__(self, base: Path, processor_id: str, lock_file: int) -> None:
        self.directory, self.processor_id, self._lock_file = base / processor_id, processor_id, lock_file
        private_folder(self.directory)  # state, rows and sockets are below it
        private_folder(self.directory / "container")
        self._mark = self.directory / "drained"
        #: When the last incarnation ended because its run was drained, in seconds since 1970; None: it did not. Reading
        #: it removes the mark, so that it does not count for the incarnation after this one.
        self.drained_at: float | None = None
        with suppress(FileNotFoundError):
            self.drained_at = self._mark.stat().st_mtime
            self._mark.unlink()

    def note_drained(self) -> None:
        """Note that this incarnation ended because the run is drained."""
        self._mark.touch()

    def is_restarted_after_a_drain(self, now: float) -> bool:
        """Whether the run was drained just before `now`, in seconds since 1970: an orchestrator restarts what ends."""
        return self.drained_at is not None and abs(now - self.drained_at) < RESTARTED_S


def take_slot(base: Path, processor_id: str | None) -> Slot:
    """Take the given id, or the host's name with the first free number. Raise `ConfigError` if the id is taken here."""
    try:
        return _slot(base, processor_id)
    except OSError as error:
        raise ConfigError(
            f"{base} cannot hold a processor's files: {error}. Set processor.dir to a writable folder."
        ) from error


def _slot(base: Path, processor_id: str | None) -> Slot:
    if not base.exists():
        private_folder(base)  # otherwise it may be a folder that others use, too
    if processor_id is not None:
        if (lock_file := try_lock(base / f"{processor_id}.lock")) is None:
            raise ConfigError(
                f"A live processor on this machine has the id {processor_id!r}. "
                "End that one, or the samza-azure dev that has started it; or start this one with another --id of "
                "samza-azure run."
            )
        return Slot(base, processor_id, lock_file)
    number, host = 0, host_part(socket.gethostname())
    while True:
        name = f"{host}-{number}"  # the last hyphen separates the two
        if (lock_file := try_lock(base / f"{name}.lock")) is not None:
            return Slot(base, name, lock_file)
        number += 1
