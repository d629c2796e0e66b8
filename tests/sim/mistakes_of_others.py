"""What other coordinators get wrong, or avoid by a rule that we share: each as one small change of our code."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from samza_azure.errors import Unsettled
from samza_azure.group import control, election, membership, publish, replicas, tasks, timing, warm_up
from samza_azure.group import drain as draining
from samza_azure.group import learn as learning
from samza_azure.group import view as viewing
from samza_azure.group.actions import AcquireLease, MarkDead, MergeOwnRow, Tell, WriteControl
from samza_azure.group.age import Age
from samza_azure.group.answers import Trouble
from samza_azure.host import perform as performing
from samza_azure.host import processor as hosting
from samza_azure.logs import repeating
from samza_azure.logs import task_log as logs
from samza_azure.logs.operations import Create, Put
from samza_azure.messages import DrainStep, ReleaseTask
from samza_azure.outcomes import Missing, Refused
from samza_azure.storage import memory
from simulator import container as containers

Patch = pytest.MonkeyPatch
Storage = memory.MemoryStorage


# Fences, taken away from mistakes that they would hide.


def without_if_match(patch: Patch) -> None:
    """The control blob is written whatever it is by now."""
    write = Storage.control_write

    def blindly(self: Any, data: bytes, etag: str, lease_id: str) -> Any:
        return write(self, data, self._blobs[control.NAME].etag, lease_id)

    patch.setattr(Storage, "control_write", blindly)


def without_lease_id(patch: Patch) -> None:
    """The control blob is written without regard to its lease."""
    patch.setattr(Storage, "_unless_leased", lambda self, blob, lease_id: None)


# Leading.


def break_with_a_period(patch: Patch) -> None:
    """lease libraries: a broken lease stays valid until its time is over."""

    def later(self: Any, etag: str | None) -> Any:
        return None

    patch.setattr(Storage, "lease_break", later)


def counted_from_the_answer(patch: Patch) -> None:
    """etcd, DistributedLock: deadlines count from the answer, not from before the request."""
    learn = learning.learn
    patch.setattr(
        hosting, "learn", lambda view, action, answer, sent_at, now: learn(view, action, answer, sent_at=now, now=now)
    )


def trouble_is_an_etag(patch: Patch) -> None:
    """DurableTask, WebJobs: every error except 409 and 412 counts as a renewal."""
    learn = learning.learn

    def believing(view: Any, action: Any, answer: Any, *, sent_at: float, now: float) -> None:
        if isinstance(action, MergeOwnRow) and isinstance(answer, Trouble):
            answer = view.own.etag
        learn(view, action, answer, sent_at=sent_at, now=now)

    patch.setattr(hosting, "learn", believing)


def a_failed_claim_is_a_claim(patch: Patch) -> None:
    """Event Hubs: a processor whose claim failed acts as if it had succeeded."""
    learn = learning.learn

    def keeping(view: Any, action: Any, answer: Any, *, sent_at: float, now: float) -> None:
        if isinstance(action, AcquireLease) and not isinstance(answer, Missing):
            answer = None
        learn(view, action, answer, sent_at=sent_at, now=now)

    patch.setattr(hosting, "learn", keeping)


def one_lease_id_for_all(patch: Patch) -> None:
    """DurableTask, WebJobs: the lease id is derived from a name, so another process holds the same lease."""
    perform = performing._perform

    async def shared(action: Any, *rest: Any) -> Any:
        if getattr(action, "lease_id", None):
            action = replace(action, lease_id="the application")
        return await perform(action, *rest)

    patch.setattr(performing, "_perform", shared)


def no_deadline_of_the_lease(patch: Patch) -> None:
    """kazoo, client-go: nothing stops a leader whose lease expired, or was broken, while it could not see it."""
    patch.setattr(viewing.Lease, "ends_at", property(lambda lease: float("inf")))
    nothing = Trouble.UNAVAILABLE
    learn = learning.learn

    def deaf(view: Any, action: Any, answer: Any, *, sent_at: float, now: float) -> None:
        leads = view.lease is not None
        if leads and isinstance(answer, Refused) and type(action).__name__ in ("RenewLease", "WriteLeaderRow"):
            answer = nothing
        learn(view, action, answer, sent_at=sent_at, now=now)

    patch.setattr(hosting, "learn", deaf)


def blind_retry_of_a_publish(patch: Patch) -> None:
    """conditional writes: a write whose answer was lost is sent again with the current ETag."""
    perform = performing._perform

    async def insisting(action: Any, me: str, blob: Any, *rest: Any) -> Any:
        try:
            return await perform(action, me, blob, *rest)
        except Unsettled:
            if not isinstance(action, WriteControl):
                raise
            content = await blob.read(timeout=3.0)
            return await perform(replace(action, etag=content.etag), me, blob, *rest)

    patch.setattr(performing, "_perform", insisting)


def no_back_off(patch: Patch) -> None:
    """retry loops: a failed call is repeated at once."""
    patch.setattr(timing.BackOff, "after", lambda self, failures, random: 0.0)


def the_transport_tries_again(patch: Patch) -> None:
    """SDK retries: a client library that repeats conditional writes is refused because of its own first attempt."""
    perform = performing._perform

    async def twice(action: Any, *rest: Any) -> Any:
        try:
            return await perform(action, *rest)
        except Unsettled:
            return await perform(action, *rest)

    patch.setattr(performing, "_perform", twice)


def calls_without_an_end(patch: Patch) -> None:
    """kubernetes#44887: a call that hangs is never ended."""
    patch.setattr(hosting, "call_timeout_s", lambda timing: 1e9)


