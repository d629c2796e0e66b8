"""What templates hand to each other: parameters in, outputs back."""

import re
from collections.abc import Iterator, Mapping

from infra.check.bicep import (
    Expression,
    File,
    Finding,
    Literal,
    Module,
    Object,
    Resource,
    Value,
    inside,
    nearest,
    text_of,
    values_in,
)
from infra.check.types import branches, kinds_of

__all__ = ["check"]

ROLES = {"Microsoft.Authorization/roleAssignments"}
STARTED = {"Microsoft.App/containerApps", "Microsoft.Compute/virtualMachineScaleSets"}


def check(file: File, others: Mapping[str, File]) -> Iterator[Finding]:
    """Every module's parameters against those of its template, and every output that is read or handed back."""
    for module in file.modules.values():
        other = others.get(module.path)
        if other is None:
            yield Finding(file.name, module.line, f"there is no template {module.path!r} beside this one")
        else:
            yield from _parameters(file, module, other, others)
            yield from _of_the_same_name(file, module, other, others)
    yield from _names(file)
    yield from _roles_first(file, others)
    yield from _conditions(file, others)
    for body in file.bodies():
        for value in values_in(body):
            if isinstance(value, Expression) and value.kind == "member_expression":
                yield from _output(file, value, others)
    for output in file.outputs.values():
        if (found := kinds_of(output.value, file, others)) and output.type not in found:
            yield Finding(file.name, output.line, f"{output.name!r} is of type {output.type}, and gets {min(found)}")


def _of_the_same_name(file: File, module: Module, other: File, others: Mapping[str, File]) -> Iterator[Finding]:
    """A parameter of this template is handed on to the parameter of its name, and so is an output of that name."""
    given = module.body.entries.get("params")
    for name, value in given.entries.items() if isinstance(given, Object) else ():
        used = _words(file, value)
        first, _, rest = text_of(value).partition(".outputs.")
        is_another = any(  # the template is used twice
            each is not module and each.path == module.path and name in _words(file, its)
            for each in file.modules.values()
            if isinstance(params := each.body.entries.get("params"), Object)
            and (its := params.entries.get(name)) is not None
        )
        if name in other.parameters and name in file.parameters and name not in used and not rest and not is_another:
            yield Finding(file.name, value.line, f"{module.path} gets {text_of(value)} as {name!r}, and not {name!r}")
        source = others.get(file.modules[first].path) if first in file.modules else None
        if source is not None and name in source.outputs and rest != name:
            yield Finding(
                file.name, value.line, f"{module.path} gets {text_of(value)} as {name!r}; {first} has {name!r}"
            )
        made = [each for each in file.modules.values() if each.path in others and name in others[each.path].outputs]
        reads = any("outputs." in text_of(each) for each in values_in(value))
        if made and name not in file.parameters and not reads:
            said = f"{module.path} gets {text_of(value)} as {name!r}; {made[0].name} has an output of that name"
            yield Finding(file.name, value.line, said)
        # for…: what is compared with a choice that the name does not name is of another.
        for choice in re.findall(r"== '([\w-]+)'", text_of(value)):
            if name.startswith("for") and name.removeprefix("for").lower() != choice.replace("-", ""):
                yield Finding(file.name, value.line, f"{name!r} is said to hold for {choice!r}")
    region = file.parameters.get("location")
    if region is not None and isinstance(region.default, Literal):
        yield Finding(file.name, region.line, "everything should be where the group is: resourceGroup().location")


def _words(file: File, value: Value) -> set[str]:
    """The names that a value is made of, those behind variables as well."""
    found = {each.text for each in values_in(value) if isinstance(each, Expression) and each.kind == "identifier"}
    return found | {word for name in found & file.variables.keys() for word in _words(file, file.variables[name])}


def _names(file: File) -> Iterator[Finding]:
    """Two modules of one name are one deployment, whose second start takes the place of the first."""
    names: dict[object, str] = {}
    for module in file.modules.values():
        name = module.body.entries.get("name")
        if isinstance(name, Literal) and names.setdefault(name.value, module.name) != module.name:
            yield Finding(file.name, name.line, f"{names[name.value]} and {module.name} have the same name")


def _conditions(file: File, others: Mapping[str, File]) -> Iterator[Finding]:
    """A condition is a truth, and what is made on a condition is read on that condition."""
    made: list[Resource | Module] = [*file.resources.values(), *file.modules.values()]
    for each in made:
        kinds = kinds_of(each.condition, file, others) if each.condition is not None else set()
        if each.condition is not None and kinds and "bool" not in kinds:
            yield Finding(file.name, each.line, f"the condition of {each.name} should be a bool, and is {min(kinds)}")
    for each in made:
        yield from _unguarded(file, each.body, {text_of(each.condition)})
    for resource in (each for each in file.resources.values() if not each.existing):
        yield from _absent(file, resource.body, {text_of(resource.condition)})
    for other in (*file.variables.values(), *(output.value for output in file.outputs.values())):
        yield from _unguarded(file, other, set())


