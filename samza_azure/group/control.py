"""The content of the leased control blob: who leads, who runs what, the barrier and the drain.

The first processor that has joined creates it (`election.campaign`; `host/perform.py` refuses if logs of tasks exist).
After that only the leader writes it, or a command while no processor runs (`commands/exclusive.py`), always the
complete value, so no reader sees part of it. It never contains the job's configuration or its secrets. The bytes are
gzipped JSON.

`format` is the format that a reader must know, as in rows and records. A release that adds a field which older ones may
ignore does not change it: older releases keep the field, in any of the values below, when they write the blob again. A
release that changes the meaning of a field, or adds a value to an enum, raises it; older readers then stand by.
"""

import gzip
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import lru_cache
from typing import Any
from zlib import crc32

from samza_azure.errors import CorruptState, ModelTooLarge, TooOld
from samza_azure.foreign import GZIP, parsed, unpacked
from samza_azure.group.notice import Availability
from samza_azure.group.notification import DrainNotification
from samza_azure.group.shape import Grows, made
from samza_azure.logs.names import stage_and_number, stream_and_partition
from samza_azure.logs.position import Ends
from samza_azure.messages import DrainStep

NAME = "control.json"
FORMAT = 1
#: Fields that earlier releases did not write in this format, with their defaults.
LATER: dict[str, Any] = {
    "stop": None,
    "withdrawn": [],
    "finished": [],
    "given_up": {},
    "kept": {},
    "readers": {},
    "described": {},
    "events": [],
    "drains": [],
    "noticed": {},
    "replicas": {},
}
#: The fields that are left out while they are empty, so that releases that do not know them can read the blob.
LEFT_OUT = ("given_up", "kept", "readers", "described", "events", "drains", "noticed", "replicas")
#: The same of a drain notification.
LATER_OF_DRAIN: dict[str, Any] = {"by": "", "asked_ms": 0, "at_ms": []}
#: In characters: the longest reason for giving up a task, since a bad machine may give up thousands.
REASON_LIMIT = 300
#: The part of a signal that says that nobody leads.
VACANT = ":vacant"
#: More partitions than any source has: each becomes a name.
PARTITIONS_LIMIT = 100_000
#: More partitions than all sources of a run have together.
PARTITIONS_IN_ALL = 10 * PARTITIONS_LIMIT
#: Revisions and epochs are columns of rows, which hold 64 bit, and have to rise.
NUMBERS_LIMIT = 1 << 62
#: The text of ten thousand tasks has 3 MiB. As values it takes up to twenty times as much memory.
UNPACKED_LIMIT = 32 << 20


class RunPhase(StrEnum):
    """The phase of the run."""

    NONE = "NONE"  # no run has begun yet
    RUNNING = "RUNNING"
    DRAINING = "DRAINING"
    DRAINED = "DRAINED"
    FAILED = "FAILED"


class BarrierState(StrEnum):
    """Has everyone adopted the version?"""

    START = "START"
    END = "END"
    TIMEOUT = "TIMEOUT"


@dataclass(frozen=True, slots=True, order=True)
class Member(Grows):
    """One life of a processor."""

    processor: str
    incarnation: str


@dataclass(frozen=True, slots=True)
class Owner(Grows):
    """Who runs a task, and the version that gave it to them."""

    processor: str
    incarnation: str
    generation: int

    @property
    def member(self) -> Member:
        """The owner without the generation."""
        return Member(self.processor, self.incarnation)


@dataclass(frozen=True, slots=True)
class Assignment(Grows):
    """One task: its owner, and earlier owners that are not known to have released it."""

    owner: Owner | None = None
    after: tuple[Owner, ...] = ()
    first: bool = True  # its log may not exist yet; only then may the owner create it


@dataclass(frozen=True, slots=True)
class Barrier(Grows):
    """The state of one version's adoption."""

    version: int = 0
    state: BarrierState = BarrierState.END


@dataclass(frozen=True, slots=True)
class Stop(Grows):
    """These incarnations must commit and exit. The next start resumes the run."""

    uuid: str
    members: tuple[Member, ...]


@dataclass(frozen=True, slots=True)
class Noticed(Grows):
    """A processor that will go, and what is known of that."""

    processor: str
    uuid: str = ""  # of the request; empty: the processor had the notice from elsewhere
    why: str = ""
    by_ms: int = 0  # until when it hands over, in milliseconds since 1970; 0: unknown
    state: Availability = Availability.DECOMMISSIONING
    handed_over: int = 0  # of so many tasks, once it is decommissioned
    tasks: int = 0


@dataclass(frozen=True, slots=True)
class GivenUp(Grows):
    """The owner that could not run a task, and why. The task is tried on another processor meanwhile."""

    owner: Owner
    message: str


