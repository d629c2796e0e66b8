"""What the table and the control blob hold, drawn: rows of any size, requests of strangers, blobs of later releases.

Part of `pieces`. Each is written by production, read by production, and by `plain`.
"""

import gzip
import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from random import Random
from typing import Any

from samza_azure.errors import CorruptState, ModelTooLarge, TooOld
from samza_azure.group.control import (
    Assignment,
    Barrier,
    BarrierState,
    Control,
    Event,
    Failure,
    GivenUp,
    Member,
    Noticed,
    Owner,
    RunPhase,
    Stop,
    decode,
    encode,
    signal,
    signalled,
)
from samza_azure.group.notice import Availability
from samza_azure.group.notification import (
    DrainMode,
    DrainNotification,
    from_fields,
    remembered,
    timed,
)
from samza_azure.group.rows import (
    LeaderRow,
    ProcessorRow,
    ProcessorState,
    RequestKind,
    columns,
    leader_columns,
    leader_row,
    processor_row,
    request,
    request_columns,
)
from samza_azure.messages import DrainPhase, DrainStep, LastBatch, Phase, Progress, TaskError, TaskReport
from samza_azure.storage.limits import checked_values
from simulator.ledger import Violation, demand

from . import plain

#: Of the description: characters in a column, and columns for tasks and for released ones.
COLUMN, COLUMNS, RELEASED = 32_000, 12, 2
#: Where a number, a text, a list or an object belongs, these are wrong.
WRONG: Mapping[type, tuple[Any, ...]] = {int: ("7", 1.5, True, None, []), str: (5, [], {}), list: ({"a": 1}, "a", 7)}
_UUID = "0123abcd-0123-4567-89ab-0123456789ab"


