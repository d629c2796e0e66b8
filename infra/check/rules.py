"""What no type can say: rules of this project over the templates, each with its reason in its first line."""

import re
from collections.abc import Callable, Iterator, Mapping

from infra.check.bicep import (
    Expression,
    File,
    Finding,
    Items,
    Literal,
    Module,
    Object,
    Output,
    Parameter,
    Resource,
    Value,
    values_in,
)

__all__ = ["METRICS", "ROUTES", "RULES", "check"]

ACCOUNT = "Microsoft.Storage/storageAccounts"
CONTAINER = f"{ACCOUNT}/blobServices/containers"
TABLE = f"{ACCOUNT}/tableServices/tables"
REGISTRY = "Microsoft.ContainerRegistry/registries"
INSIGHTS = "Microsoft.Insights/components"

#: What a processor answers, at `processor.port`.
ROUTES = {"/livez", "/readyz", "/metrics"}
#: Each role by its GUID, and the one kind of resource at which it is assigned.
ROLES = {
    "ba92f5b4-2d11-453d-a403-e96b0029c9fe": ("Storage Blob Data Contributor", CONTAINER),
    "2a2b9908-6ea1-4ae2-8e65-a410df84e7d1": ("Storage Blob Data Reader", CONTAINER),
    "0a9a7e1f-b9d0-4cc4-a60d-0319b160aaa3": ("Storage Table Data Contributor", TABLE),
    "76199698-9eea-4c19-bc75-cec21354c6b6": ("Storage Table Data Reader", TABLE),
    "7f951dda-4ed3-4680-a7ca-43fe172d538d": ("AcrPull", REGISTRY),
    "3913510d-42f4-4e42-8a64-420c390055eb": ("Monitoring Metrics Publisher", INSIGHTS),
}
#: What writers of rows cannot do without: the processors, and the producers of the sources.
WRITES = {("ba92f5b4-2d11-453d-a403-e96b0029c9fe", "container"), ("0a9a7e1f-b9d0-4cc4-a60d-0319b160aaa3", "table")}
WRITERS = ("processors", "producers")
#: The group that may upload what the machines run, as the processors' identity.
RELEASERS = "releasers"
#: The platform metrics that alerts may be on, by their namespace.
METRICS = {
    "Microsoft.Storage/storageAccounts": {"Transactions", "Availability", "SuccessE2ELatency", "SuccessServerLatency"},
    "Microsoft.App/containerApps": {"RestartCount", "Replicas", "UsageNanoCores", "WorkingSetBytes"},
}
_SECRET = re.compile(
    r"\blist(?:Keys|AccountSas|ServiceSas|Secrets|Credentials)\b|AccountKey=|SharedAccessSignature|(?i:password)"
)
#: Without them a processor finds neither its identity nor the account.
VARIABLES = {"AZURE_CLIENT_ID", "AZURE_STORAGE_ACCOUNT_URL"}
#: Without them `opentelemetry-instrument` may take another distribution than Azure's, or sends a span of each call.
TELEMETRY = {
    "APPLICATIONINSIGHTS_AUTHENTICATION_STRING",
    "APPLICATIONINSIGHTS_CONNECTION_STRING",
    "OTEL_LOGS_EXPORTER",
    "OTEL_PYTHON_CONFIGURATOR",
    "OTEL_PYTHON_DISTRO",
    "OTEL_TRACES_EXPORTER",
}
_PYTHON: dict[str, type] = {"string": str, "int": int, "bool": bool, "array": list, "object": dict}
_MOST_FAILURES = 10  # of a probe, on Container Apps

Rule = Callable[[File], Iterator[Finding]]


def check(files: Mapping[str, File]) -> Iterator[Finding]:
    """All rules over all templates."""
    for file in files.values():
        for rule in RULES:
            yield from rule(file)


def no_shared_key(file: File) -> Iterator[Finding]:
    """No account opens by a key: it cannot be scoped, and its holder may do everything."""
    for account in _made(file, ACCOUNT):
        yield from _wants(file, account, ("properties", "allowSharedKeyAccess"), {False})


