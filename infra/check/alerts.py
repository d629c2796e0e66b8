"""Alerts that can fire, and for the right reason: switched on, at the right resource, in the right direction."""

import re
from collections.abc import Iterator, Mapping

from infra.check.bicep import File, Finding, Items, Literal, Object, Resource, Value, text_of, values_in
from infra.check.documents import load_all

__all__ = ["check"]

METRIC = "Microsoft.Insights/metricAlerts"
QUERY = "Microsoft.Insights/scheduledQueryRules"
PEOPLE = "Microsoft.Insights/actionGroups"
WORKSPACE = "Microsoft.OperationalInsights/workspaces"
GREATER = {"GreaterThan", "GreaterOrLessThan", "GreaterThanOrEqual"}
#: Each platform metric: which side is bad, how its values are put together, and between which bounds a threshold lies,
#: in the metric's own unit.
PLATFORM: dict[str, tuple[bool, set[str], float, float]] = {
    "Transactions": (True, {"Total"}, 1, 100_000),
    "Availability": (False, {"Average", "Minimum"}, 50, 100),  # per cent
    "SuccessE2ELatency": (True, {"Average", "Maximum"}, 50, 60_000),  # milliseconds
    "SuccessServerLatency": (True, {"Average", "Maximum"}, 5, 60_000),
    "RestartCount": (True, {"Maximum", "Total"}, 1, 100),
    "ThrottledRequests": (True, {"Total"}, 1, 100_000),
    "Replicas": (False, {"Minimum", "Average", "Maximum"}, 1, 1000),
}
#: Metrics of processors of which less is bad. Of all others more is.
LESS_IS_BAD = {"samza_azure.leader", "samza_azure.group.members"}
#: What calls that the service refuses for their number are called.
THROTTLED = {
    "ServerBusyError",
    "ClientThrottlingError",
    "ClientAccountRequestThrottlingError",
    "ClientAccountBandwidthThrottlingError",
}


def check(files: Mapping[str, File], rules: str) -> Iterator[Finding]:
    """All alerts of all templates, and what Prometheus' alerts of the same name say."""
    for file in files.values():
        for each in file.resources.values():
            if each.type in (METRIC, QUERY, PEOPLE):
                yield from _switched_on(file, each)
            if each.type in (METRIC, QUERY):
                yield from _scope(files, file, each)
            if each.type == METRIC:
                yield from _platform(file, each)
        yield from _queries(file)
    yield from _agree(files, rules)


def _switched_on(file: File, alert: Resource) -> Iterator[Finding]:
    """An alert without a switch, or without somebody who is told, is none."""
    enabled = _at(alert.body, "properties", "enabled")
    if not isinstance(enabled, Literal) or enabled.value is not True:
        yield Finding(file.name, alert.line, f"{alert.name} is not enabled, so nobody is told")
    if alert.type == PEOPLE:
        return
    told = _at(alert.body, "properties", "actions")
    if not any("actionGroup" in key or text_of(value) for key, value in _entries(told)):
        yield Finding(file.name, alert.line, f"{alert.name} has no action group, so nobody is told")
    if alert.type == QUERY and getattr(_at(alert.body, "properties", "autoMitigate"), "value", None) is not True:
        yield Finding(file.name, alert.line, f"{alert.name} should end by itself: autoMitigate")


def _scope(files: Mapping[str, File], file: File, alert: Resource) -> Iterator[Finding]:
    """A metric is asked of the resource that has it, a query of the workspace."""
    scopes = _at(alert.body, "properties", "scopes")
    found = {_type_of(files, file, each) for each in getattr(scopes, "items", ())}
    spaces = {
        str(space.value)
        for each in values_in(alert.body)
        if isinstance(each, Object) and isinstance(space := each.entries.get("metricNamespace"), Literal)
    }
    wanted = spaces if alert.type == METRIC else {WORKSPACE}
    if found - {None} != wanted:
        shown = ", ".join(sorted(str(each) for each in found)) or "nothing"
        yield Finding(
            file.name, alert.line, f"{alert.name} looks at {shown}; it should look at {', '.join(sorted(wanted))}"
        )


def _type_of(files: Mapping[str, File], file: File, value: Value) -> str | None:
    """The type of the resource whose id this is, through parameters and outputs of other templates."""
    first, _, rest = text_of(value).partition(".")
    if first in file.resources:
        return file.resources[first].type
    if first in file.modules and rest.startswith("outputs."):
        other = files.get(file.modules[first].path)
        output = other.outputs.get(rest.removeprefix("outputs.")) if other is not None else None
        return _type_of(files, other, output.value) if other is not None and output is not None else None
    if first in file.parameters:
        for main in files.values():
            for module in main.modules.values():
                given = _at(module.body, "params", first)
                if module.path == file.name and given is not None:
                    return _type_of(files, main, given)
        # This template alone was looked at: what a parameter is, only its name says.
        return {"accountId": "Microsoft.Storage/storageAccounts", "workspaceId": WORKSPACE}.get(first)
    return None


