"""Task logs without a fleet: their owners change in mid-call, answers get lost, and what they delete is not needed.

Part of `pieces`, as `streams` is. What is in the storage in the end is read by `plain`, and must be what was reported.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import pairwise
from random import Random
from typing import Any

from samza_azure.errors import CorruptState, StateLost, Superseded
from samza_azure.logs.forget import kept, outdated
from samza_azure.logs.names import blob_index, blob_name, large_prefix
from samza_azure.logs.operations import Append, Read, Sent, indexes
from samza_azure.logs.record import INTERMEDIATE, Kind, Record, Reference, Slice, Writer, encode
from samza_azure.logs.restart_files import needed
from samza_azure.logs.task_log import (
    EncodedRecords,
    LogLimits,
    NotSent,
    TaskLog,
    append,
    log_record,
    look,
    restored_files,
    send,
    set_aside,
    take_over,
)
from samza_azure.outcomes import Refused
from samza_azure.storage.interface import Blobs
from samza_azure.storage.memory import MemoryAccount, MemoryStorage
from samza_azure.stream_io.driver import drive, perform
from simulator.ledger import Violation, demand

from .streams import GROUP, LARGE, Actor, all_records, bytes_at, check_blobs, check_readers, fails, interleaved

#: From here on a file that lasts has a blob of its own.
LASTING = 64 << 10


def check_task_logs(dice: Random) -> None:
    """S2, S8, S9: owners follow each other, each may be overtaken in mid-call, and nothing that was reported
    is lost."""
    storage = MemoryStorage(lambda: 0.0)
    blobs = MemoryAccount(storage).blobs()
    limits = LogLimits(
        roll_bytes=dice.choice([1_200, 3_000, 1 << 20]),
        roll_records=dice.choice([4, 9, 100]),
        record_bytes=dice.choice([150, 200, 3_000, 1 << 20]),
        large_bytes=dice.choice([180, 300, 1 << 20]),
    )
    drawn = TaskWorld(dice, storage, blobs, limits)
    missing = drawn.owner(1)
    fails(
        "a log that must be there",
        lambda: Actor(take_over(missing, first=False, meta={}), blobs, dice, 0).run(),
        StateLost,
    )
    log = drawn.owner(1)
    drawn.take(log)
    if dice.random() < 0.2:  # so that a blob is just full
        drawn.batch(log, final=False)
        if log.end[0] == 0:
            drawn.limits = log.limits = replace(limits, roll_bytes=log.end[1])
    generation = 1
    for _ in range(dice.choice([3, 6, 10])):
        luck = dice.random()
        if luck < 0.25:
            generation += 1
            log = drawn.hand_over(log, drawn.owner(generation))
        else:
            drawn.batch(log, final=False)
        if dice.random() < 0.3:
            drawn.check_restore()
        if dice.random() < 0.2:
            drawn.forget(log)
    if dice.random() < 0.3:
        drawn.batch(log, final=True)
    drawn.check()
    drawn.check_mistakes(log)
    drawn.check_strange()
    found = all_records(storage, drawn.prefix)
    if found[0]["index"] == 0:
        check_readers(dice, storage, drawn.prefix, found)


def copy_of(storage: MemoryStorage) -> MemoryStorage:
    """The same blobs again."""
    copy = MemoryStorage(lambda: 0.0)
    for name, size in storage.list(""):
        content: Any = storage.read(name, 0)
        copy.create(name)
        if size:
            copy.append(name, bytes(content.data), 0)
    return copy


class TaskWorld:
    """One task's log, what was reported to its owners, and what the log must therefore hold."""

    def __init__(self, dice: Random, storage: MemoryStorage, blobs: Blobs, limits: LogLimits) -> None:
        self.dice, self.storage, self.blobs, self.limits = dice, storage, blobs, limits
        self.prefix, self.task = "runs/r/clean-0", "clean-0"
        self.meta = {INTERMEDIATE: True} if dice.random() < 0.7 else {}
        self.files: dict[str, bytes] = {}  # all that were ever appended
        self.rows: dict[int, list[tuple[int, bytes]]] = {}  # by batch
        self.last, self.frontier, self.watermark = -1, None, None
        self.drained = self.forgot = False

    def owner(self, generation: int) -> TaskLog:
        """The next one."""
        return TaskLog(self.prefix, GROUP, self.task, Writer(generation, self.dice.randrange(1, 3)), limits=self.limits)

    def take(self, log: TaskLog) -> None:
        """It takes the log over, and finds what was reported before."""
        most, tried = self.dice.choice([0, 1 << 20, 50_000]), self.dice.choice([None, None, 1 << 19])
        known = all_records(self.storage, self.prefix)
        rule = take_over(log, first=not known, meta=self.meta, batch_bytes=most, tried_bytes=tried)
        Actor(rule, self.blobs, self.dice, 0.1).run()
        if self.drained:
            return
        wanted = self._batch_bytes(known, most, tried)
        demand(log.batch_bytes == wanted, f"Form: a batch may have {log.batch_bytes} bytes, and {wanted} is right")
        same = (log.last_batch, log.frontier_us, log.watermark_us) == (self.last, self.frontier, self.watermark)
        demand(same and not log.idle, f"S2: an owner finds batch {log.last_batch}, where {self.last} was the last one")

    def _batch_bytes(self, known: list[dict[str, Any]], most: int, tried: int | None) -> int:
        least = min(64 << 10, most)
        if tried is not None:
            return max(min(tried // 2, most), least)
        said = known[-1]["meta"].get("batch_bytes", 0) if known else 0
        so_far = min(said or most, most)
        fruitless, writer = False, None
        for each in known:
            if each["kind"] == Kind.EPOCH and each["writer"] != writer:
                fruitless = True
            if each["kind"] in (Kind.BATCH, Kind.DRAINED, Kind.FRONTIER):
                fruitless = False
            writer = each["writer"]
        return max(so_far // 4, least) if fruitless else so_far

    def _record(self, log: TaskLog, *, final: bool) -> tuple[Callable[[], Record], dict[str, bytes], list[Slice], Any]:
        dice, batch = self.dice, self.last + dice_step(self.dice)
        store = f"state/0/{dice.randrange(2)}"
        names = [f"offsets/{batch}", f"{store}/{batch + 1}.delta", f"{store}/{batch + 1}.snapshot", "metadata"]
        names += [
            f"{store}/{batch + 1}.zip",
            f"{store}/SSTs/{batch}.sst",
            f"commits/{batch}",
            f"sources/0/{batch}",
            f"sources/0/{batch}.compact",
        ]
        sizes = [5, 60, 400, 20_000, LASTING - 1, LASTING, 70_000] if dice.random() < 0.3 else [5, 60, 400]
        files = {name: dice.randbytes(dice.choice(sizes)) for name in dice.sample(names, dice.randrange(1, 5))}
        if dice.random() < 0.05:
            files[f"{store}/{batch + 1}.zip"] = dice.randbytes(LARGE)  # it is packed, and more than one read brings
        slices = [
            Slice(number, dice.randbytes(dice.choice([3, 90, 500])), 1)
            for number in sorted(dice.sample(range(3), dice.randrange(3)))
        ]
        frontier, watermark = (dice.choice([None, dice.randrange(99)]) for _ in range(2))
        needs = {"runs/r/other-0": dice.randrange(3)} if dice.random() < 0.5 else None
        read = dice.choice([None, {"flights/0": (0, dice.randrange(9))}])
        held = slices
        if slices and dice.random() < 0.3:
            first = slices[: dice.choice([1, len(slices)])]  # the rest later, with those that lie there already
            held = Actor(set_aside(log, batch, first), self.blobs, dice, 0.05).run()
            if len(first) < len(slices):
                held = Actor(set_aside(log, batch, [*held, *slices[1:]]), self.blobs, dice, 0.05).run()
            put = [part.data for part in held if isinstance(part.data, Reference)]
            demand(len(put) == len(held), "Form: rows that are set aside stay")
            for one, following in pairwise(put if len(first) == len(slices) else ()):
                fits = one.offset + one.length + following.length <= self.limits.large_bytes
                demand(fits == (one.blob == following.blob), f"Form: {one} and {following} are not put together well")

        def make() -> Record:
            record = log_record(
                log,
                Kind.DRAINED if final else Kind.BATCH,
                batch=batch,
                frontier_us=frontier,
                watermark_us=watermark,
                slices=held,
                files=files,
                needs=needs,
                read=read,
                idle=False,
            )
            for name, given, before in (("needs", needs, log.needs), ("read", read, log.read)):
                said = record.meta.get(name, {})
                demand(said == (before if given is None else given), f"Form: a record says {name} {said}, not {given}")
            return record

        return make, files, slices, (batch, frontier, watermark, final)

    def batch(self, log: TaskLog, *, final: bool) -> None:
        """One more, whatever happens to its answers; or only word that time goes on."""
        if not final and self.dice.random() < 0.15:
            idle = self.dice.random() < 0.5
            Actor(append(log, lambda: log_record(log, Kind.FRONTIER, idle=idle)), self.blobs, self.dice, 0.1).run()
            demand(log.idle == idle, "Form: an owner does not know that it is idle")
            return
        make, files, slices, said = self._record(log, final=final)
        rule = append(log, make)
        actor = Actor(rule, self.blobs, self.dice, self.dice.choice([0.15, 0.6]))
        for _ in range(self.dice.choice([1 << 20, self.dice.randrange(1, 9)])):  # or it gives up in mid-call
            actor.step()
            if actor.over:
                break
        if not actor.over:
            demand(not actor.doubts or log.unsettled is not None, "S2: what may have been appended is not remembered")
            before = log.unsettled
            if self.dice.random() < 0.3:
                self.forget(log, knows=False)
            if before is not None and not final and self.dice.random() < 0.3:
                Actor(set_aside(log, said[0], [Slice(0, b"row", 1)]), self.blobs, self.dice, 0.1).run()
                demand(log.unsettled is None, "S2: rows are set aside before it is known what was appended")
            before = log.unsettled
            settled = drive(look(log), self.blobs)
            there = before is None or self._is_there(log, before.data)
            demand(settled == there == (log.unsettled is None), "Form: what is unsettled is not what was looked for")
            again = Actor(append(log, make), self.blobs, self.dice, 0.1) if log.last_batch < said[0] else None
            if again is not None:
                again.run()
        elif actor.error is not None:
            raise actor.error
        self._told(files, slices, said)
        end = all_records(self.storage, self.prefix)[-1]["end"]
        demand(log.end == end and log.last_batch == said[0], f"S2: an owner takes {log.end} for the end, not {end}")

    def _check_doubt(self, data: bytes) -> None:
        """S8: whether bytes were ever in a blob that is gone is unknown once an append of them had no answer."""
        storage = MemoryStorage(lambda: 0.0)
        blobs = MemoryAccount(storage).blobs()
        blobs.create("b")
        first = self.dice.choice([Sent.UNKNOWN, Sent.NOT, Refused("x")])
        rule, answers = send("b", data, 0), iter([first, Refused("BlobNotFound")])
        error, said = None, None
        while error is None:
            try:
                operation = rule.send(said)
                said = next(answers) if isinstance(operation, Append) else perform(operation, blobs)
            except StateLost as raised:
                error = type(raised)
            if isinstance(operation, Read):
                storage.delete("b")
        wanted = StateLost if first is Sent.UNKNOWN else NotSent
        demand(error is wanted, f"S8: after {first}, and the blob is gone, {error} is raised")

    def _is_there(self, log: TaskLog, data: bytes) -> bool:
        """Whether these bytes lie somewhere in the log."""
        contents: list[Any] = [self.storage.read(name, 0) for name, _ in self.storage.list(f"{log.prefix}/")]
        return any(data in bytes(each.data) for each in contents)

    def check_mistakes(self, log: TaskLog) -> None:
        """What no caller may ask for, and what a service that takes nothing leads to."""
        blobs = MemoryAccount(copy_of(self.storage)).blobs()

        def ask(kind: Kind, batch: int) -> Callable[[], object]:
            return lambda: drive(append(log, lambda: log_record(log, kind, batch=batch)), blobs)

        fails("an EPOCH by hand", ask(Kind.EPOCH, log.last_batch), ValueError)
        fails("the same batch again", ask(Kind.BATCH, log.last_batch), ValueError)
        if log.drained:
            fails("a batch after DRAINED", ask(Kind.BATCH, log.last_batch + 1), ValueError)
        name, data = "runs/r/x-0/00000000", b"some bytes"
        blobs.create(name)
        blobs.append(name, b"1234", 0)

        def insisted(position: int, answer: Any, added: bytes = b"") -> tuple[Any, int]:
            """What comes of a send when each append is answered so; how often it was sent."""
            rule, said, sent = send(name, data, position), None, 0
            while True:
                try:
                    operation = rule.send(said)
                except StopIteration as stop:
                    return stop.value, sent
                except (CorruptState, StateLost) as error:
                    return type(error), sent
                said = answer if isinstance(operation, Append) else perform(operation, blobs)
                sent += isinstance(operation, Append)
                demand(sent < 9, "Form: an append is sent forever")
                if added and sent == 2:
                    blobs.append(name, added, position)
                    added = b""

        demand(insisted(4, Refused("x")) == (CorruptState, 3), "Form: who is refused three times goes on")
        demand(insisted(5, Sent.UNKNOWN) == (CorruptState, 1), "S8: a log that became shorter is not noticed")
        for answer, error in ((Sent.UNKNOWN, StateLost), (Refused("x"), NotSent), (Sent.NOT, NotSent)):
            name = "runs/r/gone-0/00000000"
            demand(insisted(0, answer) == (error, 1), f"S8: of a blob that is gone {answer} is told otherwise")
        self._check_doubt(data)
        name = "runs/r/x-0/00000000"
        self._check_foreign(log)
        more = self.dice.choice([data, data + b"x", b"other bytes, and more", b"some"])
        demand(insisted(4, Sent.UNKNOWN, more) == (more.startswith(data), 2), f"S2: {more!r} counts as ours, or not")

    def _check_foreign(self, log: TaskLog) -> None:
        """S2, S8: what else stands where a record was to be appended: a later owner's, nothing more, or damage."""
        index, position = log.end
        if log.drained or log.rolled or log.unsettled is not None:
            return
        copy, owner = copy_of(self.storage), log.owner
        name, blobs = blob_name(self.prefix, index), MemoryAccount(copy).blobs()
        later, number = Writer(owner.generation + 1, 1), log.number
        good = Record(Kind.EPOCH, GROUP, self.task, later, log.last_batch, number)
        cases: list[tuple[bytes | None, type[Exception]]] = [
            (encode(good), Superseded),
            (encode(replace(good, group_id=bytes(16))), CorruptState),
            (encode(replace(good, group_id=b"\xff" * 16)), CorruptState),
            (encode(replace(good, writer=owner)), CorruptState),
            (encode(replace(good, writer=Writer(0, 9))), CorruptState),
            (None, StateLost),
        ]
        added, error = self.dice.choice(cases)
        goes_on = added is None and self.dice.random() < 0.5
        if added is None:
            copy.delete(name)
        else:
            copy.append(name, added, position)
        if goes_on:
            copy.create(blob_name(self.prefix, index + 1))
        mine = replace(log, files=dict(log.files), limits=LogLimits())
        rule = append(mine, lambda: log_record(mine, Kind.FRONTIER))
        try:
            drive(rule, blobs)
        except (Superseded, CorruptState, StateLost) as found:
            demand(isinstance(found, Superseded if goes_on else error), f"S2: {found!r}, where {error} is right")
        else:
            raise Violation("S2: an owner does not see what stands at the end of its log")
        if added is not None:
            mine = replace(
                log, files=dict(log.files), unsettled=EncodedRecords(self.dice.choice([b"\0", b"\xff"]) * 9, ())
            )
            demand(drive(look(mine), blobs) and mine.unsettled is None, "S2: what cannot follow any more is awaited")
            demand(mine.end == log.end, "S2: others' bytes count as ours")

    def check_strange(self) -> None:
        """S8: a log that no owner can have written is not taken over."""
        found = all_records(self.storage, self.prefix)
        last, dice = found[-1], self.dice
        writer = Writer(*last["writer"])
        self._check_opening(last, writer)
        if last["kind"] == Kind.ROLLED:
            return
        good = Record(Kind.FRONTIER, GROUP, self.task, writer, last["batch"], last["number"] + 1)
        opens = last["number"] == 0 and last["index"] > 0
        up = Writer(writer.generation, writer.attempt + 1)
        strange = [
            replace(good, group_id=b"x" * 16),
            replace(good, task="clean-1"),
            replace(good, number=last["number"] + dice.choice([0, 2])),
            replace(good, kind=Kind.SNAPSHOT),
            replace(good, kind=Kind.EPOCH),
            replace(good, kind=Kind.EPOCH, writer=Writer(0, 9)),
            replace(good, writer=up),
            replace(good, batch=last["batch"] + dice.choice([1, 5])),
            replace(good, kind=Kind.BATCH),
            replace(good, kind=Kind.BATCH, batch=last["batch"] - 1),
        ]
        fine = [
            good,
            replace(good, kind=Kind.EPOCH, writer=up),
            replace(good, kind=Kind.BATCH, batch=last["batch"] + 1),
        ]
        if self.drained or opens:
            strange, fine = [*fine, *strange], []
        for each in (dice.choice(strange), *(dice.sample(fine, 1) if fine else ())):
            copy = copy_of(self.storage)
            copy.append(blob_name(self.prefix, last["index"]), encode(each), last["end"][1])
            log = TaskLog(self.prefix, GROUP, self.task, Writer(1 << 40, 1), limits=self.limits)
            rule = take_over(log, first=False, meta=self.meta)
            blobs = MemoryAccount(copy).blobs()
            if each in fine:
                Actor(rule, blobs, dice, 0).run()
            else:
                fails(f"{each.kind.name} of {each.writer}", partial(drive, rule, blobs), CorruptState)
        empty = copy_of(self.storage)
        index = last["index"] + dice.choice([1, 2])
        empty.create(blob_name(self.prefix, index))
        log = TaskLog(self.prefix, GROUP, self.task, Writer(1 << 40, 1), limits=self.limits)
        gone = drive(indexes(self.prefix), MemoryAccount(empty).blobs())
        demand((index, 0) in gone and len(gone) > 1, "Form: a blob is not listed")
        rule = take_over(log, first=False, meta=self.meta)
        if index > last["index"] + 1:
            fails("a log with a gap", lambda: drive(rule, MemoryAccount(empty).blobs()), StateLost)

    def _check_opening(self, last: dict[str, Any], writer: Writer) -> None:
        """S8: a blob that begins otherwise than with EPOCH, and then a SNAPSHOT, is not taken over."""
        copy, index = copy_of(self.storage), last["index"]
        rolled = Record(Kind.ROLLED, GROUP, self.task, writer, last["batch"], last["number"] + 1)
        if last["kind"] == Kind.DRAINED:
            return
        if last["kind"] != Kind.ROLLED:
            if last["number"] == 0 and index > 0:
                return
            copy.append(blob_name(self.prefix, index), encode(rolled), last["end"][1])
        epoch = Record(Kind.EPOCH, GROUP, self.task, writer, last["batch"], 0)
        frontier, name = replace(epoch, kind=Kind.FRONTIER), blob_name(self.prefix, index + 1)
        wrong = self.dice.choice(
            [
                [frontier],
                [replace(epoch, kind=Kind.SNAPSHOT)],
                [epoch, replace(frontier, number=1)],
                [replace(epoch, writer=Writer(0, 9)), replace(epoch, kind=Kind.SNAPSHOT, number=1)],
            ]
        )
        copy.create(name)
        copy.append(name, b"".join(encode(each) for each in wrong), 0)
        log = TaskLog(self.prefix, GROUP, self.task, Writer(1 << 40, 1), limits=self.limits)
        rule = take_over(log, first=False, meta=self.meta)
        blobs = MemoryAccount(copy).blobs()
        for older in range(index + 1):  # so that it is the first that is read
            if self.dice.random() < 0.5:
                copy.delete(blob_name(self.prefix, older))
        told = " ".join(each.kind.name for each in wrong)
        fails(f"a blob that begins with {told}", partial(drive, rule, blobs), CorruptState)

    def _told(self, files: dict[str, bytes], slices: list[Slice], said: Any) -> None:
        batch, frontier, watermark, final = said
        for path, content in files.items():  # in the order in which they came last
            self.files.pop(path, None)
            self.files[path] = content
        self.rows[batch] = [(part.destination, bytes(part.data)) for part in slices if isinstance(part.data, bytes)]
        self.last, self.drained = batch, final
        self.frontier = max(frontier, self.frontier or 0) if frontier is not None else self.frontier
        self.watermark = max(watermark, self.watermark or 0) if watermark is not None else self.watermark

    def hand_over(self, old: TaskLog, new: TaskLog) -> TaskLog:
        """The next owner comes while the former one is in mid-call. What was reported to it stays, and it is
        refused."""
        make, files, slices, said = self._record(old, final=False)
        before = all_records(self.storage, self.prefix)
        late = Actor(append(old, make), self.blobs, self.dice, 0.1)
        rule = take_over(new, first=False, meta=self.meta)
        gains = Actor(rule, self.blobs, self.dice, 0.1)
        if self.dice.random() < 0.5:
            interleaved([late, gains], self.dice)
        else:  # the former one gives up in mid-call, and looks what became of it
            for _ in range(self.dice.randrange(1, 6)):
                if not late.over:
                    late.step()
            while late.appends and not late.over:  # the outcome of an append is always reported
                late.step()
            interleaved([gains], self.dice)
        demand(gains.error is None, f"S2: the later writer is refused: {gains.error}")
        found = all_records(self.storage, self.prefix)
        landed = any(each["batch"] == said[0] and each["kind"] == Kind.BATCH for each in found[len(before) :])
        told = late.over and late.error is None
        demand(landed or not told, "S7: a batch was told to be appended, and is not there")
        if not late.over:
            drive(look(old), self.blobs)
            demand(landed or old.last_batch < said[0], "S2: who looks takes the bytes of another for its own")
        if landed:
            self._told(files, slices, said)
        times = (new.frontier_us, new.watermark_us)
        demand(times == (self.frontier, self.watermark), f"S7: the new owner takes up at {times}")
        demand(new.last_batch == self.last, f"S2: the new owner knows batch {new.last_batch}, and {self.last} was told")
        with suppress(Superseded, StateLost):
            Actor(
                append(old, lambda: log_record(old, Kind.BATCH, batch=old.last_batch + 1)), self.blobs, self.dice, 0
            ).run()
            raise Violation("S2: a former owner appends after the next one has come")
        for writer in (old.owner, new.owner):
            older = TaskLog(self.prefix, GROUP, self.task, writer, limits=self.limits)
            with suppress(Superseded, StateLost):
                Actor(take_over(older, first=False, meta={}), self.blobs, self.dice, 0).run()
                raise Violation("S2: an older writer takes the log over, or the same one again")
        return new

    def check_restore(self) -> None:
        """A restore finds the files that a restart needs, each as it was written last."""
        log = TaskLog(self.prefix, GROUP, self.task, Writer(1 << 40, 1), limits=self.limits)
        blobs = MemoryAccount(copy_of(self.storage)).blobs()
        most, tried = self.dice.choice([0, 1 << 20, 50_000]), self.dice.choice([None, None, 1 << 19])
        found = all_records(self.storage, self.prefix)
        read = [each for each in found if each["index"] == found[-1]["index"]]  # an owner reads the last blob alone
        bytes_ = self._batch_bytes(read, most, tried)
        rule = take_over(log, first=False, meta=self.meta, batch_bytes=most, tried_bytes=tried)
        Actor(rule, blobs, self.dice, 0).run()
        right = log.drained or log.batch_bytes == bytes_
        demand(right, f"Form: a batch of the next owner may have {log.batch_bytes} bytes, and {bytes_} is right")
        files = drive(restored_files(log), blobs)
        wanted = needed(self.files, self.last)
        demand(files == wanted, f"S9: {sorted(files)} are restored, and {sorted(wanted)} are needed")
        demand(log.last_batch == self.last, "S2: a restore finds another batch")

    def forget(self, log: TaskLog, *, knows: bool = True) -> None:
        """Delete blobs that no reader needs: exactly those, and the next owner restores the same. One in mid-call may
        keep more."""
        reader, needs = "runs/r/daily-0", self.dice.randrange(4)
        copy: Any = {"needs": {self.prefix: needs}} if self.dice.random() < 0.7 else {}
        blobs = MemoryAccount(copy_of(self.storage)).blobs()
        group = self.dice.choice([GROUP, GROUP, b"x" * 16])
        data = encode(Record(Kind.BATCH, group, "daily-0", Writer(1, 1), 0, meta=copy))
        if self.dice.random() < 0.8:
            blobs.create(blob_name(reader, 0))
            blobs.append(blob_name(reader, 0), data, 0)
            needs = copy.get("needs", {}).get(self.prefix, 0) if group == GROUP else 0
        else:
            needs = 0
        readers = [reader] if self.dice.random() < 0.8 else []
        named = drive(outdated(kept(log), readers), blobs)
        held = {content.blob for content in log.files.values() if isinstance(content, Reference)}
        found = all_records(self.storage, self.prefix)
        newest = found[-1]["index"]
        first = min([newest, *(index for name in held if (index := blob_index(self.prefix, name)) is not None)])
        first = min(first, needs) if readers else first
        wanted = {blob_name(self.prefix, index) for index in range(first)} & {name for name, _ in self.storage.list("")}
        large = large_prefix(self.prefix)
        for name, _ in self.storage.list(f"{large}/"):
            if int(name.removeprefix(f"{large}/")[:8]) < first and name not in held:
                wanted.add(name)
        right = set(named) == wanted if knows else set(named) <= wanted
        demand(right, f"S9: {sorted(set(named) ^ wanted)} are deleted, or kept, wrongly")
        if not readers and not self.rows_needed():
            for name in named:
                self.storage.delete(name)
            self.forgot = self.forgot or bool(named)

    def rows_needed(self) -> bool:
        """In half of all worlds the log is kept whole, so that all rows can be looked for in the end."""
        return bool(self.meta)

    def check(self) -> None:
        """The whole log, by `plain`."""
        self.check_restore()
        found = all_records(self.storage, self.prefix)
        if self.forgot:
            return
        check_blobs(found, self.limits)
        writer, batch, needs, read = (0, 0), -1, None, None
        for number, each in enumerate(found):
            kind = Kind(each["kind"])
            opens = each["number"] == 0
            demand(not opens or kind is Kind.EPOCH, "S2: a blob does not begin with EPOCH")
            second = each["number"] == 1 and each["index"] > 0
            demand(second == (kind is Kind.SNAPSHOT), "S2: a SNAPSHOT is not the second record of its blob")
            demand(each["writer"] >= writer, "S2: writers fall")
            demand(each["writer"] == writer or kind is Kind.EPOCH, "S2: a writer without EPOCH")
            if kind in (Kind.BATCH, Kind.DRAINED):
                demand(each["batch"] > batch, "S2: batches do not rise")
                batch = each["batch"]
                self._check_rows(each)
            demand(each["batch"] == batch, f"S2: a record says batch {each['batch']} was the last one, not {batch}")
            demand(each["group_id"] == GROUP and each["task"] == self.task, "S2: a record of another task")
            told = {name: value for name, value in each["meta"].items() if name not in ("needs", "read", "batch_bytes")}
            demand(kind is not Kind.EPOCH or told == self.meta, f"Form: an EPOCH says {told}")
            demand(kind is not Kind.SNAPSHOT or number > 0, "S2: a log begins with a SNAPSHOT")
            if kind in (Kind.EPOCH, Kind.SNAPSHOT, Kind.ROLLED, Kind.FRONTIER):
                demand(each["meta"].get("needs") == needs, "S9: a record does not repeat what its owner needs")
                demand(each["meta"].get("read") == read, "Form: a record does not repeat what its owner has read")
            needs, read = each["meta"].get("needs"), each["meta"].get("read")
            writer = each["writer"]
        demand(
            set(self.rows) == {each["batch"] for each in found if each["kind"] in (2, 5)}, "S7: a batch is not there"
        )
        demand((found[-1]["kind"] == Kind.DRAINED) == self.drained, "S2: a log ends otherwise than it was told")

    def _check_rows(self, each: dict[str, Any]) -> None:
        rows = [
            (part[0], part[4] if isinstance(part[4], bytes) else bytes_at(self.blobs, part[4]))
            for part in each["slices"]
        ]
        demand(rows == self.rows.get(each["batch"]), f"S7: batch {each['batch']} holds other rows than it was given")
        inside = sum(len(part[4]) for part in each["slices"] if isinstance(part[4], bytes))
        inside += sum(len(content) for content in each["files"].values() if isinstance(content, bytes))
        demand(inside <= self.limits.record_bytes, f"Form: a record holds {inside} bytes, more than it may")
        contents = [*(part[4] for part in each["slices"]), *each["files"].values()]
        beside = [content[0] for content in contents if not isinstance(content, bytes)]
        folder = f"{large_prefix(self.prefix)}/{each['index']:08d}/"  # a deletion goes by the record's blob
        demand(all(name.startswith(folder) for name in beside), f"S9: {beside} lie elsewhere than in {folder}")
        mark = f"-{Kind(each['kind']).name.lower()}-"
        spilled = [content[2] for content in contents if not isinstance(content, bytes) and mark in content[0]]
        is_needed = not spilled or inside + min(spilled) > self.limits.record_bytes
        demand(is_needed, f"Form: {spilled} bytes lie beside a record that holds {inside}")
        for path, content in each["files"].items():
            leaf, length = path.rpartition("/")[2], len(content) if isinstance(content, bytes) else content[2]
            apart = not isinstance(content, bytes) and f"-{leaf}-{length}-" in content[0]
            lasts = leaf.rpartition(".")[2] in ("snapshot", "sst", "log") and length >= LASTING
            demand(apart == lasts, f"Form: {path} with {length} bytes lies in a blob of its own: {apart}")
        for name, size in self.storage.list(f"{large_prefix(self.prefix)}/"):
            most = max(self.limits.large_bytes, LARGE)
            demand(size <= most, f"Form: {name} has {size} bytes, more than it may")


def dice_step(dice: Random) -> int:
    """Batch ids rise, mostly by one."""
    return dice.choice([1, 1, 1, 2])