def no_public_blob(file: File) -> Iterator[Finding]:
    """Nothing can be read without an identity."""
    for account in _made(file, ACCOUNT):
        yield from _wants(file, account, ("properties", "allowBlobPublicAccess"), {False})
    for container in _made(file, CONTAINER):
        yield from _wants(file, container, ("properties", "publicAccess"), {"None"})


def encrypted_in_transit(file: File) -> Iterator[Finding]:
    """TLS 1.2 or newer, and nothing without it."""
    for account in _made(file, ACCOUNT):
        yield from _wants(file, account, ("properties", "minimumTlsVersion"), {"TLS1_2", "TLS1_3"})
        yield from _wants(file, account, ("properties", "supportsHttpsTrafficOnly"), {True})


def nothing_kept_for_ever(file: File) -> Iterator[Finding]:
    """Versions and deleted blobs would be paid for, with every write; a deleted container can come back."""
    for blobs in _made(file, f"{ACCOUNT}/blobServices"):
        yield from _wants(file, blobs, ("properties", "isVersioningEnabled"), {False})
        yield from _wants(file, blobs, ("properties", "deleteRetentionPolicy", "enabled"), {False})
        yield from _wants(file, blobs, ("properties", "changeFeed", "enabled"), {False})
        yield from _wants(file, blobs, ("properties", "containerDeleteRetentionPolicy", "enabled"), {True})
    if "managementPolicies" in "".join(each.type for each in file.resources.values()):
        yield Finding(file.name, 1, "a lifecycle rule that deletes a piece of a log loses state; take it out")


def least_privilege(file: File) -> Iterator[Finding]:
    """Each role at the container, the table, the registry or the component that it is for, never above."""
    held: set[tuple[str, str, str]] = set()
    assignments = list(_made(file, "Microsoft.Authorization/roleAssignments"))
    for each in assignments:
        role = _role(file, _at(each.body, ("properties", "roleDefinitionId")))
        scope = each.body.entries.get("scope")
        where = file.resources.get(scope.text) if isinstance(scope, Expression) else None
        if role not in ROLES:
            yield Finding(file.name, each.line, f"{each.name} assigns a role that is none of ours: {role!r}")
        elif where is None:
            yield Finding(
                file.name, each.line, f"{each.name} has no scope of its own, so {ROLES[role][0]} is for the group"
            )
        elif where.type != ROLES[role][1]:
            wanted = ROLES[role][1].rpartition("/")[2]
            yield Finding(
                file.name,
                each.line,
                f"{each.name} assigns {ROLES[role][0]} at {where.type}; its scope is one of {wanted}",
            )
        else:
            principal = _as_text(_at(each.body, ("properties", "principalId"))) or ""
            held.add((principal, role, where.name))
            if where.name == "releases" and "Contributor" in ROLES[role][0] and principal != RELEASERS:
                yield Finding(
                    file.name, each.line, f"{principal} may upload what the machines run; only {RELEASERS} should"
                )
    if assignments:
        for who in WRITERS:
            for role, place in sorted(WRITES - {(role, place) for principal, role, place in held if principal == who}):
                yield Finding(file.name, 1, f"the {who} lack {ROLES[role][0]} at the {place}")


def probes_on_real_routes(file: File) -> Iterator[Finding]:
    """Start, life and readiness are asked for, where a processor answers; life never asks for readiness."""
    for app in _made(file, "Microsoft.App/containerApps"):
        probes = [each for each in _objects(app.body) if "httpGet" in each.entries]
        kinds = {_literal(file, each.entries.get("type")) for each in probes}
        for absent in sorted({"Startup", "Liveness", "Readiness"} - kinds):
            yield Finding(file.name, app.line, f"{app.name} has no probe of type {absent}, and no default has one")
        for probe in probes:
            path = _literal(file, _at(probe, ("httpGet", "path")))
            kind = _literal(file, probe.entries.get("type"))
            wanted = "/readyz" if kind == "Readiness" else "/livez"
            if path not in ROUTES:
                yield Finding(file.name, probe.line, f"a probe asks for {path}, which no processor answers")
            elif path != wanted:
                yield Finding(
                    file.name, probe.line, f"the probe of type {kind} asks for {path}; it should ask for {wanted}"
                )
            failures = _literal(file, probe.entries.get("failureThreshold"))
            if not isinstance(failures, int) or failures > _MOST_FAILURES:
                yield Finding(
                    file.name,
                    probe.line,
                    f"failureThreshold is {failures}; Container Apps take {_MOST_FAILURES} at most",
                )
    for each in _made(file, "Microsoft.Compute/virtualMachineScaleSets"):
        for inner in _objects(each.body):
            settings = inner.entries.get("settings")
            if _literal(file, inner.entries.get("type")) == "ApplicationHealthLinux" and isinstance(settings, Object):
                for line, text in _of_health_extension(file, inner, settings):
                    yield Finding(file.name, line, f"{each.name} {text}")