@dataclass(frozen=True, slots=True)
class Failure(Grows):
    """Why the run is FAILED."""

    stage: str
    task: str
    message: str
    traceback: str


@dataclass(frozen=True, slots=True)
class Event(Grows):
    """Something that happened to the group: milliseconds since 1970 by the leader's clock, a word, a sentence."""

    at_ms: int
    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class Control(Grows):
    """The whole control blob."""

    group_id: str
    revision: int = 0  # +1 with each accepted write
    epoch: int = 0  # +1 with each leadership
    version: int = 0  # the revision at which the assignment last changed
    leader: Member | None = None
    successor: str | None = None
    run_id: str = ""
    phase: RunPhase = RunPhase.NONE
    fingerprint: str = ""
    sources: Mapping[str, int] = field(default_factory=dict)
    readers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # stage -> the source streams that it reads
    described: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # the pipeline, as `Plan.described`
    members: tuple[Member, ...] = ()
    tasks: Mapping[str, Assignment] = field(default_factory=dict)
    given_up: Mapping[str, GivenUp] = field(default_factory=dict)  # task -> an owner that gets it only if no other can
    barrier: Barrier = Barrier()
    drain: DrainNotification | None = None
    drains: tuple[DrainNotification, ...] = ()  # of earlier runs, oldest first, for people
    stop: Stop | None = None
    noticed: Mapping[str, Noticed] = field(default_factory=dict)  # incarnation -> that it will go
    replicas: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # task -> processors that keep one
    withdrawn: tuple[str, ...] = ()  # the latest cancellations obeyed; they are answered only once they are here
    positions: Ends = field(default_factory=dict)  # where this run began to read; after DRAINED: where the next does
    past: tuple[str, ...] = ()  # run ids of the drained runs that are remembered, oldest first
    finished: tuple[str, ...] = ()  # the distinct fingerprints of the latest drained runs
    failure: Failure | None = None
    uncleaned: tuple[str, ...] = ()  # drained runs of which something is left to delete, oldest first
    kept: Mapping[str, int] = field(default_factory=dict)  # uncleaned run -> number of blobs that cannot be deleted
    deposed: Member | None = None  # the previous leader, until it is known whether the suspicion was right
    churn: int = 0  # the number of wrong suspicions of a leader
    events: tuple[Event, ...] = ()  # what happened lately, oldest first; for people
    nonce: str = ""  # lets a writer whose answer was lost see whether its write won

    @property
    def cleaned(self) -> bool:
        """Whether nothing is left of drained runs that can be deleted."""
        return all(run_id in self.kept for run_id in self.uncleaned)

    @property
    def is_final(self) -> bool:
        """Whether the drain of this run is certain: FLUSH was written, whatever has become of the run since."""
        return self.drain is not None and self.drain.step is DrainStep.FLUSH

    def has_finished(self, fingerprint: str) -> bool:
        """Whether a drained run had this pipeline. Such code may be old, so it begins no run without being asked to."""
        return fingerprint in (self.fingerprint, *self.finished)


def signal(control: Control) -> str:
    """A short text that differs whenever a follower has to act on something new besides the assignment.

    What it may learn later is left out: who gave up a task, and which logs exist.
    """
    drain = f"{control.drain.uuid}:{control.drain.step}" if control.drain else "-"
    stop = f":{control.stop.uuid}:{len(control.stop.members)}" if control.stop else ""
    vacant = "" if control.leader else VACANT
    churn = f":churn {control.churn}" if control.churn else ""  # how long a leader may be silent
    cleaned = ":cleaned" if control.phase is RunPhase.DRAINED and control.cleaned else ""  # whoever waits for it ends
    asked = sorted(each.uuid for each in control.noticed.values() if each.uuid)
    going = f":go {crc32(','.join(asked).encode()):08x}" if asked else ""
    placed = json.dumps(control.replicas, sort_keys=True) if control.replicas else ""
    replicas = f":replicas {crc32(placed.encode()):08x}" if placed else ""
    return f"{control.run_id}:{control.phase}:{drain}{stop}{vacant}{churn}{cleaned}{going}{replicas}"


def milestone(control: Control) -> tuple[str, ...]:
    """What differs between two values of which a copy of each is worth keeping: who runs what, and how far the run is.

    Whatever else is in the blob the group finds out again.
    """
    drain = f"{control.drain.uuid} {control.drain.step}" if control.drain is not None else ""
    begins = ",".join(f"{partition} {at}" for partition, at in control.positions.items())
    return str(control.version), control.run_id, control.phase, drain, begins


def announces_vacancy(text: str) -> bool:
    """Whether a signal says that nobody leads."""
    return VACANT in text


