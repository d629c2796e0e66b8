"""What Azure takes, where its types know no range: numbers and durations, and how long a parameter may be.

Each range is documented by Microsoft: grace period of repairs, Application Health extension, windows of alerts, and in
the specification of the REST API (Microsoft.App, ContainerAppProbe) the probes of Container Apps.
"""

import re
from collections.abc import Iterator

from infra.check.bicep import Expression, File, Finding, Items, Literal, Loop, Object, Parameter, Value
from infra.check.types import branches

__all__ = ["check", "seconds"]

APP = "Microsoft.App/containerApps"
MACHINES = "Microsoft.Compute/virtualMachineScaleSets"
ALERT = "Microsoft.Insights/metricAlerts"
QUERY = "Microsoft.Insights/scheduledQueryRules"
BUDGET = "Microsoft.Consumption/budgets"
PROBES = "properties.template.containers.*.probes.*"
HEALTH = "properties.virtualMachineProfile.extensionProfile.extensions.*.properties.settings"
DISK = "properties.virtualMachineProfile.storageProfile.osDisk"
CARDS = "properties.virtualMachineProfile.networkProfile.networkInterfaceConfigurations.*.properties"
MINUTE, HOUR, DAY = 60, 3600, 86400

#: From and to, both included. Durations are in seconds.
RANGES: tuple[tuple[str, str, int, int], ...] = (
    (MACHINES, "properties.automaticRepairsPolicy.gracePeriod", 10 * MINUTE, 90 * MINUTE),
    (MACHINES, f"{HEALTH}.intervalInSeconds", 5, 60),
    (MACHINES, f"{HEALTH}.numberOfProbes", 1, 24),
    (MACHINES, f"{HEALTH}.port", 1, 65535),
    (MACHINES, "properties.virtualMachineProfile.storageProfile.osDisk.diskSizeGB", 30, 4095),
    (APP, f"{PROBES}.periodSeconds", 1, 240),
    (APP, f"{PROBES}.timeoutSeconds", 1, 240),
    (APP, f"{PROBES}.failureThreshold", 1, 10),
    (APP, f"{PROBES}.initialDelaySeconds", 1, 60),
    (QUERY, "properties.criteria.allOf.*.failingPeriods.numberOfEvaluationPeriods", 1, 6),
    (BUDGET, "properties.notifications.*.threshold", 50, 100),
)
#: The few values that are taken. Durations are in seconds.
CHOICES: tuple[tuple[str, str, set[object]], ...] = (
    (ALERT, "properties.evaluationFrequency", {MINUTE, 5 * MINUTE, 15 * MINUTE, 30 * MINUTE, HOUR}),
    (ALERT, "properties.windowSize", {MINUTE, 5 * MINUTE, 15 * MINUTE, 30 * MINUTE, HOUR, 6 * HOUR, 12 * HOUR, DAY}),
    # Spot machines are evicted for want of machines only, and leave no disk behind that is paid for.
    (MACHINES, "properties.virtualMachineProfile.billingProfile.maxPrice", {-1}),
    (MACHINES, "properties.virtualMachineProfile.evictionPolicy", {"Delete"}),
    (MACHINES, "properties.virtualMachineProfile.priority", {"Spot"}),
    (MACHINES, "properties.platformFaultDomainCount", {1}),
    (MACHINES, "properties.priorityMixPolicy.regularPriorityPercentageAboveBase", {0}),
    (MACHINES, f"{DISK}.deleteOption", {"Delete"}),
    (MACHINES, f"{CARDS}.deleteOption", {"Delete"}),
    (MACHINES, "properties.automaticRepairsPolicy.enabled", {True}),
    (MACHINES, "properties.automaticRepairsPolicy.repairAction", {"Replace"}),
    (MACHINES, "properties.upgradePolicy.mode", {"Manual"}),
    # A processor's disk is its own.
    (APP, "properties.template.volumes.*.storageType", {"EmptyDir"}),
    # Bills are monthly, and a mail for what is more than meant.
    (BUDGET, "properties.timeGrain", {"Monthly"}),
    (BUDGET, "properties.notifications.*.operator", {"GreaterThan", "GreaterThanOrEqualTo"}),
)
#: The zones of a region.
ZONES = {"1", "2", "3"}