def nobody_follows_the_leader(patch: Patch) -> None:
    """a leader forever: processors campaign for leadership only at the start."""
    patch.setattr(election, "_suspect", lambda view: False)


# Members.


def age_by_the_clock(patch: Patch) -> None:
    """Patroni: silence is the time since the row was last seen to change."""

    def observed(age: Age | None, etag: str, now: float, interval_s: float, before_s: float = 0.0) -> Age:
        if age is None or age.etag != etag:
            return Age(etag, 0.0, 0, now)
        return Age(etag, age.seconds + now - age.read_at, 3, now)

    patch.setattr(learning, "observed", observed)
    patch.setattr(learning, "_forget_ages", lambda view, now: None)


def age_by_the_wall(patch: Patch) -> None:
    """DurableTask, Event Hubs: a timestamp of another machine is compared with the local clock."""
    written: dict[str, float] = {}
    upsert, learn_members = Storage.upsert, learning._learn_members

    def stamped(self: Any, partition: str, key: str, values: Any) -> str:
        etag = upsert(self, partition, key, values)
        written[etag] = 1_700_000_000 + self._clock()
        return etag

    def by_timestamp(view: Any, rows: Any, sent_at: float, now: float) -> None:
        learn_members(view, rows, sent_at, now)
        view.others.ages = {
            name: Age(age.etag, view.wall_ms / 1000 - written[age.etag], 3, now)
            for name, age in view.others.ages.items()
        }

    patch.setattr(Storage, "upsert", stamped)
    patch.setattr(learning, "_learn_members", by_timestamp)


def marks_while_cut_off(patch: Patch) -> None:
    """observers in an outage: they judge others although their own heartbeats fail, and count an outage as silence."""
    patch.setattr(learning, "_forget_ages", lambda view, now: None)
    mark = membership.mark_dead

    def judging(view: Any, control: Any, now: float) -> list[Any]:
        known, view.own.accepted_at = view.own.accepted_at, now
        try:
            return mark(view, control, now)
        finally:
            view.own.accepted_at = known

    patch.setattr(membership, "mark_dead", judging)


def an_unfenced_dead_mark(patch: Patch) -> None:
    """Orleans before votes: the dead mark goes to the present row, not to the row whose age was measured."""
    perform = performing._perform

    async def anyhow(action: Any, me: str, blob: Any, table: Any, *rest: Any) -> Any:
        if isinstance(action, MarkDead):
            row = await table.get("members", action.processor, timeout=1.0)
            action = replace(action, etag=row.etag if row is not None else action.etag)
        return await perform(action, me, blob, table, *rest)

    patch.setattr(performing, "_perform", anyhow)


def rows_are_deleted_by_name(patch: Patch) -> None:
    """Samza's ETag *: a row is deleted, whichever incarnation has it by now."""
    remove = Storage.remove

    def by_name(self: Any, partition: str, key: str, etag: str) -> Any:
        entity = self._rows.get((partition, key))
        return remove(self, partition, key, entity.etag if entity else etag)

    patch.setattr(Storage, "remove", by_name)