def drawn_report(dice: Random, task: str, length: int) -> TaskReport:
    """A report of any task; its texts have `length` characters."""

    def text() -> str:
        return dice.randbytes(length // 2).hex()

    def ends() -> dict[str, tuple[int, int]]:
        return {f"flights/{text()}{number}": (dice.randrange(9), dice.randrange(1 << 40)) for number in range(2)}

    phase = dice.choice(list(Phase))
    return TaskReport(
        task,
        dice.randrange(1 << 40),
        dice.randrange(1 << 20),
        phase,
        dice.randrange(-1, 1 << 40),
        dice.randrange(9),
        dice.choice([None, *DrainPhase]),
        dice.choice([None, {}, ends()]),
        dice.choice(["", text()]),
        dice.choice([None, ends()]),
        TaskError(text(), text() * 3) if phase is Phase.FAILED else None,
        dice.choice([None, 1.5]),
        dice.choice(
            [
                None,
                Progress(1, 2, 3, 4, 5.5, 6.5, dice.choice([None, -7, 1 << 53, 1]), {text(): 7}),
                Progress(behind={text(): 1}, wall_s={"plan": 1.5}, cpu_s={"plan": 0.5}),
            ]
        ),
        dice.choice(
            [None, LastBatch(7, 8), LastBatch(7, 8, {"addBatch": dice.randrange(1 << 40)}, 0, 1 << 40, 2, {"plan": 3})]
        ),
    )


def drawn_row(dice: Random) -> ProcessorRow:
    """A row as a processor may write it: short, or with more than it has room for."""
    many, length = dice.choice([(0, 0), (3, 10), (3, 10), (8, 8_000), (30, 2_000), (12, 30_000), (180, 2_000)])
    if many > 3 and dice.random() < 0.8:
        many, length = 5, 40  # the large ones take long
    tasks = {f"clean-{number}": drawn_report(dice, f"clean-{number}", length) for number in range(many)}
    tried = dice.choice([None, "2 of 3"])
    tasks = {
        name: replace(report, tried=tried, failures=2 if tried else 0, restarts=len(tasks) - 1)
        for name, report in tasks.items()
    }
    return ProcessorRow(
        "p1",
        dice.choice(["life", "é"]),
        "",
        dice.randrange(1 << 50),
        dice.randrange(1 << 50),
        dice.choice(list(ProcessorState)),
        {f"t-{number}{dice.randbytes(20).hex()}": number for number in range(dice.choice([0, 2, 2, 2, 2, 2, 2500]))},
        tasks,
        dice.choice(["", "ab" * 32]),
        dice.choice(["", "new", "run-7"]),
        "boot",
        ending=dice.choice(["", "0 it left"]),
        too_old_for=dice.choice([0, 7]),
        cut_off=dice.random() < 0.5,
        no_container=dice.random() < 0.5,
    )


def _shown(tasks: Mapping[str, TaskReport], keep: int, *left_out: str) -> dict[str, Any]:
    """Of each task all but these fields, and the last `keep` characters of a traceback."""
    found = {}
    for name, report in tasks.items():
        fields = {key: value for key, value in asdict(report).items() if value is not None and key not in left_out}
        del fields["task"]
        fields = {key: value for key, value in fields.items() if value or key not in ("failures", "restarts")}
        for key in ("wall_s", "cpu_s"):  # they are for metrics
            fields.get("progress", {}).pop(key, None)
        if report.error is not None:
            last = report.error.traceback[-keep:] if keep else ""
            fields["error"] = {"message": report.error.message[:1000], "traceback": last}
        found[name] = fields
    return found


def _as_much_as_fits(tasks: Mapping[str, TaskReport]) -> dict[str, Any]:
    """What a row has to show of its tasks, perhaps more than has room."""
    keep = 16_000 // max(sum(report.error is not None for report in tasks.values()), 4)
    shorter = [
        _shown(tasks, keep),
        _shown(tasks, keep, "last_batch"),
        _shown(tasks, keep, "last_batch", "progress"),
        _shown(tasks, keep, "last_batch", "progress", "read"),
        _shown(tasks, keep, "last_batch", "progress", "read", "late"),
        _shown(tasks, 0, "last_batch", "progress", "read", "late"),
        _shown(
            tasks, 0, "last_batch", "progress", "read", "late", "ends", "appended_at", "tried", "failures", "restarts"
        ),
    ]
    return next((each for each in shorter if _has_room(each, COLUMNS)), _halved(shorter[-1], COLUMNS))


def _halved(values: dict[str, Any], columns: int) -> dict[str, Any]:
    while not _has_room(values, columns):
        values = dict(list(values.items())[: len(values) // 2])
    return values


def _has_room(values: Mapping[str, Any], columns: int) -> bool:
    return plain.fits(json.dumps(values, separators=(",", ":")), columns, COLUMN)


def check_rows(dice: Random) -> None:
    """Form: a row is within the table's limits, says as much as it has room for, and is read as it was meant."""
    row = drawn_row(dice)
    values = columns(row)
    checked_values(values)
    text = plain.column_text("tasks", values)
    told = json.loads(text)
    shown = json.loads(json.dumps(_as_much_as_fits(row.tasks)))
    demand(told == shown, f"Form: a row shows {len(text)} characters of {len(row.tasks)} tasks, not what fits")
    gone = _halved(dict(row.released), RELEASED)
    demand(json.loads(plain.column_text("released", values)) == gone, "Form: a row tells less of what was released")
    for name in ("tasks", "released"):
        long = len(plain.column_text(name, values)) > COLUMN
        packed = str(values[name]).startswith("z:")
        demand(long == packed, f"Form: the column {name} is packed: {packed}")
    before = columns(drawn_row(dice)) if dice.random() < 0.5 else {}
    back = processor_row("p1", "e", {**before, **values})
    least = {name: dict(fields) for name, fields in told.items()}
    demand(list(back.tasks) == list(least), f"Form: of {list(least)} a reader finds {list(back.tasks)}")
    for name, fields in least.items():
        demand(back.tasks[name] == _report(name, fields), f"Form: {name} is read otherwise than it was written")
    demand(back.released == gone, "Form: what was released is read otherwise")
    stays: dict[str, Any] = {name: before[name] for name in ("ending", "too_old_for") if name in before.keys() - values}
    wanted = replace(row, etag="e", tasks=back.tasks, released=gone, **stays)
    demand(back == wanted, "Form: a row is read otherwise than it was written")
    demand(back.alive == (row.state not in ("DEAD", "LEFT")), f"Form: one that is {row.state} lives")
    for length in (COLUMN - 1, COLUMN, COLUMN + 1):
        full = columns(replace(row, released={"x" * (length - len('{"":1}')): 1}))
        packed = str(full["released"]).startswith("z:")
        demand(packed == (length > COLUMN), f"Form: a text of {length} characters is packed: {packed}")
    _check_foreign_row(dice, values)
    seen = LeaderRow(dice.randrange(9), 7, "s", "e", 3, tuple(dice.sample(["a", "b", "c"], dice.randrange(4))), "x")
    demand(leader_row("x", leader_columns(seen)) == seen, "Form: the leader row is read otherwise than it was written")


def _report(name: str, fields: dict[str, Any]) -> TaskReport:
    """A report from its JSON, by its fields alone."""
    for key in ("ends", "read"):
        if fields.get(key) is not None:
            fields[key] = {partition: (blob, at) for partition, (blob, at) in fields[key].items()}
    fields["phase"] = Phase(fields["phase"])
    if fields.get("drain"):
        fields["drain"] = DrainPhase(fields["drain"])
    if fields.get("error"):
        fields["error"] = TaskError(**fields["error"])
    if fields.get("progress"):
        fields["progress"] = Progress(**fields["progress"])
    if fields.get("last_batch"):
        fields["last_batch"] = LastBatch(**fields["last_batch"])
    return TaskReport(name, **fields)


def _check_foreign_row(dice: Random, values: Mapping[str, Any]) -> None:
    """Form: whatever stands in a row, it is read as far as it makes sense, and nothing else of it changes."""
    name = dice.choice(["beat", "adopted", "state", "tasks", "released", "new_run", "epoch", "format", "ending"])
    strange = [None, True, -1, (1 << 53) + 1, 1.5, "x" * 600, "", "{", "[]", '{"a": 7}', '{"a": {"generation": "x"}}']
    strange += ["z:AAAA", "z:!", '{"a": -1}', "../up", "a" * 64, "1" * 5000]
    value = dice.choice(strange)
    back, as_it_was = processor_row("p1", "", {**values, name: value}), processor_row("p1", "", values)
    numbers = {"beat", "adopted", "epoch"}
    if name in numbers:
        demand(getattr(back, name) == 0, f"Form: {name} is {value!r}, and read as {getattr(back, name)!r}")
    fits = name == "new_run" and value in ("", "a" * 64, "1" * 5000, "x" * 600)
    if name == "new_run" and (isinstance(value, str) or fits):
        demand(back.new_run == "", f"Form: {str(value)[:70]!r} names a run")
    if name == "ending":
        demand(len(back.ending) <= 500, "Form: an ending of any length is read")
    same = [each for each in numbers - {name} if getattr(back, each) != getattr(as_it_was, each)]
    demand(not same, f"Form: {name} is strange, and {same} are read otherwise")
    number: Any = dice.choice([True, "7", -0.5, 0, 0.0, 2.5, float(1 << 53), float(1 << 54)])
    behind: Any = dice.choice([{"x": -1}, {"x": -1}, 7, [], None])
    said = {"generation": 1, "attempt": 1, "phase": "RUNNING", "progress": {"seconds": number, "behind": behind}}
    said["last_batch"] = {"batch": 7, "ms": dice.choice([7, None, [], {"x": 1}])}
    said_of = processor_row("p1", "", {"tasks": json.dumps({"a-0": said}), "tasks_columns": 1}).tasks["a-0"]
    demand(said_of.last_batch == LastBatch(7), f"Form: {said['last_batch']} is read as {said_of.last_batch}")
    progress = said_of.progress
    fits = not isinstance(number, str | bool) and 0 <= number <= 1 << 53
    wanted = Progress(seconds=float(number) if fits else 0.0, behind={"x": 0} if behind == {"x": -1} else {})
    demand(progress == wanted, f"Form: {number!r} seconds are read as {progress}")
    later = processor_row("p1", "", {**values, "format": 2})
    demand((later.format, dict(later.tasks), dict(later.released)) == (2, {}, {}), "Form: a later format is read")
    for largest in (1 << 53, 0):
        demand(processor_row("p1", "", {"beat": largest}).beat == largest, f"Form: {largest} is no number")
    nobody = processor_row(dice.choice(["P1", "-p", "p" * 64, ""]), "", values)
    demand(not nobody.is_ours and not nobody.alive, f"Form: {nobody.processor!r} is a processor")
    for life in ("", "x" * 65, "two\nlines", "lone \ud800"):
        demand(not processor_row("p1", "", {**values, "incarnation": life}).is_ours, f"Form: {life!r} is a life")
    ended = processor_row("p1", "", {**values, "ending": "1 é \udcff"}).ending
    demand(ended == "1 é ?", f"Form: an ending with a lone surrogate is read as {ended!r}")
    for needs in (1, 2):
        said = columns(replace(processor_row("p1", "", values), format=needs)).get("format", 1)
        demand(said == needs, f"Form: a row of format {needs} says that it is of format {said}")


def check_requests(dice: Random) -> None:
    """Form: a request is read as it was written; an invalid one is ignored."""
    kind, lives = (
        dice.choice(list(RequestKind)),
        [dice.randbytes(16).hex() for _ in range(dice.choice([0, 1, 3, 4000]))],
    )
    run_id, by, asked = dice.choice(["", "r7"]), dice.choice(["", "me"]), dice.choice([0, 5])
    values = request_columns(kind, "k", run_id, lives, by=by, asked_ms=asked)
    checked_values(values)
    found = request("k", "e", values)
    short = {life[:8] for life in lives} if len(",".join(life[:8] for life in lives)) <= COLUMN else set()
    said = (found.key, found.etag, found.kind, found.run_id, found.answer, set(found.incarnations), found.by)
    demand(said == ("k", "e", kind, run_id, "", short, by), f"Form: a request is read as {said[2:4]}")
    demand(found.asked_ms == asked, "Form: when it was asked is read otherwise")
    wanted = {"kind", "uuid", "runId"} | ({"drainMode"} if kind is RequestKind.DRAIN else set())
    wanted |= {name for name, value in (("by", by), ("askedMs", asked), ("incarnations", short)) if value}
    demand(set(values) == wanted, f"Form: a request has the columns {sorted(values)}")
    many = "x" * (64_001 - sum(len(str(value)) for value in values.values()))
    strange: dict[str, Any] = dice.choice(
        [{"kind": "dance"}, {"format": 2}, {"more": many}, {"kind": ""}, {"drainMode": "ABORT"}, {"runId": 7}]
    )
    is_ours = kind is not RequestKind.DRAIN and bool(set(strange) & {"drainMode", "runId"})
    found = request("k", "e", {**values, **strange})
    size = sum(len(str(value)) for value in {**values, **strange}.values())
    is_ours = is_ours and size <= 64_000
    demand(bool(found.kind) == is_ours, f"Form: {str(strange)[:60]} is obeyed")
    demand(bool(found.incarnations) <= bool(found.kind), "Form: lives are read of a request that is for nobody")
    room = request("k", "e", {**values, "more": many[:-1]})
    demand(room.kind is kind, "Form: one of just the size that is allowed is refused")
    for most in (100, 101):
        columns_ = {**values, **{f"c{number}": 1 for number in range(most - len(values))}}
        is_ours = request("k", "e", columns_).kind is kind
        demand(is_ours == (most <= 100), f"Form: one with {most} columns is ours: {is_ours}")
    long = request("k", "e", {**values, "answer": "y" * 300, "by": "z" * 300, "askedMs": "x"})
    demand((len(long.answer), len(long.by), long.asked_ms) == (256, 256, 0), "Form: texts of any length are read")
    for left_out in ("uuid", "runId", "drainMode"):
        rest = {name: value for name, value in values.items() if name != left_out}
        is_refused = request("k", "e", rest).kind is None
        demand(is_refused == (kind is RequestKind.DRAIN), f"Form: a {kind} without {left_out}")


# The control blob.


def drawn_drain(dice: Random) -> DrainNotification:
    """At any step."""
    history = dice.choice([(), ("FREEZE",), ("FREEZE", "FLUSH"), ("FREEZE", "FLUSH", "DRAINED")])
    step = DrainStep.FREEZE if len(history) == 1 else DrainStep.FLUSH if history else None
    ends = {f"flights/{number}": (dice.randrange(3), dice.randrange(99)) for number in range(dice.randrange(3))}
    at = tuple(dice.randrange(9) for _ in range(dice.randrange(len(history) + 1)))
    return DrainNotification(
        dice.choice(["u", "v"]), "r", DrainMode.DEFAULT, step, ends, history, dice.choice(["", "me"]), 7, at
    )


def drawn_control(dice: Random) -> Control:
    """Any control blob."""

    def member() -> Member:
        return Member(dice.choice(["p1", "p2"]), dice.choice(["a", "é"]))

    def owner() -> Owner:
        return Owner("p1", dice.choice(["a", "b"]), dice.randrange(9))

    def assignment() -> Assignment:
        later = tuple(owner() for _ in range(dice.randrange(3)))
        return Assignment(dice.choice([None, owner()]), later, dice.random() < 0.5)

    def some(value: Any, nothing: Any) -> Any:
        return value if dice.random() < 0.5 else nothing

    sources = some({"flights": 3}, {})
    return Control(
        "group",
        revision=dice.randrange(1 << 40),
        epoch=dice.randrange(9),
        version=dice.randrange(9),
        leader=some(member(), None),
        successor=some("p2", None),
        run_id=dice.choice(["", "r"]),
        phase=dice.choice(list(RunPhase)),
        fingerprint="f",
        sources=sources,
        readers=some({"clean": ("flights",)} if sources else {}, {}),
        described=some({"stage clean": {"reads": "x"}}, {}),
        members=some((member(), member()), ()),
        tasks={f"clean-{number}": assignment() for number in range(dice.randrange(4))},
        given_up=some({"clean-0": GivenUp(owner(), "why")}, {}),
        barrier=Barrier(dice.randrange(9), dice.choice(list(BarrierState))),
        drain=some(drawn_drain(dice), None),
        drains=some((drawn_drain(dice), drawn_drain(dice)), ()),
        stop=some(Stop("u", (member(),)), None),
        noticed=some({"i": Noticed("p1", "u", "why", 7, dice.choice(list(Availability)), 1, 2)}, {}),
        withdrawn=some(("k",), ()),
        positions=some({"flights/0": (1, 2)}, {}),
        past=some(("q", "r"), ()),
        finished=some(("f",), ()),
        failure=some(Failure("clean", "clean-0", "m", "t"), None),
        uncleaned=some(("q", "r"), ()),
        kept=some({"q": 3}, {}),
        deposed=some(member(), None),
        churn=dice.randrange(3),
        events=some(tuple(Event(number, "kind", "text") for number in range(dice.randrange(4))), ()),
        nonce="n",
    )


def _leaves(value: Any, way: tuple[Any, ...] = ()) -> list[tuple[tuple[Any, ...], Any]]:
    """All values in a JSON value, and how to get there."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [(way, value), *(found for name, each in inner for found in _leaves(each, (*way, name)))]


def _with(fields: Any, way: tuple[Any, ...], value: Any) -> Any:
    """The same with another value there."""
    changed = json.loads(json.dumps(fields))
    if not way:
        return value
    inside = changed
    for name in way[:-1]:
        inside = inside[name]
    inside[way[-1]] = value
    return changed


def _packed(fields: Any) -> bytes:
    return gzip.compress(json.dumps(fields).encode(), mtime=0)


def _refused(what: str, data: bytes, error: type[Exception] = CorruptState) -> None:
    try:
        decode(data)
    except error:
        return
    raise Violation(f"Form: a control blob with {what} is read")


def _without_unknown(value: Any) -> Any:
    """As `asdict`, tuples as lists, without what only later releases know."""
    if isinstance(value, dict):
        return {name: _without_unknown(each) for name, each in value.items() if name != "unknown"}
    return [_without_unknown(each) for each in value] if isinstance(value, list | tuple) else value


#: What is left out while it is empty, so that releases that do not know it can read the blob.
_MAY_LACK = {"given_up", "kept", "readers", "described", "events", "drains", "noticed", "replicas"}


def check_controls(dice: Random) -> None:
    """Form: the control blob is read as it was written, what later releases add is kept, and nothing else is read."""
    control = drawn_control(dice)
    data = encode(control)
    fields = plain.control(data)
    wanted = _without_unknown(asdict(control))
    for drain in [wanted["drain"], *wanted["drains"]]:
        if drain is not None:
            drain["runId"], drain["drainMode"] = drain.pop("run_id"), drain.pop("mode")
            for name in ("by", "asked_ms", "at_ms"):
                if not drain[name]:
                    del drain[name]
    wanted = {name: each for name, each in wanted.items() if each or name not in _MAY_LACK} | {"format": 1}
    differs = sorted(name for name in wanted.keys() | fields.keys() if wanted.get(name, 0) != fields.get(name, 0))
    demand(not differs, f"Form: {differs} of the control blob are not as they were meant")
    demand(decode(data) == control, "Form: the control blob is read otherwise than it was written")
    _check_growth(dice, fields)
    _check_strange(dice, fields, data)
    _check_limit(control)
    other = drawn_control(dice)
    if dice.random() < 0.7:
        name = dice.choice(["run_id", "phase", "drain", "leader", "churn", "stop", "version", "members", "uncleaned"])
        other = replace(control, **{name: getattr(other, name)})
    said = signalled(signal(control))
    demand(said == (control.run_id, control.phase), f"Form: a signal names the run {said}")
    says = [
        (each.run_id, each.phase, each.drain and (each.drain.uuid, each.drain.step), each.leader is None, each.churn)
        + ((each.stop.uuid, len(each.stop.members)) if each.stop else (None, 0))
        + (each.phase == "DRAINED" and all(run in each.kept for run in each.uncleaned),)
        for each in (control, other)
    ]
    demand((signal(control) == signal(other)) == (says[0] == says[1]), "Form: a follower is not told the news")
    finished = control.has_finished("f") and not control.has_finished("g")
    demand(finished, "Form: a pipeline that has run is not known")
    cleaned = all(run in control.kept for run in control.uncleaned)
    demand(control.cleaned == cleaned, "Form: what is left of a run is not known")


def _check_growth(dice: Random, fields: dict[str, Any]) -> None:
    """An unknown field stays where it is."""
    values = [way for way, value in _leaves(fields) if isinstance(value, dict) and _is_value(way)]
    way = dice.choice(values)
    inside = fields
    for name in way:
        inside = inside[name]
    grown = _with(fields, way, {**inside, "later": {"x": [1]}})
    again = plain.control(encode(replace(decode(_packed(grown)), churn=fields["churn"])))
    demand(again == grown, f"Form: what a later release says in {way} is lost")


def _is_value(way: tuple[Any, ...]) -> bool:
    """Whether a value with fields stands there, and no mapping by names."""
    if not way:
        return True
    return way[0] in ("leader", "deposed", "stop", "barrier", "failure") or (
        way[-1] != "ends" and len(way) > 1 and way[0] in ("tasks", "given_up", "events", "members", "drains", "noticed")
    )


def _check_strange(dice: Random, fields: dict[str, Any], data: bytes) -> None:
    _refused("a later format", _packed(fields | {"format": 2}), TooOld)
    _refused("no such format", _packed(fields | {"format": dice.choice([0, -1, "1", True, 1.0, None])}))
    _refused("its end missing", data[: -dice.choice([1, 4, 9])])
    _refused("more behind it", data + b"x")
    _refused("no object as barrier", _packed(fields | {"barrier": dice.choice([7, "x", []])}))
    _refused("no object in it", _packed(dice.choice([[], 7, "x", None])))
    name = dice.choice(
        [each for each in fields if each not in _MAY_LACK and each not in ("stop", "withdrawn", "finished")]
    )
    _refused(f"no {name}", _packed({each: value for each, value in fields.items() if each != name}))
    found = [(way, value) for way, value in _leaves(fields) if way and type(value) in WRONG and "mode" not in way[-1:]]
    for way, value in dice.sample(found, min(6, len(found))):
        wrong = dice.choice(WRONG[type(value)])
        if wrong is None and way[-1] in ("successor", "leader", "stop"):
            continue
        if way[0] == "drain" and len(way) == 1:
            continue
        _refused(f"{wrong!r} as {way}", _packed(_with(fields, way, wrong)))
    texts = [way for way, value in found if isinstance(value, str)]
    half = _with(fields, dice.choice(texts), "\ud800")
    _refused("half of a character in it", _packed(half))


def _check_limit(control: Control) -> None:
    """Form: a control blob is as large as is allowed, at most; what is for people is left out first."""
    whole, least = len(encode(control)), len(encode(replace(control, events=())))
    demand(encode(control, limit=whole) == encode(control), "Form: one of just the size that is allowed is shortened")
    if control.events and least < whole:
        demand(
            decode(encode(control, limit=whole - 1)) == replace(control, events=()), "Form: more than events is lost"
        )
    try:
        encode(control, limit=least - 1)
    except ModelTooLarge:
        return
    raise Violation("Form: a control blob larger than its limit is written")


# Notifications.


def check_notifications(dice: Random) -> None:
    """Form: a drain notification is Samza's, and says when each step was taken."""
    asked = DrainNotification(_UUID, dice.choice(["", "r7"]))
    text = asked.to_json()
    plainly = {"uuid": asked.uuid, "runId": asked.run_id, "drainMode": "DEFAULT"}
    demand(
        json.loads(text) == plainly and DrainNotification.from_json(text) == asked,
        f"Form: a notification is read as {text}",
    )
    asker: dict[str, Any] = {"by": "é" * 300, "askedMs": dice.choice([7, "7", None, True]), "more": 1}
    found = from_fields({**plainly, "drainMode": dice.choice(["default", "Default"]), **asker})
    late = asker["askedMs"] if type(asker["askedMs"]) is int else 0
    demand(found == replace(asked, by="é" * 256, asked_ms=late), "Form: who asked for a drain is read otherwise")
    wrong = dice.choice(["uuid", "runId", "drainMode"])
    value = dice.choice([None, 7, "x" * 257, "x" if wrong != "runId" else 7])
    for strange in (json.dumps({**plainly, wrong: value}), "{", "[]", "7", "[" * 100_000):
        try:
            DrainNotification.from_json(strange)
        except ValueError as error:
            named = strange[0] != "{" or len(strange) == 1 or wrong in str(error)
            demand(named, f"Form: {wrong} is {value!r}, and nobody says so: {error}")
            continue
        raise Violation(f"Form: {strange[:60]} is a notification")
    longest = {**plainly, "runId": "x" * 256}
    demand(from_fields(longest).run_id == "x" * 256, "Form: the longest run id is refused")
    drain, before = drawn_drain(dice), drawn_drain(dice)
    after = timed(drain, dice.choice([None, before, drain]), 99)
    assert after is not None
    kept = after.at_ms[: len(drain.at_ms)] == drain.at_ms and replace(after, at_ms=drain.at_ms) == drain
    demand(kept, "Form: a step's time changes later")
    _check_times(drain, before)
    drains = tuple(replace(drain, uuid=str(number)) for number in range(dice.randrange(8)))
    left = remembered(drains, before)
    wanted = [*(each.uuid for each in drains), before.uuid][-5:]
    demand([each.uuid for each in left] == wanted and not left[-1].ends, "Form: other drains are remembered")
    demand(remembered(drains, None) == drains, "Form: no drain changes what is remembered")
    reached = drain.history[-1] if drain.history else ""
    demand(drain.reached == reached, f"Form: a drain with {drain.history} has reached {drain.reached}")


def _check_times(drain: DrainNotification, before: DrainNotification) -> None:
    """One time for each step: of earlier steps the time recorded then, or 0."""
    found = timed(drain, before, 99)
    assert found is not None
    told = len(before.history) if before.uuid == drain.uuid else 0
    steps = len(drain.history)
    if told >= steps:
        demand(found == drain, "Form: a time is told of no step")
        return
    wanted = list(drain.at_ms) + [0 if step < told else 99 for step in range(len(drain.at_ms), steps)]
    demand(list(found.at_ms) == wanted, f"Form: the times {found.at_ms}, where {wanted} are right")
    demand(timed(None, before, 99) is None, "Form: no drain has times")
