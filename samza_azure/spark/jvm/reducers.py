"""How objects of the user's modules are pickled for Spark's workers where cloudpickle has no way, or a wrong one.

cloudpickle sends a function or a class by value if no worker can import it. A cache around such a function, and a
`NewType`, it still sends by name; of enumerations it forgets aliases and what `__init__` has set; and other classes it
sends in a form that cannot be made again. These are mended here, or refused with a remedy.
"""

import dataclasses
import inspect
from collections.abc import Callable
from enum import Enum
from functools import cached_property, lru_cache
from pickle import PicklingError
from types import MemberDescriptorType, MethodType, ModuleType
from typing import Any, NewType, NoReturn

from pyspark import SparkContext, cloudpickle
from pyspark.sql import SparkSession
from pyspark.sql.classic.column import Column
from pyspark.sql.classic.dataframe import DataFrame
from pyspark.sql.classic.window import WindowSpec

from samza_azure.spark.jvm.rebuilt import cached, set_state_of_enum, with_property

_CLOUDPICKLE: Any = cloudpickle.cloudpickle  # untyped
_REDUCED_CLASS, _STATE_OF_CLASS = _CLOUDPICKLE._dynamic_class_reduce, _CLOUDPICKLE._class_getstate

#: What no worker can have. pyspark would say that some lock of theirs cannot be pickled.
_OF_THIS_PROCESS = (SparkSession, SparkContext, Column, DataFrame, WindowSpec)


class NotForWorkers(PicklingError):
    """A function that Spark calls refers to something that is not sent to workers. The message says what to do."""


def _is_importable(value: object) -> bool:
    """Whether a worker can import the value by its name."""
    found = _CLOUDPICKLE._lookup_module_and_qualname(value)
    return found is not None and not _CLOUDPICKLE._is_registered_pickle_by_value(found[0])


def _cache(value: Any) -> Any:
    if _is_importable(value):
        return value.__reduce__()
    attributes = {name: each for name, each in vars(value).items() if name != "__wrapped__"}
    return cached, (value.__wrapped__, value.cache_parameters()), attributes


def _new_type(value: Any) -> Any:
    return value.__reduce__() if _is_importable(value) else (NewType, (value.__name__, value.__supertype__))


def _class(kind: Any) -> Any:
    """Reduce a class that is pickled by value."""
    if why := _cannot_be_made(kind):
        raise NotForWorkers(
            f"The class {kind.__qualname__} cannot be sent to workers, since {why}. Put it into a module "
            "beside the pipeline, which the workers import."
        )
    function, arguments, (attributes, slots), *nothing, setter = _REDUCED_CLASS(kind)
    attributes = {name: each for name, each in attributes.items() if not isinstance(each, MemberDescriptorType)}
    if not issubclass(kind, Enum):
        return function, arguments, (attributes, slots), *nothing, setter
    bases, name, qualified, _, *others = arguments
    members = kind.__members__
    values = {name: each.value for name, each in members.items()}  # those of aliases, too
    attributes = {name: each for name, each in attributes.items() if name not in members}
    of_members = {name: dict(vars(each)) for name, each in members.items()}
    arguments = bases, name, qualified, values, *others
    return function, arguments, ((attributes, slots), of_members), *nothing, set_state_of_enum


def _cannot_be_made(kind: Any) -> str:
    """Why a worker could not make the class again: it does so without its attributes, which are set afterwards.

    It also does so without the arguments of `class A(B, name="a")`: an `__init_subclass__` with a default for them gets
    the default there.
    """
    hook = super(kind, kind).__init_subclass__
    if isinstance(hook, MethodType):
        try:
            inspect.signature(hook).bind()
        except TypeError:
            return "the arguments of its __init_subclass__ are not known there"
    if issubclass(kind, Enum) and any(hasattr(type(each.value), "__get__") for each in kind):
        return "a member of it is a function"
    if issubclass(kind, Enum) and not all(map(_is_made_of_value, kind)):
        return f"it is an Enum of {kind._member_type_.__qualname__}"
    return ""


def _is_made_of_value(member: Any) -> bool:
    """Whether the type that a member is of, such as `date`, makes the member from its value."""
    of = member._member_type_
    try:
        return of is object or bool((made := of(member.value)) == member and made == member.value)
    except Exception:  # noqa: BLE001  # a user's class may do anything
        return False


def _of_the_session(value: object) -> NoReturn:
    raise NotForWorkers(
        f"A function that Spark calls refers to a {type(value).__name__}, perhaps through an attribute of an object. "
        "It runs in another process, which has no session. Use objects of the session only in the stage's function "
        "itself, and assign what a function needs to a variable of its own."
    )


def by_value(module: ModuleType, *, is_so: bool) -> None:
    """Let cloudpickle send the functions and classes of a module by value, or by name again."""
    (_CLOUDPICKLE.register_pickle_by_value if is_so else _CLOUDPICKLE.unregister_pickle_by_value)(module)


def install(sent: Callable[[dict[str, Any], str], dict[str, Any]]) -> None:
    """Let cloudpickle use these.

    `sent` makes what is sent of the values of a module or a class that is pickled by value, of the name that it gets.
    """

    def module(value: ModuleType) -> Any:
        function, (name, *states) = _CLOUDPICKLE._module_reduce(value)
        return function, (name, *(sent(state, name) for state in states))

    def class_state(kind: type) -> Any:
        attributes, slots = _STATE_OF_CLASS(kind)
        return sent(attributes, kind.__qualname__), slots

    _CLOUDPICKLE._class_getstate = class_state
    _CLOUDPICKLE.CloudPickler._dispatch_table[ModuleType] = module
    _CLOUDPICKLE._dynamic_class_reduce = _class
    table = _CLOUDPICKLE.CloudPickler._dispatch_table
    table[type(lru_cache(len))] = _cache
    table[cached_property] = lambda value: (with_property, (value.func, value.attrname))
    table[NewType] = _new_type
    table[type(dataclasses.MISSING)] = lambda _: "MISSING"  # by its name, since it is compared by identity
    for kind in _OF_THIS_PROCESS:
        table[kind] = _of_the_session