def torn_scans(patch: Patch) -> None:
    """Orleans#10381: a scan of many rows misses one now and then."""
    query = Storage.query
    reads = iter(range(1 << 30))

    def torn(self: Any, partition: str) -> Any:
        rows = query(self, partition)
        return rows[:-1] if partition == "members" and len(rows) > 1 and next(reads) % 17 == 0 else rows

    patch.setattr(Storage, "query", torn)


# Tasks.


def stop_the_world(patch: Patch) -> None:
    """Samza, Kafka's eager protocol, kazoo's SetPartitioner: every version stops every task."""
    run = tasks.commands

    def eager(view: Any, now: float) -> list[Any]:
        actions = run(view, now)
        version = getattr(view.control, "version", 0)
        if version != versions.get(id(view), version):
            actions += [Tell(ReleaseTask(task)) for task, local in view.work.tasks.items() if not local.closed]
        versions[id(view)] = version
        return actions

    versions: dict[int, int] = {}
    patch.setattr(tasks, "commands", eager)


def the_owner_that_does_not_run(patch: Patch) -> None:
    """durabletask#1389: a task that failed once keeps its owner and is never restarted."""
    may_start = tasks._may_start

    def once(view: Any, task: str, owner: Any, now: float) -> bool:
        return bool(task not in view.work.tasks and may_start(view, task, owner, now))

    patch.setattr(tasks, "_may_start", once)


def the_gainer_does_not_wait(patch: Patch) -> None:
    """Event Hubs: the new owner of a partition starts to read while the former one still reads it."""
    patch.setattr(tasks, "_is_released_by", lambda view, task, earlier, now: True)


def predecessors_are_forgotten(patch: Patch) -> None:
    """our review: a task gets a new owner, and its former owner is not recorded."""
    decided = publish.next_control

    def without(view: Any, known: Any, now: float) -> Any:
        after = decided(view, known, now)
        tasks = {task: replace(each, after=()) for task, each in after.tasks.items()}
        return replace(after, tasks=tasks) if after.tasks != known.tasks else after

    patch.setattr(publish, "next_control", without)


def dead_after_three_timeouts(patch: Patch) -> None:
    """our review: a processor is marked dead three times as late as promised."""
    timeouts = {each.heartbeat_timeout_s for each in timing.PROFILES.values()}
    silent = Age.silent
    patch.setattr(Age, "silent", lambda age, limit: silent(age, 3 * limit if limit in timeouts else limit))


def a_leader_is_suspected_late(patch: Patch) -> None:
    """our review: a leader is suspected three times as late as promised."""
    timeout = election.leader_timeout
    patch.setattr(election, "leader_timeout", lambda view: 3 * timeout(view))


# The logs.


def unconditional_append(patch: Patch) -> None:
    """Event Hubs: a checkpoint is written whatever it was before; appends carry no position."""
    append = Storage.append

    def anywhere(self: Any, name: str, data: bytes, position: int) -> Any:
        blob = self._blobs.get(name)
        return append(self, name, data, len(blob.data) if blob else position)

    patch.setattr(Storage, "append", anywhere)


def takes_the_log_back(patch: Patch) -> None:
    """position alone: any writer that has read to the end of a log may append EPOCH, even an older one."""
    take_over = logs.take_over

    def reckless(log: Any, **arguments: Any) -> Any:
        inner = take_over(log, **arguments)
        answer = None
        while True:
            try:
                operation = inner.send(answer)
            except StopIteration as stop:
                return stop.value
            except logs.Superseded:
                yield from logs._append_encoded(log, (yield from logs._opening(log, {})))
                return None
            answer = yield operation

    patch.setattr(containers, "take_over", reckless)
    patch.setattr(logs.TaskLog, "_check", lambda self, header: None)


def created_again(patch: Patch) -> None:
    """the SDK's default: creating a blob that exists empties it (no If-None-Match)."""

    def afresh(self: Any, name: str) -> bool:
        self._blobs.pop(name, None)
        self._blobs[name] = memory._Blob(bytearray(), self._next_etag(), "append")
        return True

    patch.setattr(Storage, "create", afresh)


def work_without_a_permit(patch: Patch) -> None:
    """one check too few: the permit is checked before a batch, but not again before its append."""
    patch.setattr(repeating, "Writing", Create | Put)


# Event time and the drain.


