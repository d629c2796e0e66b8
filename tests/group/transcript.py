"""A story as a text to read: turn by turn, what a processor decides and writes, and what it then observes.

A test that takes the fixture `story` tells it turn by turn; in the end the text is compared with its file in
`transcripts/`. `pytest --rewrite` writes the files anew.
"""

import difflib
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from enum import Enum
from pathlib import Path
from textwrap import fill
from typing import Any

from samza_azure.group import learn
from samza_azure.group.actions import (
    Action,
    Finish,
    LocalAction,
    MergeOwnRow,
    ReadLeaderRow,
    ReadRequests,
    ScanMembers,
    StorageAction,
    WriteLeaderRow,
)
from samza_azure.group.answers import Answer, ControlRead
from samza_azure.group.control import Control, Member, Owner
from samza_azure.group.rows import LeaderRow, ProcessorRow
from samza_azure.group.view import View
from samza_azure.messages import Permit, TaskReport
from samza_azure.outcomes import Refused
from tests.group.situation import NOW, decide, life_of

FOLDER = Path(__file__).with_name("transcripts")
#: What is answered to the calls of a turn, by their type: see also `usual`. With `...` a call stays under way.
Answers = Mapping[type, Any]


@dataclass(slots=True)
class Story:
    """The lines so far. Calls that stay under way are not repeated, as on a real host."""

    lines: list[str] = field(default_factory=list)

    def turn(self, view: View, at: float, answers: Answers | None = None) -> list[Action]:
        """Decide, perform and learn once. An answer may be a function of the action."""
        actions = decide(view, at)
        if not actions:
            self._says(view, at, "nothing to do")
        for action in actions:
            self._says(view, at, *decided(view, action))
            if isinstance(action, LocalAction):
                learn.perform_locally(view, action, at)
                continue
            learn.started(view, action, at)
            answer = {**usual(view), **(answers or {})}.get(type(action), ...)
            if answer is not ...:
                self._observes(view, action, answer(action) if callable(answer) else answer, at)
        return actions

    def hears(self, view: View, action: StorageAction, answer: Answer, at: float) -> None:
        """The answer to a call that was under way."""
        self._says(view, at, type(action).__name__)
        self._observes(view, action, answer, at)

    def _observes(self, view: View, action: StorageAction, answer: Answer, at: float) -> None:
        first, *more = observed(view, action, answer)
        self.lines[-1] += f" <- {first}" if self.lines[-1][:14].strip() else f"\n{'':16}<- {first}"
        self.lines += [f"{'':16}{line}" for line in more]
        learn.learn(view, action, answer, sent_at=at, now=at)

    def reports(self, view: View, report: TaskReport, at: float) -> None:
        """What the container says about a task."""
        self._says(view, at, f"the container reports {shown(report)}")
        learn.heard_task(view, report, at)

    def remark(self, text: str) -> None:
        """What happens elsewhere in the meantime."""
        self.lines += ["", fill(text, 110), ""]

    def _says(self, view: View, at: float, first: str, *more: str) -> None:
        self.lines += [f"{at - NOW:6.1f} s  {view.me:4}{first}", *(f"{'':16}{line}" for line in more)]


def usual(view: View) -> dict[type, Any]:
    """The answers of a storage in which nothing changes but by this processor."""
    return {
        MergeOwnRow: lambda action: f"row {action.row.beat}",
        WriteLeaderRow: lambda action: f"leader row {action.row.beat}",
        ReadLeaderRow: view.others.leader_row,
        ScanMembers: tuple(view.others.members.values()),
        ReadRequests: view.as_leader.requests if view.leads else (),
    }


def decided(view: View, action: Action) -> list[str]:
    """An action, and what it would change in what is known to be stored."""
    match action:
        case Finish(code=code, message=message):
            return [f"ends with {code}: {message}"]
    name, values = type(action).__name__, {each.name: getattr(action, each.name) for each in fields(action)}
    written = next((each for each in values.values() if isinstance(each, Control | ProcessorRow | LeaderRow)), None)
    before: dict[Any, Any] = {Control: view.control, ProcessorRow: view.own.written, LeaderRow: view.others.leader_row}
    said = ", ".join(
        shown(value) if key in ("command", "verdict", "reason") else f"{key} {shown(value)}"
        for key, value in values.items()
        if value is not written and value
    )
    changes = changed(before.get(type(written)), written)
    return [name + (f": {said}" if said else ""), *(line for line in changes if not line.startswith("etag: "))]