def _of_health_extension(file: File, extension: Object, settings: Object) -> Iterator[tuple[int, str]]:
    """Version 1.0 judges by the status alone; 2.0 wants `ApplicationHealthState` in the body, which /livez has not."""
    path, version = (
        _literal(file, each) for each in (settings.entries.get("requestPath"), extension.entries["typeHandlerVersion"])
    )
    if path != "/livez":
        yield settings.line, f"is asked for health at {path}; it should be asked at /livez"
    if version != "1.0":
        yield extension.line, f"is asked for health by version {version!r}, which wants a body that no processor sends"
    if "gracePeriod" in settings.entries:
        yield settings.lines["gracePeriod"], "has a gracePeriod in its settings, which only version 2.0 reads"


def fixed_number(file: File) -> Iterator[Finding]:
    """As many replicas at most as at least: a fleet rebalances by itself, and a replica's start costs seconds."""
    for each in _made(file, "Microsoft.App/containerApps"):
        scale = _at(each.body, ("properties", "template", "scale"))
        least, most = (_as_text(_at(scale, (name,))) for name in ("minReplicas", "maxReplicas"))
        if least is None or least != most:
            yield Finding(
                file.name, each.line, f"{each.name} has from {least} to {most} replicas; the two should be the same"
            )


def memory_by_cores(file: File) -> Iterator[Finding]:
    """Two GiB for each vCPU: Consumption deploys no other ratio."""
    for each in _made(file, "Microsoft.App/containerApps"):
        for inner in _objects(each.body):
            if "cpu" not in inner.entries or "memory" not in inner.entries:
                continue
            cores, memory = _as_text(inner.entries["cpu"]) or "", _as_text(inner.entries["memory"]) or ""
            twice = f"{2 * int(cores)}Gi" if cores.isdecimal() else f"'${{{cores} * 2}}Gi'"
            if memory != twice:
                yield Finding(file.name, inner.line, f"{cores} vCPUs go with {twice} of memory, and not with {memory}")


def stays_after_a_drain(file: File) -> Iterator[Finding]:
    """What starts again whatever exits runs processors that stay after a drain."""
    for each in _made(file, "Microsoft.App/containerApps"):
        for inner in _objects(each.body):
            arguments = inner.entries.get("args")
            if "image" in inner.entries and not _holds(arguments, "--wait-for-upgrade"):
                yield Finding(
                    file.name,
                    inner.line,
                    f"{each.name} runs without --wait-for-upgrade: a drained processor would be started for ever",
                )


def no_secret_in_sight(file: File) -> Iterator[Finding]:
    """No key in an output or in a variable of a container: both are visible to every reader."""
    for output in file.outputs.values():
        if _SECRET.search(_as_text(output.value) or ""):
            yield Finding(file.name, output.line, f"the output {output.name!r} shows a secret")
    for each in file.resources.values():
        for inner in values_in(each.body):
            if isinstance(inner, Expression) and inner.kind == "call_expression" and _SECRET.search(inner.text):
                yield Finding(
                    file.name, inner.line, f"{each.name} fetches a key: {inner.text}. Let an identity in instead"
                )
            elif isinstance(inner, Literal) and isinstance(inner.value, str) and re.search("AccountKey=", inner.value):
                yield Finding(file.name, inner.line, f"{each.name} has a key written in it")


def documented(file: File) -> Iterator[Finding]:
    """Each parameter and each output says what it is for."""
    stated: list[Parameter | Output] = [*file.parameters.values(), *file.outputs.values()]
    for each in stated:
        if not each.described:
            yield Finding(file.name, each.line, f"{each.name!r} has no @description")