def silence_is_idleness(patch: Patch) -> None:
    """watermark heuristics: a producer that has been silent for some seconds no longer holds the others back."""
    heard: dict[tuple[int, str], tuple[int | None, float]] = {}

    def progress(self: Any, producers: list[str]) -> int:
        now, state = asyncio.get_running_loop().time(), self.state
        for each in producers:
            frontier = state.frontiers.get(each)
            if heard.get((id(self), each), (-1, 0.0))[0] != frontier:
                heard[id(self), each] = (frontier, now)
        loud = [each for each in producers if each not in state.drained and now < heard[id(self), each][1] + 5]
        return min((state.frontiers.get(each) or -1 for each in loud), default=-1)

    patch.setattr(containers.TaskAttempt, "progress", progress)


def the_fastest_producer_counts(patch: Patch) -> None:
    """Spark's own watermark: the watermark follows the greatest event time of any producer."""

    def progress(self: Any, producers: list[str]) -> int:
        return max((self.state.frontiers.get(each) or -1 for each in producers), default=-1)

    patch.setattr(containers.TaskAttempt, "progress", progress)


def flushes_too_early(patch: Patch) -> None:
    """a drain in a hurry: FLUSH is written when the first reader has stopped."""

    def progress(control: Any, rows: Any, plan: Any) -> Any:
        drain = control.drain
        if drain is not None and drain.step is DrainStep.FREEZE and plan is not None:
            reports = [draining.report_of(task, each.owner, rows) for task, each in control.tasks.items()]
            ends = [report.ends for report in reports if report is not None and report.ends]
            if ends:
                ends_now = draining.furthest(ends, control.positions)
                return replace(control, drain=replace(drain, step=DrainStep.FLUSH, ends=ends_now))
        return original(control, rows, plan)

    original = draining.progress
    patch.setattr(publish, "progress", progress)


def drained_when_all_are_told(patch: Patch) -> None:
    """a drain in a hurry: DRAINED is written when all processors have read FLUSH, not when every log ends in
    DRAINED."""

    def progress(control: Any, rows: Any, plan: Any) -> Any:
        drain = control.drain
        if drain is not None and drain.step is DrainStep.FLUSH and control.phase == "DRAINING":
            return replace(
                control, phase=draining.RunPhase.DRAINED, positions=drain.ends, past=(*control.past, control.run_id)
            )
        return original(control, rows, plan)

    original = draining.progress
    patch.setattr(publish, "progress", progress)


def any_freeze_will_do(patch: Patch) -> None:
    """a drain in a hurry: the position where a task stopped for a cancelled drain counts for the next drain."""
    patch.setattr(draining, "_stopped_at", lambda report, drain: report.ends if report is not None else None)


def forgets_who_has_what(patch: pytest.MonkeyPatch) -> None:
    """librdkafka#3306: tasks move without a reason."""
    assign = publish.assign
    patch.setattr(publish, "assign", lambda tasks, members, current, **more: assign(tasks, members, {}, **more))


def what_goes_keeps_its_tasks(patch: Patch) -> None:
    """Spark: a worker that is decommissioned is given nothing new, and keeps what it runs until it is gone."""
    kept = publish.containers.kept

    def all_kept(view: Any, given: control.Control, able: Any) -> set[str]:
        return kept(view, given, {})

    patch.setattr(publish.containers, "kept", all_kept)


def moves_before_its_state(patch: Patch) -> None:
    """Kafka: before KIP-441 a task moves to a consumer that joins, which restores its state while the task stands."""
    patch.setattr(replicas, "heavy", lambda view, given: set())


def nobody_warms_up(patch: Patch) -> None:
    """KIP-441: tasks wait for the processor that will get them, and it is not told to follow them."""
    patch.setattr(warm_up, "begun", lambda warm_ups, followed: {})


def a_withdrawn_notice_costs_the_leadership(patch: Patch) -> None:
    """Spark: who was decommissioned stays out, whatever becomes of its machine. Here, while it leads without tasks."""
    heir = election.heir

    def of_one_that_stays(view: Any, given: control.Control, now: float) -> str | None:
        was_told = view.own.written is not None and view.own.written.was_going and not view.departs
        is_idle = was_told and view.ending is None and view.has_looked and not (view.share and view.share.mine)
        return heir(view, given, now) or next(iter(election.successors_of(view, given) if is_idle else ()), None)

    patch.setattr(election, "heir", of_one_that_stays)


def a_leader_that_goes_leads_on(patch: Patch) -> None:
    """Samza: a leader that is told to go hands over nothing before it is gone."""
    patch.setattr(election, "heir", lambda view, control, now: None)
