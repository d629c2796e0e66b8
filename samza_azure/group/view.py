"""What one processor knows.

`learn` writes it; all decisions read it. What others wrote in rows and in the control blob is hearsay, stored with the
time at which it was seen. `sent_at` is the time just before a call: the effect of an answer may only be counted from
there.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from samza_azure.group import actions
from samza_azure.group.actions import Finish, WriteControl
from samza_azure.group.age import Age
from samza_azure.group.control import Control, Member, Owner, RunPhase
from samza_azure.group.moment import reached
from samza_azure.group.notice import Going, Notice
from samza_azure.group.rows import LeaderRow, ProcessorRow, ProcessorState, Request
from samza_azure.group.timing import (
    BACK_OFF_MOST,
    BEAT_AGAIN,
    CLEAN_AGAIN_MOST_S,
    CLEAN_AGAIN_S,
    LEASE_MARGIN_S,
    LEASE_S,
    LEAVING_BEAT_S,
    NEWS_EXPECTED_S,
    OUT_OF_REACH,
    RELEASE_LOOK_S,
    RENEW_EVERY_S,
    RETRY_S,
    SELF_STOP,
    BackOff,
    Timing,
    draining_look_s,
    draining_scan_s,
)
from samza_azure.messages import Drain, KeepReplicas, Phase, Plan, ReplicaState, TaskError, TaskReport, Use
from samza_azure.outcomes import Missing

#: The phases in which a task can no longer append.
CLOSED = frozenset({Phase.RELEASED, Phase.DRAINED, Phase.SUPERSEDED, Phase.RESTART, Phase.FAILED})


@dataclass(frozen=True, slots=True)
class Doorbell:
    """Where our port takes connections of others, and the secret from which the token of each incarnation is made."""

    host: str
    port: int
    secret: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Settings:
    """What never changes while a processor runs."""

    processor: str
    timing: Timing = field(default_factory=Timing)
    shutdown_s: float = 30.0  # task.shutdown.ms
    restart_limit: int = 5
    blob_limit: int = 5_120_000
    run_id: str = ""  # app.run.id, if set by hand
    new_run: bool = False
    wait_for_upgrade: bool = False
    restarted: bool = False  # just after its run was drained: it waits as well, until it takes part in a run
    boot: str = ""  # identifies this machine's boot
    holds_directory: bool = True  # so a row of this boot with our id belongs to a dead processor
    host: str = ""  # the name of this machine, and the release of samza-azure; for people
    release: str = ""
    replicas: int = 0  # job.standby.replicas
    alone: bool = False  # a group of one: it shares its tasks with nobody, and ends if another processor leads
    doorbell: Doorbell | None = None  # None: no connections to other processors


@dataclass(frozen=True, slots=True)
class Lease:
    """The lease that we hold. `asked_at` is the time of the last request for it, never later than the grant."""

    id: str
    asked_at: float

    @property
    def ends_at(self) -> float:
        """The time from which we no longer act as leader: 55 s after the request. `election.step_down` applies it; a
        refused renewal or write ends the leadership at once (`learn.demote`)."""
        return self.asked_at + LEASE_S - LEASE_MARGIN_S


@dataclass(frozen=True, slots=True)
class Campaign:
    """An attempt to lead, step by step, each conditional on the ETag for which it was begun."""

    etag: str
    asked: str = ""  # the lease id of a request whose answer was lost; it is repeated with the same id
    lease: Lease | None = None
    read: bool = False

    @property
    def lease_id(self) -> str:
        """The lease that is ours, or may be."""
        return self.lease.id if self.lease is not None else self.asked


@dataclass(slots=True)
class LocalTask:
    """A task that our container was ordered to run."""

    generation: int
    attempt: int
    started_at: float
    report: TaskReport | None = None
    releasing_since: float | None = None
    release_by: float | None = None  # as it was told; None: it has no deadline
    failures: int = 0
    error: TaskError | None = None  # of the last failure
    restarts: int = 0  # under this generation
    closed_at: float = 0.0
    lost: bool = False  # it ended because its container ended
    former: bool = False  # it was given to our earlier incarnation, so it can only be released

    @property
    def phase(self) -> Phase:
        """As last reported."""
        return self.report.phase if self.report else Phase.STARTING

    @property
    def closed(self) -> bool:
        """Whether the task can no longer append."""
        return self.phase in CLOSED


@dataclass(frozen=True, slots=True)
class Failing:
    """A resource whose last `times` calls had no answer. No call is made before `until`."""

    times: int
    until: float


@dataclass(frozen=True, slots=True)
class Denial:
    """A kind of call that the account denies: since when, when last, why, and whether a role may yet take effect."""

    since: float
    last: float
    reason: str
    may_pass: bool = False


@dataclass(frozen=True, slots=True)
class SeenRunning:
    """One attempt at a task, and since when it has been seen running."""

    generation: int
    attempt: int
    since: float


@dataclass(frozen=True, slots=True)
class ContainerSeen:
    """Whether a processor has a container, as its row said when we last read it, and since when."""

    ready: bool
    since: float


@dataclass(frozen=True, slots=True)
class Share:
    """What a control blob says about an incarnation. It is computed once, since there may be ten thousand tasks."""

    control: Control
    member: Member
    mine: Mapping[str, Owner]  # its tasks
    awaited: tuple[tuple[str, int], ...]  # what others wait for it to release: task and generation


@dataclass(slots=True)
class OwnIncarnation:
    """What belongs to one of our incarnations. Rejoining replaces the whole value, so nothing old remains."""

    incarnation: str
    found: ProcessorRow | Missing | None = None  # our row as last read; None: read it (again)
    found_age: Age | None = None
    rewritten: int = 0  # how often the row of our id changed while we waited to join
    etag: str | None = None  # of our row; None: not joined
    beat: int = 0
    written: ProcessorRow | None = None
    beat_unsettled: tuple[int, float] | None = None  # a heartbeat whose answer was lost, and when it was first sent
    join_unsettled: bool = False  # the answer to our joining was lost: the row may have been written
    accepted_at: float = -1e9  # when the last accepted heartbeat was sent
    control: Control | Missing | None = None  # as this incarnation has read it, which is what "adopted" means
    control_etag: str = ""
    control_read_at: float = -1e9
    control_read_for: str = ""  # the leader row's ETag for which the control blob was last read
    older_copy: bool = False  # a later read of the control blob gave an older value
    waiting_since: dict[str, float] = field(default_factory=dict)  # task -> since when it waits for earlier owners


@dataclass(slots=True)
class Candidacy:
    """Our attempts to lead. Each refusal replaces the whole value."""

    campaign: Campaign | None = None
    patience: float = 0.5  # at least 0, below 1: our place among the waiting candidates
    hold_until: float = -1e9  # no attempt before this time


@dataclass(slots=True)
class Leadership:
    """What belongs to one of our leaderships. It begins with the accepted write, and the whole value ends with it."""

    lease: Lease
    since: float
    barrier_since: float  # when the version was published, or we became leader
    published_at: float = -1e9
    lost_for: str = ""  # the blob's ETag for which we lost an answer: while the blob has it, that write may be accepted
    deposed_etag: str = ""  # of the former leader's row at our first read; a different one is a sign of life
    requests: tuple[Request, ...] = ()
    request_ages: dict[str, Age] = field(default_factory=dict)
    answering: dict[str, str] = field(default_factory=dict)  # the answers sent; these requests are not obeyed as well
    answered_at: dict[str, float] = field(default_factory=dict)  # when each of our answers was accepted
    requests_read_at: float = -1e9
    too_large: dict[tuple[Member, ...], float] = field(default_factory=dict)  # members, and when to try them again
    in_vain: str = ""  # why the first job model, for which nobody works yet, was too large
    placed: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # task -> its replicas, and since when
    clean_done: str = ""
    clean_kept: tuple[str, int] = ("", 0)  # a run of which only undeletable blobs remain, and their number
    clean_tries: int = 0  # consecutive clean-ups with that result
    cut_off: Mapping[str, float] = field(default_factory=dict)  # incarnation cut off -> since when we reach the blob
    # What we may say of it (`learn._wrote_leader_row`).
    row_etag: str | None = None  # of the leader row when we last wrote it, or of a leader that was silent
    row_sent_at: float = -1e9  # when our last accepted write of it was sent
    free_from: float = float("inf")  # from when no earlier leader says that it leads
    resigns: bool = False  # a write of the control blob that names no leader is under way
    may_have_resigned: bool = False  # the answer to one was lost


@dataclass(frozen=True, slots=True)
class Left:
    """How many hints of a kind may still count, as of a time; more as time passes, up to a limit."""

    count: float = 0.0
    at: float = -1e9


@dataclass(slots=True)
class Others:
    """What was read about the others, and when."""

    leader_row: LeaderRow | Missing | None = None
    leader_age: Age | None = None
    leader_read_at: float = -1e9
    leader_beats: int = 0  # of one leadership of another processor, seen one after the other; counted if `alone`
    leaderless_since: float = 0.0
    members: Mapping[str, ProcessorRow] = field(default_factory=dict)
    ages: dict[str, Age] = field(default_factory=dict)
    scanned_at: float = -1e9  # when the last scan with an answer was sent: what it shows may be that old
    news_expected_at: float = -1e9  # when we last learned of a reason for the leader to announce something soon
    write_seen_at: float = -1e9  # when somebody's row was last seen to have changed, so rows could be written
    read_at: dict[str, float] = field(default_factory=dict)  # when a read of a member's row alone was sent
    seen_alive: frozenset[str] = frozenset()  # incarnations that wrote their row while we watched
    back: Mapping[str, tuple[str, float]] = field(default_factory=dict)  # back before marked dead: incarnation, when
    containers: Mapping[str, ContainerSeen] = field(
        default_factory=dict
    )  # incarnation -> its container, if lately lost
    seen_running: Mapping[str, SeenRunning] = field(default_factory=dict)  # given up elsewhere
    seen_born: frozenset[tuple[str, str]] = frozenset()  # run and task with a log, of which the blob does not say so
    # Hints of other processors (`bells.py`).
    gone: Mapping[str, float] = field(default_factory=dict)  # incarnation whose process is said to have ended -> since
    followed: frozenset[str] = frozenset()  # those of them after which we have tried to lead
    believed: Left = Left()  # how many more of these count
    deaf_until: float = -1e9  # after a wrong one
    rung: bool = False  # there is something to read
    rings: Left = Left()  # how many more of these count


@dataclass(slots=True)
class Work:
    """Our container, its tasks and its run. They outlive an incarnation: the tasks of an earlier one must still be
    released, and a wish for a new run is granted once."""

    plan: Plan | None = None
    container: bool = False
    use: Use = field(default_factory=Use)  # of the machine, by our container
    silent_s: float = 0.0  # for how long the container has said nothing, as its supervisor counts
    killed: bool = False  # the supervisor was told to kill the container
    rejected: str = ""  # why the container cannot run the pipeline
    tasks: dict[str, LocalTask] = field(default_factory=dict)
    attempts: int = 0
    permit_sent: float = 0.0
    drain_sent: Drain | None = None
    replicas_sent: KeepReplicas = field(default_factory=KeepReplicas)
    replicas: Mapping[str, ReplicaState] = field(default_factory=dict)  # that our container has ready
    active_run: str = ""  # the last run in which this process took part: it knew that they have one pipeline


@dataclass(slots=True)
class Calls:
    """Calls to the storage: under way, without an answer, denied. They belong to the process, not an incarnation."""

    busy: dict[str, float] = field(default_factory=dict)
    doubted: dict[str, float] = field(default_factory=dict)  # rows that may differ from what we know, and since when
    failing: dict[str, Failing] = field(default_factory=dict)
    denied: Mapping[str, Denial] = field(default_factory=dict)  # by kind of call; a success of the kind ends it
    let_in: bool = False  # a write of our row was accepted once
    denied_at: float = -1e9  # when the last heartbeat that the account denied was sent
    beat_sent_at: float = -1e9
    troubled_at: float = -1e9  # when a call to the table was last found to have no answer, or was denied
    leader_row_sent_at: float = -1e9
    leader_row_unsettled: LeaderRow | None = None  # as we wrote it; the answer was lost
    unsettled: WriteControl | None = None


@dataclass(slots=True)
class View:
    """Everything known, by what it belongs to. Only `learn` writes it."""

    settings: Settings
    own: OwnIncarnation
    others: Others = field(default_factory=Others)
    candidacy: Candidacy = field(default_factory=Candidacy)
    leadership: Leadership | None = None
    handing_over: Lease | None = None  # the blob no longer names a leader; the lease must still be released
    vacates: bool = False  # meanwhile: nobody says any more that it leads, so the leader row may announce the vacancy
    work: Work = field(default_factory=Work)
    calls: Calls = field(default_factory=Calls)
    group_id: str = ""
    revision: int = -1  # the highest of the control blob that any of our incarnations has read
    too_old_for: int = 0  # a format was read that our release does not know: we stand by until we are restarted
    # Drawn by the host before each turn, so that deciding needs no dice.
    random: float = 0.5
    fresh_id: str = "id"
    wall_ms: int = 0  # for the names of runs and, for people, the times of a drain's steps
    # Going. A notice may be withdrawn, and then goes by its source; a request to leave cannot.
    notices: Mapping[str, Notice] = field(default_factory=dict)
    noticed_life: str = ""  # our incarnation that the blob asks to go
    departs_since: float | None = None
    held: Mapping[str, int] = field(default_factory=dict)  # the tasks that we had since then, with their generations
    repeated: Mapping[str, int] = field(default_factory=dict)  # of these: input rows that their next owners repeat
    going: Going | None = None  # what our row says of it, as of this turn
    # Ending.
    leaving: bool = False
    gave_up: str = ""  # why it leaves, if its host cannot go on
    ending: Finish | None = None
    ending_since: float = 0.0
    finished: Finish | None = None
    turn_at: float | None = None
    # Caches, each with the inputs that it was computed from: there may be a thousand rows, and ten thousand tasks.
    _share: Share | None = field(default=None, repr=False, compare=False)
    _present: tuple[tuple[object, ...], Mapping[str, ProcessorRow]] | None = field(
        default=None, repr=False, compare=False
    )

    @property
    def me(self) -> str:
        """Our processor id."""
        return self.settings.processor

    @property
    def incarnation(self) -> str:
        """The id of our current incarnation."""
        return self.own.incarnation

    @property
    def control(self) -> Control | Missing | None:
        """The control blob as this incarnation has read it."""
        return self.own.control

    @property
    def departs(self) -> bool:
        """Whether we will go: we were asked to leave, or there is a notice."""
        return self.leaving or bool(self.notices)

    @property
    def notice(self) -> Notice | None:
        """The notice that counts: the one that ends first."""
        known = self.notices.values()
        return min(known, key=lambda each: float("inf") if each.by is None else each.by, default=None)

    @property
    def deadline(self) -> float | None:
        """When we will go; None: unknown."""
        return self.notice.by if self.notice is not None else None

    @property
    def lease(self) -> Lease | None:
        """The lease under which we lead."""
        return self.leadership.lease if self.leadership is not None else None

    @property
    def as_leader(self) -> Leadership:
        """What belongs to our leadership. Only a leader may call this."""
        assert self.leadership is not None, "only a leader asks"
        return self.leadership

    @property
    def member(self) -> Member:
        """Our current incarnation."""
        return Member(self.settings.processor, self.incarnation)

    def is_me(self, owner: Owner) -> bool:
        """Whether it is our current incarnation. Called for ten thousand tasks at a time, so it builds no value."""
        return owner.incarnation == self.incarnation and owner.processor == self.settings.processor

    @property
    def has_looked(self) -> bool:
        """Whether all rows were read since we lead. A read that was sent before may be older than the control blob."""
        return self.others.scanned_at >= self.as_leader.since

    @property
    def share(self) -> Share | None:
        """What the control blob says about this incarnation. None without a blob."""
        control, known = self.own.control, self._share
        if not isinstance(control, Control):
            return None
        if known is None or known.control is not control or known.member.incarnation != self.own.incarnation:
            self._share = known = _share_of(control, self.member)
        return known

    @property
    def given(self) -> Mapping[str, Owner]:
        """The tasks that the control blob gives to this incarnation."""
        if self.too_old_for:
            return {}
        share = self.share
        runs = share is not None and share.control.phase in (RunPhase.RUNNING, RunPhase.DRAINING)
        return share.mine if share is not None and runs else {}

    @property
    def present(self) -> Mapping[str, ProcessorRow]:
        """The rows of all live processors; our own as we last wrote it."""
        members, written, going = self.others.members, self.own.written, self.going
        leaves = self.ending is not None or bool(self.notices)
        known, of = self._present, (members, written, going, leaves)
        if known is None or any(one is not other for one, other in zip(known[0], of, strict=True)):
            self._present = known = of, _present(self.me, members, written, going, leaves=leaves)
        return known[1]

    @property
    def timing(self) -> Timing:
        """The profile."""
        return self.settings.timing

    @property
    def leads(self) -> bool:
        """Whether we wrote the control blob last, under a lease that we believe to hold: whether we act as leader."""
        return self.leadership is not None

    def is_leader(self, now: float) -> bool:
        """Whether we say that we lead: whether nobody else can say so. What we do as leader needs no such belief."""
        leading = self.leadership
        if leading is None or leading.resigns or leading.may_have_resigned:
            return False
        return reached(leading.free_from, now) and not reached(self.leader_until, now)

    @property
    def leader_until(self) -> float:
        """Until when others must hold that we lead, unless we write the leader row again: nobody suspects us before the
        whole timeout, so we stop first if the rates of the clocks differ by less than a quarter."""
        leading = self.as_leader
        heeded = leading.row_sent_at + SELF_STOP * self.timing.leader_timeout_s
        return min(leading.lease.ends_at, self.permit_until, heeded)

    @property
    def permit_until(self) -> float:
        """The self-stop deadline: after it no batch starts and nothing is appended. Denied access brings it forward."""
        until = self.own.accepted_at + SELF_STOP * self.timing.heartbeat_timeout_s
        return min(until, self.calls.denied_at) if self.calls.denied_at > self.own.accepted_at else until

    def tries(self, task: str) -> tuple[int, int]:
        """How many consecutive times a task is tried here, and how many it was tried by the processor that gave it up.

        The two share what `task.restart.limit` allows, so a bug that fails everywhere ends the run as soon as with one
        processor. A processor that is alone has all tries.
        """
        every, control = self.settings.restart_limit + 1, self.control
        first = (every + 1) // 2
        if isinstance(control, Control):
            before = control.given_up.get(task)
            if before is not None and before.owner.processor != self.me:
                return max(every - first, 1), first
            if any(member.processor != self.me for member in control.members):
                return first, 0
        return every, 0

    @property
    def beat_every_s(self) -> float:
        """The interval between our heartbeats."""
        most = LEAVING_BEAT_S if self.leaving else self.timing.heartbeat_s
        return min(self.timing.heartbeat_s, most)

    def free(self, name: str, now: float) -> bool:
        """Whether no call to this resource is under way, and no back-off applies."""
        failing = self.calls.failing.get(name)
        return name not in self.calls.busy and (failing is None or reached(failing.until, now))

    def back_off(self, name: str) -> BackOff:
        """The back-off of this resource after failures: never more calls than usual, and fewer with each failure."""
        timing, most = self.timing, BACK_OFF_MOST
        match name:
            case actions.OWN_ROW:  # a lost answer is soon settled by a read; later reads are as frequent as beats
                return BackOff(BEAT_AGAIN * self.beat_every_s, self.beat_every_s)
            case actions.LEADER_ROW if self.lease is not None:  # one processor, and all others watch it
                again_s = BEAT_AGAIN * timing.heartbeat_s
                return BackOff(min(RETRY_S, again_s), again_s)
            case actions.LEADER_ROW:
                return BackOff(self.read_interval(), most * self.read_interval())
            case actions.SCAN:
                return BackOff(self.scan_interval, most * self.scan_interval)
            case actions.CONTROL:
                return BackOff(RETRY_S, most * timing.ask_every_s(self.size))
            case actions.LEASE:
                return BackOff(RETRY_S, RENEW_EVERY_S / most)
            case actions.HOUSEKEEPING:
                return BackOff(CLEAN_AGAIN_S, CLEAN_AGAIN_MOST_S)
        return BackOff(timing.scan_s, most * timing.scan_s)

    def failing_calls(self, name: str) -> int:
        """How many calls to this resource have failed in a row."""
        failing = self.calls.failing.get(name)  # once: the endpoint's thread asks as well, while the loop goes on
        return failing.times if failing is not None else 0

    @property
    def cut_off(self) -> bool:
        """Whether we are a member but cannot reach the control blob. A leader notices the same by its lease."""
        is_out_of_reach = self.failing_calls(actions.CONTROL) >= OUT_OF_REACH
        return is_out_of_reach and self.leadership is None and isinstance(self.control, Control)

    @property
    def hangs(self) -> bool:
        """Whether our container is there, and has said nothing for too long."""
        return self.work.container and self.work.silent_s >= self.timing.hangs_after_s

    def writable(self, name: str, now: float) -> bool:
        """Whether it is free and the row is as we know it. After a refusal or a lost answer it is read again first."""
        return name not in self.calls.doubted and self.free(name, now)

    def watching(self) -> bool:
        """Whether we read at the leader's rate: the leader and its successors do, and all while there is no leader."""
        row = self.others.leader_row
        if self.leadership is not None or isinstance(row, Missing):
            return True
        return isinstance(row, LeaderRow) and self.settings.processor in row.successors

    @property
    def size(self) -> int:
        """The size of the group, as far as we know."""
        control = self.own.control
        return max(len(self.others.members), len(control.members) if isinstance(control, Control) else 0)

    @property
    def scan_interval(self) -> float:
        """The interval at which we read all rows, in seconds."""
        return self.timing.scan_every_s(len(self.others.members))

    @property
    def drains(self) -> bool:
        """Whether a drain or its clean-up is under way. Its steps wait for reads, so these are more frequent then."""
        control = self.control
        if not isinstance(control, Control):
            return False
        return control.phase is RunPhase.DRAINING or (control.phase is RunPhase.DRAINED and not control.cleaned)

    def scan_gap(self) -> float:
        """The leader's gap between two scans. The age of a row is still measured with `scan_interval`."""
        least = draining_scan_s(len(self.others.members))
        return min(self.scan_interval, least) if self.drains or self.awaits_release else self.scan_interval

    def wait_gap(self) -> float:
        """The gap between two reads of the row of a member that has to release a task for us."""
        return min(self.timing.scan_s, RELEASE_LOOK_S) if self.awaits_release else self.timing.scan_s

    @property
    def awaits_release(self) -> bool:
        """Whether we have begun lately to wait for the release of a task: meanwhile nobody runs it."""
        begun = max(self.own.waiting_since.values(), default=None)
        return begun is not None and self.turn_at is not None and self.turn_at < begun + NEWS_EXPECTED_S

    def look_gap(self) -> float:
        """A follower's gap between two reads of the leader row."""
        least, at = draining_look_s(self.size), self.turn_at
        expects_news = at is not None and at < self.others.news_expected_at + NEWS_EXPECTED_S
        return min(self.read_interval(), least) if self.drains or expects_news else self.read_interval()

    def seen_at(self, processor: str) -> float:
        """The time from which we know this member's row, or its absence: the latest read of it was sent then."""
        return max(self.others.scanned_at, self.others.read_at.get(processor, -1e9))

    def read_interval(self) -> float:
        """The interval at which we read the leader row, in seconds.

        It changes with each heartbeat, so those who watch read at the scan rate only after a read without a change.
        """
        if not self.watching():
            return self.timing.look_every_s(self.size)
        is_due = self.others.leader_age is None or self.others.leader_age.reads > 0 or not self.others.leader_age.etag
        return self.timing.scan_s if is_due else self.timing.heartbeat_s


def _share_of(control: Control, member: Member) -> Share:
    processor, incarnation = member.processor, member.incarnation
    mine, awaited = {}, []
    for task, assignment in control.tasks.items():
        owner = assignment.owner
        if owner is not None and owner.incarnation == incarnation and owner.processor == processor:
            mine[task] = owner
        awaited += [
            (task, earlier.generation)
            for earlier in assignment.after
            if earlier.incarnation == incarnation and earlier.processor == processor
        ]
    return Share(control, member, mine, tuple(awaited))


def _present(
    me: str,
    members: Mapping[str, ProcessorRow],
    written: ProcessorRow | None,
    going: Going | None,
    *,
    leaves: bool,
) -> dict[str, ProcessorRow]:
    rows = {processor: row for processor, row in members.items() if row.alive}
    rows.pop(me, None)
    if written is not None and written.alive:
        rows[me] = replace(written, state=ProcessorState.LEAVING, going=going) if leaves else written
    return rows
