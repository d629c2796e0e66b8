"""*Vandal*: rows and requests that no release has written, as anybody with access to the table may leave there.

Each looks like one that samza_azure writes, and has columns that are missing, too many, or of another type. What is
drawn here must not be obeyed, so what makes a request valid is always damaged: its kind, its run or what a drain needs.
"""

from collections.abc import Iterator
from random import Random
from typing import Any

from samza_azure.group.control import Control
from samza_azure.group.rows import LEADER, MEMBERS, REQUESTS, ProcessorState, RequestKind

#: Values of types that samza_azure does not write, and of its types but too large, too small or too long. Azure Tables
#: have them all.
STRANGE: tuple[Any, ...] = (
    0,
    -1,
    1 << 62,
    True,
    False,
    0.5,
    float("nan"),
    b"\x00",
    "",
    "x" * 9000,
    "null",
    "[1]",
    "\ud800",
)
#: What a row of a vandal's says of a task.
TASKS = (
    '{"clean-0": {"generation": 1, "attempt": 1, "phase": "RUNNING", "progress": {"rows": 5, "behind": {"in": 7}}, '
    '"last_batch": {"batch": 3, "ms": {"addBatch": 5}}, "tried": "2 of 6", "failures": 2, "restarts": 1}}'
)
#: How their keys begin.
VANDAL = "vandal-"


def vandalism(dice: Random, control: Control) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """A request, a row of a processor, and columns for the leader's row; each with its partition and key."""
    key = f"{VANDAL}{dice.randrange(4)}"
    yield REQUESTS, key, _request(dice, key, control)
    yield MEMBERS, f"{VANDAL}{dice.randrange(4)}", _member(dice, control)
    yield LEADER, LEADER, _leader(dice)


def _request(dice: Random, key: str, control: Control) -> dict[str, Any]:
    kind = dice.choice(list(RequestKind))
    values: dict[str, Any] = {"kind": str(kind), "uuid": key, "runId": control.run_id, "by": "x", "askedMs": 1}
    vital = ["kind", "runId"]
    if kind is RequestKind.DRAIN:
        values["drainMode"] = "DEFAULT"
        vital = ["kind", "uuid", "runId", "drainMode"]
    _damage(dice, values, dice.choice(vital))
    if values.get("runId", "") == "" and values.get("kind") != RequestKind.DRAIN:
        values["runId"] = "of-nobody"  # without a run it would be meant for this one, and be obeyed
    if values.get("uuid") and values.get("runId") == "" and values.get("drainMode") == "DEFAULT":
        del values["uuid"]  # and so would this
    if dice.random() < 0.3:
        values[dice.choice(["incarnations", "by", "askedMs", "answer"])] = dice.choice(STRANGE)
    return values


def _member(dice: Random, control: Control) -> dict[str, Any]:
    """Of a processor that has joined and has no pipeline, so nobody gives it a task."""
    values: dict[str, Any] = {
        "incarnation": f"{dice.getrandbits(128):032x}",
        "state": dice.choice([str(each) for each in ProcessorState]),
        "beat": dice.randrange(9),
        "adopted": control.version,
        "tasks": TASKS,
        "tasks_columns": 1,
        "released": "{}",
        "released_columns": 1,
        "boot": "b",
        "cut_off": False,
        "no_container": dice.choice([False, True]),
        "machine": '{"host": "h", "release": "1", "code": "c", "use": {"cpu": 0.5, "memory": 1}}',
        "too_old_for": dice.choice([0, 2]),
        "ending": "1 x",
        "format": dice.choice([1, 2]),
    }
    for _ in range(dice.randrange(1, 4)):
        _damage(dice, values, dice.choice(sorted(values)))
    return values


def _leader(dice: Random) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name in dice.sample(["epoch", "version", "drain", "control_etag", "beat", "successors"], dice.randrange(1, 4)):
        values[name] = dice.choice([each for each in STRANGE if type(each) is not int])
    return values


def _damage(dice: Random, values: dict[str, Any], name: str) -> None:
    """Take this column away, or give it another type; perhaps add columns of nobody's."""
    if dice.random() < 0.4:
        del values[name]
    else:
        values[name] = dice.choice(STRANGE)
    if dice.random() < 0.2:
        values |= {f"more{number}": dice.choice(STRANGE) for number in range(dice.choice([1, 200]))}


__all__ = ["STRANGE", "VANDAL", "vandalism"]