def _unguarded(file: File, value: Value, holds: set[str]) -> Iterator[Finding]:
    """Outputs that are read although their module may not be there; `holds` are the conditions that hold here."""
    match value:
        case Expression("ternary_expression", _, (asked, first, second)):
            yield from _unguarded(file, first, holds | {text_of(asked)})
            yield from _unguarded(file, second, holds)
            return
        case Expression("member_expression", text):
            module = file.modules.get(text.partition(".")[0])
            if module is not None and module.condition is not None and text_of(module.condition) not in holds:
                why = f"{module.name} is there only if {text_of(module.condition)}"
                yield Finding(file.name, value.line, f"{text} is read in any case, and {why}")
            return
    for each in inside(value):
        yield from _unguarded(file, each, holds)


def _absent(file: File, value: Value, holds: set[str]) -> Iterator[Finding]:
    """Resources that are named where they are not made: one may be on a condition, and this on another."""
    match value:
        case Expression("ternary_expression", _, (asked, first, second)):
            yield from _absent(file, first, holds | {text_of(asked)})
            yield from _absent(file, second, holds | {_not(text_of(asked))})
            return
        case Expression("member_expression", text):
            made = file.resources.get(text.partition(".")[0])
            on = text_of(made.condition) if made is not None and not made.existing else ""
            if made is not None and on and on not in holds:
                yield Finding(file.name, value.line, f"{text} is named, and {made.name} is there only if {on}")
            return
    for each in inside(value):
        yield from _absent(file, each, holds)


def _not(condition: str) -> str:
    return condition.removeprefix("!") if condition.startswith("!") else f"!{condition}"


def _roles_first(file: File, others: Mapping[str, File]) -> Iterator[Finding]:
    """What starts processors waits for their roles: nothing that it is handed says so."""

    def has(module: Module, kinds: set[str]) -> bool:
        other = others.get(module.path)
        return other is not None and any(each.type in kinds for each in other.resources.values())

    roles = {name for name, module in file.modules.items() if has(module, ROLES)}
    for module in file.modules.values():
        waits_for = {each.text for each in values_in(module.body) if isinstance(each, Expression)}
        if roles and has(module, STARTED) and not roles & waits_for:
            yield Finding(file.name, module.line, f"{module.name} starts processors, and does not wait for their roles")


def _parameters(file: File, module: Module, other: File, others: Mapping[str, File]) -> Iterator[Finding]:
    given = module.body.entries.get("params", Object({}, {}, (), module.line))
    assert isinstance(given, Object)
    for name, value in given.entries.items():
        line = given.lines[name]
        wanted = other.parameters.get(name)
        if wanted is None:
            said = f"{module.path} has no parameter {name!r}{nearest(name, other.parameters)}"
            yield Finding(file.name, line, said)
            continue
        if name in file.parameters and text_of(value) in other.parameters.keys() - {name}:
            yield Finding(file.name, line, f"{module.path} gets {text_of(value)!r} as {name!r}, and has both")
        choices = [each.value for each in inside(wanted.allowed) if isinstance(each, Literal)] if wanted.allowed else []
        for each in branches(value, file):
            found = kinds_of(each, file, others)
            known = file.parameters[text_of(each)].default if text_of(each) in file.parameters else each
            if found and wanted.type not in found:
                said = f"{module.path} wants {name!r} to be of type {wanted.type}, and gets {min(found)}"
                yield Finding(file.name, line, said)
            elif isinstance(known, Literal) and choices and known.value not in choices:
                takes = ", ".join(map(repr, choices))
                yield Finding(file.name, line, f"{module.path} takes {takes} as {name!r}, and gets {known.value!r}")
    for name, parameter in other.parameters.items():
        if parameter.default is None and name not in given.entries:
            yield Finding(file.name, module.line, f"{module.path} needs the parameter {name!r}")


def _output(file: File, value: Expression, others: Mapping[str, File]) -> Iterator[Finding]:
    first, _, rest = value.text.partition(".")
    if first not in file.modules or not rest.startswith("outputs."):
        return
    other, name = others.get(file.modules[first].path), rest.removeprefix("outputs.")
    if other is not None and name not in other.outputs:
        said = f"{other.name} has no output {name!r}{nearest(name, other.outputs)}"
        yield Finding(file.name, value.line, said)