def _platform(file: File, alert: Resource) -> Iterator[Finding]:
    for each in values_in(alert.body):
        name = each.entries.get("metricName") if isinstance(each, Object) else None
        if not isinstance(each, Object) or not isinstance(name, Literal) or name.value not in PLATFORM:
            continue
        more, together, low, high = PLATFORM[str(name.value)]
        operator, by = (text_of(each.entries.get(key)) for key in ("operator", "timeAggregation"))
        threshold = each.entries.get("threshold")
        if (operator in GREATER) is not more:
            yield Finding(
                file.name, each.line, f"{name.value} is bad if it is {'high' if more else 'low'}, not {operator}"
            )
        if by not in together:
            yield Finding(
                file.name, each.line, f"{name.value} is put together by {by}; take {' or '.join(sorted(together))}"
            )
        if threshold is not None and not low <= _number(threshold) <= high:
            said = f"the threshold {text_of(threshold)} of {name.value} should be between {low:g} and {high:g}"
            yield Finding(file.name, threshold.line, said)
        for value in values_in(each):
            entries = value.entries if isinstance(value, Object) else {}
            listed = entries.get("values")
            if isinstance(listed, Items) and text_of(entries.get("name")) == "ResponseType":
                found = {text_of(item) for item in listed.items}
                if found != THROTTLED:
                    odd = ", ".join(sorted(found ^ THROTTLED))
                    yield Finding(file.name, listed.line, f"throttled calls are of other types; not both have {odd}")


def _number(value: Value) -> float:
    """What the parser knows only as text, as 0.5, as well."""
    found = re.fullmatch(r"-?\d+(\.\d+)?", text_of(value))
    return float(found[0]) if found is not None else float("nan")


def _rules(file: File) -> Iterator[tuple[str, Object, str]]:
    """The name of each query's rule, the rule and its query."""
    for body in (*file.variables.values(), *(each.body for each in file.resources.values())):
        for each in values_in(body):
            if isinstance(each, Object) and isinstance(query := each.entries.get("query"), Literal):
                yield text_of(each.entries.get("name")), each, str(query.value)


def _queries(file: File) -> Iterator[Finding]:
    """Rows are counted: a query that keeps the bad ones fires if there are any, one that keeps the good if none."""
    for name, each, query in _rules(file):
        metrics = set(re.findall(r'"(samza_azure[\w.]+)"', query))
        operator, threshold = text_of(each.entries.get("operator")), each.entries.get("threshold")
        less = bool(metrics & LESS_IS_BAD)
        if not operator or threshold is None:
            continue
        if (operator not in GREATER) is not less:
            kept = "good" if less else "bad"
            yield Finding(
                file.name, each.line, f"{name} counts the {kept} rows, so {operator} fires for the wrong side"
            )
        if isinstance(threshold, Literal) and threshold.value != (1 if less else 0):
            yield Finding(
                file.name, each.line, f"{name} fires by {operator} {threshold.value}; it should be {int(less)}"
            )
        if re.search(r"\bSum\s*(<|!=)", query) or (not less and re.search(r"\bmin\w*\(", query)):
            yield Finding(file.name, each.line, f"{name} looks for small values, and large ones are bad")


def _agree(files: Mapping[str, File], rules: str) -> Iterator[Finding]:
    """Alerts of Prometheus and of Azure of one name ask for the same metrics, and fire at the same numbers."""
    theirs = {}
    for each in (rule for group in load_all(rules)[0]["groups"] for rule in group["rules"] if "alert" in rule):
        anchor = each.get("annotations", {}).get("runbook_url", "").partition("#")[2]
        theirs[anchor] = (set(re.findall(r"[<>]=?\s*(\d+(?:\.\d+)?)", each["expr"])), each["expr"])
    for file in files.values():
        for name, rule, query in _rules(file):
            if name not in theirs:
                continue
            here = {number for number in re.findall(r"[<>]=?\s*(\d+(?:\.\d+)?)", query) if float(number) > 1}
            there = {number for number in theirs[name][0] if float(number) > 1}
            if here and there and here != there and name != "tasks-not-running":
                yield Finding(
                    file.name, rule.line, f"{name} fires at {', '.join(here)}, and Prometheus' at {', '.join(there)}"
                )


def _entries(value: Value | None) -> list[tuple[str, Value]]:
    """All entries of all objects inside."""
    objects = [each for each in values_in(value) if isinstance(each, Object)] if value is not None else []
    return [entry for each in objects for entry in each.entries.items()]


def _at(value: Value | None, *path: str) -> Value | None:
    for name in path:
        value = value.entries.get(name) if isinstance(value, Object) else None
    return value