def alerts_on_real_metrics(file: File) -> Iterator[Finding]:
    """A metric that does not exist never fires."""
    for each in _made(file, "Microsoft.Insights/metricAlerts"):
        for inner in _objects(each.body):
            if "metricName" not in inner.entries:
                continue
            space, name = (_literal(file, inner.entries.get(key)) for key in ("metricNamespace", "metricName"))
            if name not in METRICS.get(str(space), set()):
                yield Finding(file.name, inner.line, f"{space} has no metric {name!r} that we know of")


def alerts_on_sent_metrics(file: File) -> Iterator[Finding]:
    """What nobody sends fires for ever or never: metrics of processors without a sender, columns without a value."""
    parameters = {name: each.body.entries.get("params") for name, each in file.modules.items()}
    for name, given in parameters.items():
        connection = _at(given, ("insightsConnection",))
        if not isinstance(connection, Expression) or not connection.parts:
            continue
        switch, place = _as_text(connection.parts[0]) or "", _as_text(file.modules[name].condition) or ""
        if place not in (_as_text(file.variables.get(switch)) or ""):
            yield Finding(file.name, connection.line, f"{switch} does not say that {name} is deployed: {place}")
        for other, its in parameters.items():
            if (made := _at(its, ("telemetry",))) is not None and _as_text(made) != switch:
                yield Finding(
                    file.name, made.line, f"{other} makes alerts if {_as_text(made)}, and {name} sends if {switch}"
                )
    bodies = (*file.variables.values(), *(each.body for each in file.resources.values()))
    for query in (each.entries.get("query") for body in bodies for each in _objects(body)):
        if isinstance(query, Literal) and (column := re.search(r"\b(Max|Min)\b", str(query.value))):
            yield Finding(file.name, query.line, f"a gauge is sent without {column[0]}; its value is in Sum")


def flat_names(file: File) -> Iterator[Finding]:
    """No hierarchical namespace: it supports neither versions nor tags, costs more, and nothing here gains by it."""
    for account in _made(file, ACCOUNT):
        yield from _wants(file, account, ("properties", "isHnsEnabled"), {False})


def refers_to_what_is_there(file: File) -> Iterator[Finding]:
    """An app mounts volumes of its own, asks all probes at one port, and has the identity that its variables name."""
    for app in _made(file, "Microsoft.App/containerApps"):
        template = _at(app.body, ("properties", "template"))
        declared = _at(template, ("volumes",))
        volumes = {_literal(file, each.entries.get("name")) for each in _objects(declared)} if declared else set()
        objects = list(_objects(app.body))
        for each in objects:
            if "volumeName" in each.entries and (name := _literal(file, each.entries["volumeName"])) not in volumes:
                yield Finding(file.name, each.line, f"{app.name} mounts {name!r}, and there is no such volume")
        probed = [each.entries["httpGet"] for each in objects if "httpGet" in each.entries]
        ports = {_as_text(_at(each, ("port",))) for each in probed}
        if len(ports) > 1:
            shown = ", ".join(sorted(map(str, ports)))
            yield Finding(file.name, app.line, f"the probes of {app.name} ask at several ports: {shown}")
        if "UserAssigned" not in str(_literal(file, _at(app.body, ("identity", "type")))):
            yield Finding(file.name, app.line, f"{app.name} has no user-assigned identity, so nothing lets it in")
        bodies = (app.body, *file.variables.values())
        names = {_literal(file, each.entries.get("name")) for body in bodies for each in _objects(body)}
        measures = any(_holds(each, "opentelemetry-instrument") for each in values_in(app.body))
        for name in sorted((VARIABLES | TELEMETRY if measures else VARIABLES) - names):
            yield Finding(file.name, app.line, f"{app.name} does not set {name}, which its processors need")


def nothing_that_azure_refuses(file: File) -> Iterator[Finding]:
    """The types do not tell the two kinds of scale sets apart; Azure does (azure-cli#29461)."""
    for each in _made(file, "Microsoft.Compute/virtualMachineScaleSets"):
        properties = each.body.entries.get("properties")
        mode = _literal(file, _at(properties, ("orchestrationMode",)))
        if mode == "Flexible" and (policy := _at(properties, ("spotRestorePolicy",))) is not None:
            yield Finding(file.name, policy.line, f"{each.name} is flexible, so Azure refuses its spotRestorePolicy")


