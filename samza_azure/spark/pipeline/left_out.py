"""Placeholder pickled instead of an object of the session; using it in a worker raises.

A module or a class that is pickled by value gets one under the name of each value that holds such an object, since a
name that were left out might be found elsewhere: in a base class, or as the default of `getattr`. Workers import this
file, so it imports nothing.
"""

from typing import Any, NoReturn


class OfTheSession(RuntimeError):
    """A worker has used an object of the session."""


class LeftOut:
    """The place of such an object, in a module or a class."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __reduce__(self) -> tuple[type["LeftOut"], tuple[str]]:
        return LeftOut, (self._name,)

    def __get__(self, instance: object, owner: type | None = None) -> NoReturn:
        """Refuse the attribute of a class. An object may have one of its own under this name."""
        self._refuse()

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):  # Python and pickle ask for these
            raise AttributeError(name)
        self._refuse()

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise OfTheSession(
            f"{self._name} is or holds an object of the Spark session, as a Column or a DataFrame. Functions that "
            "Spark calls run in other processes, which have no session. Keep what they use in a name of its own."
        )

    __str__ = __format__ = _refuse
    __call__ = __getitem__ = __iter__ = __contains__ = __len__ = __bool__ = __eq__ = __hash__ = _refuse