def check(file: File) -> Iterator[Finding]:
    """Every value that is outside of what Azure takes."""
    for kind, path, low, high in RANGES:
        for value, found in _all(file, kind, path):
            if isinstance(found, int) and not low <= found <= high:
                yield Finding(file.name, value.line, f"{path} is {found}; Azure takes {low} to {high}")
    for kind, path, choices in CHOICES:
        for value, found in _all(file, kind, path):
            if found is not None and found not in choices:
                taken = ", ".join(sorted(map(str, choices)))
                yield Finding(file.name, value.line, f"{path} is {found}; it should be one of {taken}")
    for kind in (ALERT, QUERY):
        yield from _windows(file, kind)
    for name, parameter in file.parameters.items():
        yield from _default(file, parameter)
        if name == "zones" and parameter.default is not None:
            for each in branches(parameter.default, file):
                zones = (
                    [item.value for item in each.items if isinstance(item, Literal)] if isinstance(each, Items) else []
                )
                if unknown := sorted(map(str, set(zones) - ZONES)):
                    yield Finding(file.name, each.line, f"no region has the zone {', '.join(unknown)}")
    yield from _generations(file)


def _default(file: File, parameter: Parameter) -> Iterator[Finding]:
    """A default is within the bounds of its own parameter."""
    found = parameter.default.value if isinstance(parameter.default, Literal) else None
    size = len(found) if isinstance(found, str) else found if isinstance(found, int) else None
    if size is None or isinstance(found, bool) or found == "":
        return
    kind = "Length" if isinstance(found, str) else "Value"
    low, high = (parameter.bounds.get(f"{end}{kind}", size) for end in ("min", "max"))
    if not low <= size <= high:
        yield Finding(file.name, parameter.line, f"the default of {parameter.name!r} is not from {low} to {high}")


def _windows(file: File, kind: str) -> Iterator[Finding]:
    """A window that is shorter than the time between two looks misses what happens between them."""
    often = [found for _, found in _all(file, kind, "properties.evaluationFrequency") if isinstance(found, int)]
    for value, window in _all(file, kind, "properties.windowSize"):
        if isinstance(window, int) and often and window < min(often):
            yield Finding(
                file.name, value.line, f"a window of {window} s is shorter than the {min(often)} s between looks"
            )
    periods, failing = (
        _all(file, kind, f"properties.criteria.allOf.*.failingPeriods.{name}")
        for name in ("numberOfEvaluationPeriods", "minFailingPeriodsToAlert")
    )
    for (_, of), (value, least) in zip(periods, failing, strict=False):
        if isinstance(of, int) and isinstance(least, int) and least > of:
            yield Finding(file.name, value.line, f"{least} of {of} periods never fail")


def _generations(file: File) -> Iterator[Finding]:
    """A trusted launch is for machines of the second generation, which Debian's images name."""
    for kind in _all(file, MACHINES, "properties.virtualMachineProfile.securityProfile.securityType"):
        for value, sku in _all(file, MACHINES, "properties.virtualMachineProfile.storageProfile.imageReference.sku"):
            if kind[1] == "TrustedLaunch" and not str(sku).endswith("gen2"):
                yield Finding(file.name, value.line, f"a trusted launch needs an image of generation 2, and not {sku}")


def _all(file: File, kind: str, path: str) -> list[tuple[Value, object]]:
    """Each value at a path of each resource of a kind; `*` is every item or entry. A duration becomes seconds."""
    bodies = [each.body for each in file.resources.values() if each.type == kind and not each.existing]
    found: list[Value] = list(bodies)
    for name in path.split("."):
        found = [inner for value in found for each in branches(value, file) for inner in _inside(each, name)]
    return [(each, _plain(file, each)) for value in found for each in _branches(file, value)]


def _branches(file: File, value: Value) -> Iterator[Value]:
    """Also the default of a parameter."""
    for each in branches(value, file):
        parameter = file.parameters.get(each.text) if isinstance(each, Expression) else None
        yield parameter.default if parameter is not None and parameter.default is not None else each


def _inside(value: Value, name: str) -> Iterator[Value]:
    match value:
        case Object(entries):
            yield from entries.values() if name == "*" else [entries[name]] if name in entries else []
        case Items(items) if name == "*":
            yield from items
        case Loop(body) if name == "*":
            yield body


def _plain(file: File, value: Value) -> object:
    found = value.value if isinstance(value, Literal) else None
    return seconds(found) if isinstance(found, str) and seconds(found) is not None else found


def seconds(duration: str) -> int | None:
    """Of `PT5M` and the like."""
    found = re.fullmatch(r"P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+)S)?)?", duration)
    if found is None or not any(found.groups()):
        return None
    days, hours, minutes, rest = (int(each or 0) for each in found.groups())
    return days * DAY + hours * HOUR + minutes * MINUTE + rest