def signalled(text: str) -> tuple[str, str]:
    """The run and its phase, as a signal names them. No run id has a colon."""
    run_id, _, rest = text.partition(":")
    return run_id, rest.partition(":")[0]


def encode(control: Control, *, limit: int | None = None) -> bytes:
    """The blob's bytes. Raise `ModelTooLarge` if they exceed `limit`."""
    fields = {"format": FORMAT, **_fields(control)}
    for name in LEFT_OUT:
        if not fields[name]:
            del fields[name]
    if control.drain is not None:
        fields["drain"] = _fields_of_drain(control.drain)
    if control.drains:
        fields["drains"] = [_fields_of_drain(each) for each in control.drains]
    text = json.dumps(fields, separators=(",", ":"), default=_fields, ensure_ascii=False)
    # An error's message may have a lone surrogate, as in a file's name; nobody could read the blob then.
    data = gzip.compress(text.encode(errors="replace"), compresslevel=5, mtime=0)
    if limit is not None and len(data) > limit and control.events:
        return encode(replace(control, events=()), limit=limit)
    if limit is not None and len(data) > limit:
        raise ModelTooLarge(
            f"The job model needs {len(data)} bytes, job.coordinator.azure.blob.length allows {limit}. "
            "Raise that key, or run fewer tasks."
        )
    return data


def _fields(value: Any) -> dict[str, Any]:
    """The fields of one of the values above. `asdict` would copy them deeply, which takes five times as long."""
    fields = {name: getattr(value, name) for name in value.__slots__}
    return {**value.unknown, **fields} if value.unknown else fields


def _fields_of_drain(drain: DrainNotification) -> dict[str, Any]:
    """The fields of a drain notification, under Samza's names."""
    fields = _fields(drain)
    fields["runId"], fields["drainMode"] = fields.pop("run_id"), fields.pop("mode")
    return {name: value for name, value in fields.items() if value or name not in LATER_OF_DRAIN}


def _of_drain(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields of a notification from those under Samza's names."""
    named = LATER_OF_DRAIN | fields
    named["run_id"], named["mode"] = named.pop("runId"), named.pop("drainMode")
    return named


@lru_cache(maxsize=1)
def decode(data: bytes) -> Control:
    """The value of the blob's bytes. The last result is cached.

    Raise `CorruptState` if samza-azure did not write them, `TooOld` if they need a later release.
    """
    try:
        fields: dict[str, Any] = parsed(unpacked(data, UNPACKED_LIMIT, GZIP))
        written_format = fields.pop("format")
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise CorruptState("The control blob is not one that samza-azure wrote", blob=NAME) from error
    if type(written_format) is not int or written_format < 1:
        raise CorruptState("The control blob has no format that samza-azure writes", blob=NAME)
    if written_format > FORMAT:
        raise TooOld(NAME, written_format, FORMAT)
    try:
        if fields["drain"]:
            fields["drain"] = _of_drain(fields["drain"])
        if fields.get("drains"):
            fields["drains"] = [_of_drain(each) for each in fields["drains"]]
        control = made(Control, LATER | fields)
    except KeyError as error:
        raise CorruptState(
            f"The control blob lacks a field that samza-azure writes: {error.args[0]}", blob=NAME
        ) from error
    except (TypeError, ValueError, AttributeError) as error:
        raise CorruptState(
            f"The control blob holds what samza-azure does not write: {error!s:.200}", blob=NAME
        ) from error
    try:
        return _checked(control)
    except ValueError as error:
        raise CorruptState(f"The control blob contradicts itself: {error}", blob=NAME) from error


def _checked(control: Control) -> Control:
    """Raise ValueError for a value that contradicts itself, or that would make many others."""
    if unknown := {stream for streams in control.readers.values() for stream in streams} - control.sources.keys():
        raise ValueError(f"a stage reads {min(unknown)!r:.80}, which is no source")
    if not all(0 <= partitions <= PARTITIONS_LIMIT for partitions in control.sources.values()):
        raise ValueError(f"a source has fewer than 0 or more than {PARTITIONS_LIMIT} partitions")
    if sum(control.sources.values()) > PARTITIONS_IN_ALL:
        raise ValueError("more partitions than any run reads")
    if not all(0 <= number < NUMBERS_LIMIT for number in (control.revision, control.epoch, control.version)):
        raise ValueError("a revision, version or epoch that none has")
    for task in control.tasks:
        try:
            stage_and_number(task)
        except ValueError:
            raise ValueError(f"the task {task!r:.80} has no number") from None
    for partition in control.positions:
        try:
            stream_and_partition(partition)
        except ValueError:
            raise ValueError(f"the source partition {partition!r:.80} has no number") from None
    return control
