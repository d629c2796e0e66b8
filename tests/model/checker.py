"""Tries everything that can happen, one step after the other, and finds the shortest way to what must not happen.

A model says what can happen next in a state. States are values; two ways that lead to the same one are gone on from
once. Promised: up to the depth that `check` reports, nothing was left out, and a counterexample is among the shortest.
Not promised: anything about what lies deeper, unless the result says that it is complete.

A processor that is paused or has crashed needs no step of its own: its next step may come at any time, or never.
"""

import gc
import time
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from typing import Any, Generic, Protocol, TypeVar

#: No bound.
ALL = 1 << 60

State = TypeVar("State", bound=Hashable)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Violation:
    """What must not happen. `invariant` is its name in docs/invariants.md, or in the model's own words."""

    invariant: str
    what: str

    def __str__(self) -> str:
        return f"{self.invariant}: {self.what}"


class Model(Protocol[State]):
    """A protocol, small enough to try everything."""

    def begin(self) -> State:
        """The state in which nothing has happened."""

    def steps(self, state: State) -> Iterable[tuple[str, State | Violation]]:
        """All that can happen next, each in words, with what it leads to."""

    def rest(self, state: State) -> Violation | None:
        """A violation in a state in which no further step is possible, if there is one."""


@dataclass(frozen=True, slots=True)
class Result:
    """What was tried: `states` different ones, joined by `steps`. `complete`: there are no more."""

    states: int
    steps: int
    depth: int  # all sequences of this many steps were tried
    seconds: float
    complete: bool
    violation: Violation | None = None
    trace: tuple[str, ...] = ()

    def story(self) -> str:
        """The shortest way to the violation, one step a line."""
        lines = [f"{number:3}. {step}" for number, step in enumerate(self.trace, 1)]
        return "\n".join([*lines, f"  => {self.violation}" if self.violation else "  => nothing is violated"])


def check(model: Model[State], *, depth: int = ALL, seconds: float = 1e9, states: int = ALL) -> Result:
    """Breadth-first from the model's beginning, until something is violated, nothing is new, or it is enough."""
    collecting = gc.isenabled()
    gc.disable()  # states are values that live to the end; looking for circles among them would take most of the time
    try:
        return _check(model, depth, seconds, states)
    finally:
        if collecting:
            gc.enable()


def _check(model: Model[State], depth: int, seconds: float, states: int) -> Result:
    begun, clock, done, level = model.begin(), time.monotonic(), 0, 0
    seen: dict[State, tuple[State, str] | None] = {begun: None}
    front = [begun]

    def result(complete: bool, violation: Violation | None = None, last: State | None = None, *step: str) -> Result:
        taken = time.monotonic() - clock
        return Result(len(seen), done, level, taken, complete, violation, (*_way(seen, last), *step))

    while front:
        if level >= depth or time.monotonic() - clock > seconds:
            return result(complete=False)
        coming: list[State] = []
        for number, state in enumerate(front):
            moved = False
            for step, after in model.steps(state):
                moved, done = True, done + 1
                if isinstance(after, Violation):
                    level += 1
                    return result(False, after, state, step)
                if after not in seen:
                    seen[after] = (state, step)
                    coming.append(after)
            if not moved and (wrong := model.rest(state)) is not None:
                return result(False, wrong, state)
            if number % 1024 == 0 and (time.monotonic() - clock > seconds or len(seen) > states):
                return result(complete=False)  # of the present level only a part was tried
        front, level = coming, level + 1
    return result(complete=True)


def _way(seen: dict[State, tuple[State, str] | None], state: State | None) -> tuple[str, ...]:
    steps: list[str] = []
    while state is not None and (before := seen[state]) is not None:
        state, step = before
        steps.append(step)
    return tuple(reversed(steps))


class Shelf(Generic[T]):
    """Production's own objects, kept by number so that they can be part of a state. Equal ones have the same number."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._values: list[T] = []

    def put(self, value: T) -> int:
        """Its number. The value belongs to the shelf from now on."""
        number = self._numbers.setdefault(repr(value), len(self._values))
        if number == len(self._values):
            self._values.append(value)
        return number

    def get(self, number: int) -> T:
        """A copy that may be changed."""
        mine: T = _copied(self._values[number])
        return mine

    def look(self, number: int) -> T:
        """The value itself, to look at."""
        return self._values[number]


def _copied(value: Any) -> Any:
    """A copy of all in it that can be changed. What is frozen is shared."""
    if isinstance(value, dict):
        return {key: _copied(each) for key, each in value.items()}
    names = _changeable(type(value))
    if not names:
        return value
    mine = object.__new__(type(value))
    for name in names:
        setattr(mine, name, _copied(getattr(value, name)))
    return mine


@cache
def _changeable(kind: type) -> tuple[str, ...]:
    """The fields of a dataclass that is not frozen."""
    if not is_dataclass(kind) or kind.__dataclass_params__.frozen:  # type: ignore[attr-defined]
        return ()
    return tuple(each.name for each in fields(kind))