def observed(view: View, action: StorageAction, answer: Answer) -> list[str]:
    """An answer, and how what was read differs from what is known."""
    match answer:
        case None:
            return ["done"]
        case str():
            return [f"done, the etag is {answer!r}"]
        case ControlRead(control=control, etag=etag):
            return [f"the control blob, the etag is {etag!r}", *changed(view.control, control)]
        case ProcessorRow(processor=processor):
            known = view.own.written if processor == view.me else view.others.members.get(processor)
            return [f"the row of {processor}", *changed(known, answer)]
        case LeaderRow():
            return ["the leader row", *changed(view.others.leader_row, answer)]
        case tuple():
            rows = [each for each in answer if isinstance(each, ProcessorRow) and each.processor != view.me]
            news = [(each, changed(view.others.members.get(each.processor), each)) for each in rows]
            return [f"{len(answer)} rows", *(f"{each.processor} {line}" for each, lines in news for line in lines)]
    return [shown(answer)]


def changed(old: Any, new: Any, path: str = "") -> list[str]:
    """A line for each value that differs."""
    if old == new:
        return []
    if is_dataclass(new) and type(old) is type(new) and not isinstance(new, Member | Owner):
        names = [each.name for each in fields(new) if each.compare]
        return [line for name in names for line in changed(getattr(old, name), getattr(new, name), _in(path, name))]
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        return [line for key in {**old, **new} for line in changed(old.get(key), new.get(key), _in(path, key))]
    if isinstance(old, tuple) and isinstance(new, tuple) and new[: len(old)] == old:
        return [f"{path}: + {shown(each)}" for each in new[len(old) :]]
    return [f"{path or 'all'}: {shown(new)}" if old in (None, "", (), {}) else f"{path}: {shown(old)} -> {shown(new)}"]


def _in(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def shown(value: Any) -> str:
    """A value in few words: of a dataclass, what is not as by default; a usual life by its processor."""
    if value is None or value == "" or (isinstance(value, tuple | Mapping) and not value):
        return "none"
    match value:
        case Permit(until=until):
            return f"Permit(until {until - NOW:.1f} s)" if until else "Permit(none)"
        case Refused(code=code):
            return f"refused: {code}"
        case Member(processor=processor, incarnation=life) | Owner(processor=processor, incarnation=life):
            who = processor if life == life_of(processor) else f"{processor} ({life})"
            return f"{who} since version {value.generation}" if isinstance(value, Owner) else who
        case Enum():
            return value.name
        case float():
            return f"{value:g}"
        case tuple():
            return ", ".join(shown(each) for each in value)
        case Mapping():
            return ", ".join(f"{key}: {shown(each)}" for key, each in value.items())
        case _ if is_dataclass(value) and not isinstance(value, type):
            said = [each for each in fields(value) if each.compare and getattr(value, each.name) != _default(each)]
            return f"{type(value).__name__}({', '.join(f'{e.name} {shown(getattr(value, e.name))}' for e in said)})"
    text = str(value)
    return text if len(text) < 32 or " " in text else f"{text[:8]}..."


def _default(each: Any) -> Any:
    make: Callable[[], Any] | Any = each.default_factory
    return each.default if make is MISSING else make()


def file_of(test: str) -> Path:
    """The transcript of a test."""
    return FOLDER / f"{test.removeprefix('test_')}.txt"


def text_of(test: str, docstring: str | None, story: Story) -> str:
    """The whole transcript: what the test is called, what its docstring says, and the turns."""
    title = test.removeprefix("test_").replace("_", " ")
    parts = [fill(f"{title[0].upper()}{title[1:]}.", 110), *([fill(docstring, 110)] if docstring else [])]
    return "\n\n".join([*parts, "\n".join(story.lines).strip("\n")]) + "\n"


def difference(path: Path, text: str) -> str:
    """How a transcript differs from its file. Empty if it does not."""
    there = path.read_text() if path.exists() else ""
    lines = difflib.unified_diff(there.splitlines(), text.splitlines(), "transcript", "now", lineterm="", n=2)
    return "\n".join(lines)
