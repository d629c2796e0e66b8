"""What templates hand to each other: parameters in, outputs back."""

import difflib
from collections.abc import Iterator, Mapping

from infra.check.bicep import Expression, File, Finding, Literal, Module, Object, Value, values_in
from infra.check.types import kinds_of

__all__ = ["check"]

ROLES = {"Microsoft.Authorization/roleAssignments"}
STARTED = {"Microsoft.App/containerApps", "Microsoft.Compute/virtualMachineScaleSets"}


def check(file: File, others: Mapping[str, File]) -> Iterator[Finding]:
    """Every module's parameters against those of its template, and every output that is read."""
    for module in file.modules.values():
        other = others.get(module.path)
        if other is None:
            yield Finding(file.name, module.line, f"there is no template {module.path!r} beside this one")
        else:
            yield from _parameters(file, module, other, others)
    yield from _roles_first(file, others)
    for body in _bodies(file):
        for value in values_in(body):
            if isinstance(value, Expression) and value.kind == "member_expression":
                yield from _output(file, value, others)


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


def _bodies(file: File) -> Iterator[Value]:
    yield from file.variables.values()
    yield from (resource.body for resource in file.resources.values())
    yield from (module.body for module in file.modules.values())
    yield from (each.value for each in file.outputs.values())


def _parameters(file: File, module: Module, other: File, others: Mapping[str, File]) -> Iterator[Finding]:
    given = module.body.entries.get("params", Object({}, {}, (), module.line))
    assert isinstance(given, Object)
    for name, value in given.entries.items():
        line = given.lines[name]
        wanted = other.parameters.get(name)
        if wanted is None:
            near = difflib.get_close_matches(name, other.parameters, 1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            yield Finding(file.name, line, f"{module.path} has no parameter {name!r}{hint}")
            continue
        found = kinds_of(value, file, others)
        if found and wanted.type not in found:
            yield Finding(
                file.name, line, f"{module.path} wants {name!r} to be of type {wanted.type}, and gets {min(found)}"
            )
        allowed = (
            [each.value for each in values_in(wanted.allowed) if isinstance(each, Literal)] if wanted.allowed else []
        )
        if isinstance(value, Literal) and allowed and value.value not in allowed:
            choices = ", ".join(map(repr, allowed))
            yield Finding(file.name, line, f"{module.path} takes {choices} as {name!r}, and gets {value.value!r}")
    for name, parameter in other.parameters.items():
        if parameter.default is None and name not in given.entries:
            yield Finding(file.name, module.line, f"{module.path} needs the parameter {name!r}")


def _output(file: File, value: Expression, others: Mapping[str, File]) -> Iterator[Finding]:
    first, _, rest = value.text.partition(".")
    if first not in file.modules or not rest.startswith("outputs."):
        return
    other, name = others.get(file.modules[first].path), rest.removeprefix("outputs.")
    if other is not None and name not in other.outputs:
        near = difflib.get_close_matches(name, other.outputs, 1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        yield Finding(file.name, value.line, f"{other.name} has no output {name!r}{hint}")