def choices_that_exist(file: File) -> Iterator[Finding]:
    """A default is of its parameter's type and one of its choices, and so is what a parameter is compared with."""
    choices = {
        name: [each.value for each in values_in(parameter.allowed) if isinstance(each, Literal)]
        for name, parameter in file.parameters.items()
        if parameter.allowed is not None
    }
    for name, parameter in file.parameters.items():
        default = parameter.default
        if not isinstance(default, Literal):
            continue
        if not isinstance(default.value, _PYTHON[parameter.type]) or isinstance(default.value, bool) != (
            parameter.type == "bool"
        ):
            yield Finding(file.name, default.line, f"{name!r} is {parameter.type}, and its default {default.value!r}")
        elif name in choices and default.value not in choices[name]:
            yield Finding(file.name, default.line, f"the default {default.value!r} of {name!r} is none of its choices")
    made: list[Resource | Module] = [*file.resources.values(), *file.modules.values()]
    conditions = (each.condition for each in made if each.condition is not None)
    bodies = (*file.variables.values(), *(each.body for each in made), *conditions)
    for body in bodies:
        for each in values_in(body):
            if isinstance(each, Expression) and each.kind == "binary_expression" and len(each.parts) == 2:
                one, other = each.parts
                if not isinstance(one, Expression) or not isinstance(other, Literal) or one.text not in choices:
                    continue
                if other.value not in choices[one.text]:
                    yield Finding(file.name, each.line, f"{one.text!r} is never {other.value!r}")


RULES: tuple[Rule, ...] = (
    no_shared_key,
    no_public_blob,
    encrypted_in_transit,
    nothing_kept_for_ever,
    least_privilege,
    probes_on_real_routes,
    fixed_number,
    memory_by_cores,
    stays_after_a_drain,
    no_secret_in_sight,
    documented,
    alerts_on_real_metrics,
    alerts_on_sent_metrics,
    flat_names,
    refers_to_what_is_there,
    nothing_that_azure_refuses,
    choices_that_exist,
)


def _made(file: File, kind: str) -> Iterator[Resource]:
    return (each for each in file.resources.values() if each.type == kind and not each.existing)


def _at(value: Value | None, path: tuple[str, ...]) -> Value | None:
    for name in path:
        value = value.entries.get(name) if isinstance(value, Object) else None
    return value


def _objects(value: Value) -> Iterator[Object]:
    return (each for each in values_in(value) if isinstance(each, Object))


def _literal(file: File, value: Value | None) -> object:
    """The value itself, or that of the variable or default that it names."""
    if isinstance(value, Expression) and value.kind == "identifier":
        parameter = file.parameters.get(value.text)
        return _literal(file, file.variables.get(value.text, parameter.default if parameter else None))
    return value.value if isinstance(value, Literal) else None


def _as_text(value: Value | None) -> str | None:
    match value:
        case Literal(found):
            return str(found)
        case Expression(_, text):
            return text
    return None


def _holds(value: Value | None, text: str) -> bool:
    return isinstance(value, Items) and any(isinstance(each, Literal) and each.value == text for each in value.items)


def _wants(file: File, resource: Resource, path: tuple[str, ...], allowed: set[object]) -> Iterator[Finding]:
    found = _at(resource.body, path)
    value = _literal(file, found)
    if found is None or value not in allowed:
        line = found.line if found is not None else resource.line
        wanted = " or ".join(_shown(each) for each in sorted(allowed, key=str))
        yield Finding(
            file.name, line, f"{'.'.join(path)} of {resource.name} should be {wanted}, and is {_shown(value)}"
        )


def _shown(value: object) -> str:
    return "not set" if value is None else str(value).lower() if isinstance(value, bool) else repr(value)


def _role(file: File, value: Value | None) -> str:
    """The GUID in `subscriptionResourceId('…/roleDefinitions', 'GUID')`."""
    if isinstance(value, Expression) and value.kind == "identifier" and value.text in file.variables:
        return _role(file, file.variables[value.text])
    if isinstance(value, Expression) and value.parts and isinstance(last := value.parts[-1], Literal):
        return str(last.value)
    return _as_text(value) or ""
