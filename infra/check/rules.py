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
    text_of,
    values_in,
)
from infra.check.types import branches

__all__ = ["METRICS", "ROUTES", "RULES", "check"]

ACCOUNT = "Microsoft.Storage/storageAccounts"
CONTAINER = f"{ACCOUNT}/blobServices/containers"
TABLE = f"{ACCOUNT}/tableServices/tables"
REGISTRY = "Microsoft.ContainerRegistry/registries"
INSIGHTS = "Microsoft.Insights/components"
APP = "Microsoft.App/containerApps"
NAMESPACE = "Microsoft.EventHub/namespaces"
HUB, NETWORK_RULES = f"{NAMESPACE}/eventhubs", f"{NAMESPACE}/networkRuleSets"
MACHINES = "Microsoft.Compute/virtualMachineScaleSets"

#: What a processor answers, at `processor.port`.
ROUTES = {"/livez", "/readyz", "/metrics"}
#: Each role by its GUID.
ROLES = {
    "ba92f5b4-2d11-453d-a403-e96b0029c9fe": "Storage Blob Data Contributor",
    "2a2b9908-6ea1-4ae2-8e65-a410df84e7d1": "Storage Blob Data Reader",
    "0a9a7e1f-b9d0-4cc4-a60d-0319b160aaa3": "Storage Table Data Contributor",
    "76199698-9eea-4c19-bc75-cec21354c6b6": "Storage Table Data Reader",
    "7f951dda-4ed3-4680-a7ca-43fe172d538d": "AcrPull",
    "3913510d-42f4-4e42-8a64-420c390055eb": "Monitoring Metrics Publisher",
    "a638d3c7-ab3a-418d-83e6-5f17a39d4fde": "Azure Event Hubs Data Receiver",
    "2b629674-e913-4c01-ae53-ef4638d8f975": "Azure Event Hubs Data Sender",
}
PLACES = {
    "container": CONTAINER,
    "releases": CONTAINER,
    "table": TABLE,
    "registry": REGISTRY,
    "insights": INSIGHTS,
    "readHubs": HUB,
    "writtenHubs": HUB,
}
#: The roles of each principal, with their scopes, and no other. The processors are an identity, the others groups.
RIGHTS = {
    "processors": {
        ("Storage Blob Data Contributor", "container"),
        ("Storage Table Data Contributor", "table"),
        ("Storage Blob Data Reader", "releases"),
        ("AcrPull", "registry"),
        ("Monitoring Metrics Publisher", "insights"),
        ("Azure Event Hubs Data Receiver", "readHubs"),
        ("Azure Event Hubs Data Sender", "writtenHubs"),
    },
    # Executors need no access to what the job stores.
    "workers": {("Storage Blob Data Reader", "releases")},
    "operators": {("Storage Blob Data Reader", "container"), ("Storage Table Data Contributor", "table")},
    "readers": {("Storage Blob Data Reader", "container"), ("Storage Table Data Reader", "table")},
    "producers": {("streamWriter", "container"), ("Storage Table Data Contributor", "table")},
    # What the job stores includes the state of tasks: they can do what a processor can.
    "maintainers": {("Storage Blob Data Contributor", "container"), ("Storage Table Data Contributor", "table")},
    # What is uploaded there runs as the processors' identity.
    "releasers": {("Storage Blob Data Contributor", "releases")},
}
#: The data actions of a role that the templates define, by its symbolic name. It has no actions: those of a container
#: would let its members delete the container, whatever the condition says of blobs.
OWN_ROLES = {"streamWriter": ("read", "write", "add/action", "delete")}
#: The part of the container in which a principal may change blobs, where its role alone would open all of it.
CONFINED = {("producers", "streamWriter"): "streams/*"}
#: The data actions that change blobs.
CHANGES = ("write", "add/action", "delete", "move/action")
#: The platform metrics that alerts may be on, by their namespace.
METRICS = {
    ACCOUNT: {"Transactions", "Availability", "SuccessE2ELatency", "SuccessServerLatency"},
    NAMESPACE: {"ThrottledRequests", "ServerErrors", "UserErrors", "QuotaExceededErrors", "IncomingMessages"},
    APP: {"RestartCount", "Replicas", "UsageNanoCores", "WorkingSetBytes"},
}
_SECRET = re.compile(
    r"\blist(?:Keys|AccountSas|ServiceSas|Secrets|Credentials)\b|AccountKey=|SharedAccessSignature|(?i:password)"
)
_SUFFIX = re.compile(r"[\w}]\.(?:(?:blob|table|dfs)\.core\.windows\.net|azurecr\.io|vault\.azure\.net)")
#: Without them a processor finds neither its identity nor the account.
VARIABLES = {"AZURE_CLIENT_ID", "AZURE_STORAGE_ACCOUNT_URL"}
#: Without them nothing is sent to Application Insights, or nothing is taken there.
TELEMETRY = {"APPLICATIONINSIGHTS_AUTHENTICATION_STRING", "APPLICATIONINSIGHTS_CONNECTION_STRING"}
#: What has to be set, and to what, by the kind of resource.
SETTINGS: tuple[tuple[str, str, set[object]], ...] = (
    # An identity is the only way in: a key cannot be scoped, and its holder may do everything.
    (ACCOUNT, "properties.allowSharedKeyAccess", {False}),
    (ACCOUNT, "properties.defaultToOAuthAuthentication", {True}),
    (ACCOUNT, "properties.isLocalUserEnabled", {False}),
    (ACCOUNT, "properties.allowBlobPublicAccess", {False}),
    (CONTAINER, "properties.publicAccess", {"None"}),
    (INSIGHTS, "properties.DisableLocalAuth", {True}),
    ("Microsoft.OperationalInsights/workspaces", "properties.features.disableLocalAuth", {True}),
    (MACHINES, "properties.virtualMachineProfile.osProfile.linuxConfiguration.disablePasswordAuthentication", {True}),
    # Nothing leaves for another tenant, and nothing is sent in the clear.
    (ACCOUNT, "properties.allowCrossTenantReplication", {False}),
    (ACCOUNT, "properties.minimumTlsVersion", {"TLS1_2", "TLS1_3"}),
    (ACCOUNT, "properties.supportsHttpsTrafficOnly", {True}),
    # Where an account is private, its other door is shut.
    (
        ACCOUNT,
        "properties.publicNetworkAccess",
        {"privateNetwork && empty(admittedAddresses) ? 'Disabled' : 'Enabled'"},
    ),
    (ACCOUNT, "properties.networkAcls.defaultAction", {"privateNetwork ? 'Deny' : 'Allow'"}),
    # The same of a namespace of hubs. Its rules are one set, called default, and decide over its own switch.
    (NAMESPACE, "properties.disableLocalAuth", {True}),
    (NAMESPACE, "properties.minimumTlsVersion", {"1.2"}),
    (
        NAMESPACE,
        "properties.publicNetworkAccess",
        {"privateNetwork && empty(admittedAddresses) ? 'Disabled' : 'Enabled'"},
    ),
    (NETWORK_RULES, "name", {"default"}),
    (
        NETWORK_RULES,
        "properties.publicNetworkAccess",
        {"privateNetwork && empty(admittedAddresses) ? 'Disabled' : 'Enabled'"},
    ),
    (NETWORK_RULES, "properties.defaultAction", {"privateNetwork ? 'Deny' : 'Allow'"}),
    (NETWORK_RULES, "properties.trustedServiceAccessEnabled", {False}),
    # A compacted hub lacks numbers, and a number that is missing is an error.
    (HUB, "properties.retentionDescription.cleanupPolicy", {"Delete"}),
    # No other kind has tables and append blobs; a hierarchy of names has no versions, costs more, and gains nothing.
    (ACCOUNT, "kind", {"StorageV2"}),
    (ACCOUNT, "properties.isHnsEnabled", {False}),
    # Versions and deleted blobs would be paid for, with every write; a deleted container can come back.
    (f"{ACCOUNT}/blobServices", "properties.isVersioningEnabled", {False}),
    (f"{ACCOUNT}/blobServices", "properties.deleteRetentionPolicy.enabled", {False}),
    (f"{ACCOUNT}/blobServices", "properties.changeFeed.enabled", {False}),
    (f"{ACCOUNT}/blobServices", "properties.containerDeleteRetentionPolicy.enabled", {True}),
    # What is deleted by its owner is no loss; a lock that is misspelt protects nothing. The type data has no locks.
    ("Microsoft.Authorization/locks", "properties.level", {"CanNotDelete"}),
    # One revision at a time: two would be two fleets of the wanted size each. What is asked to end has 60 s.
    (APP, "properties.configuration.activeRevisionsMode", {"Single"}),
    (APP, "properties.template.terminationGracePeriodSeconds", {60}),
    # A NAT gateway takes addresses of the kind Standard only, and these never change.
    ("Microsoft.Network/publicIPAddresses", "properties.publicIPAllocationMethod", {"Static"}),
    ("Microsoft.Network/publicIPAddresses", "sku.name", {"Standard"}),
    # Azure refuses zones without a subnet.
    ("Microsoft.App/managedEnvironments", "properties.zoneRedundant", {"zoneRedundant && !empty(subnetId)"}),
    # The other ways want the workspace's key.
    ("Microsoft.App/managedEnvironments", "properties.appLogsConfiguration.destination", {"azure-monitor"}),
    # Only a flexible scale set mixes spot machines with others, and only base64 reaches cloud-init.
    (MACHINES, "properties.orchestrationMode", {"Flexible"}),
    (MACHINES, "properties.virtualMachineProfile.osProfile.customData", {"base64(cloudInit)"}),
    # The types know no range; Azure does.
    ("Microsoft.Insights/metricAlerts", "properties.severity", {0, 1, 2, 3, 4}),
)
_PYTHON: dict[str, type] = {"string": str, "int": int, "bool": bool, "array": list, "object": dict}
_MOST_FAILURES = 10  # of a probe, on Container Apps
_START_S = 120
#: Outputs and variables whose value another property of the same type could be confused with, and what it ends in.
READ = {
    "accountUrl": ".blob",
    "principalId": ".principalId",
    "clientId": ".clientId",
    "AZURE_CLIENT_ID": "clientId",
    "AZURE_STORAGE_ACCOUNT_URL": "accountUrl",
    "hubHost": "serviceBusEndpoint, '/')[2], ':')[0]",
    "EVENTHUBS_NAMESPACE": "hubHost",
}
#: What hubs have below `properties`: the type data of this project does not hold them, and a misspelt word is no error
#: of Azure's either.
OF_HUBS = {
    NAMESPACE: {"disableLocalAuth", "minimumTlsVersion", "publicNetworkAccess"},
    NETWORK_RULES: {"publicNetworkAccess", "defaultAction", "trustedServiceAccessEnabled", "ipRules"},
    HUB: {"partitionCount", "retentionDescription"},
}

Rule = Callable[[File], Iterator[Finding]]


def check(files: Mapping[str, File]) -> Iterator[Finding]:
    """All rules over all templates."""
    for file in files.values():
        for rule in RULES:
            yield from rule(file)


def settings(file: File) -> Iterator[Finding]:
    """What SETTINGS demands, wherever such a resource is made."""
    for kind, path, allowed in SETTINGS:
        for each in _made(file, kind):
            yield from _wants(file, each, tuple(path.split(".")), allowed)


def no_lifecycle(file: File) -> Iterator[Finding]:
    """Tiers are for block blobs, and only the fleet knows which piece of a log is needed no more."""
    if "managementPolicies" in "".join(each.type for each in file.resources.values()):
        yield Finding(file.name, 1, "a lifecycle rule that deletes a piece of a log loses state; take it out")


def least_privilege(file: File) -> Iterator[Finding]:
    """Each role of RIGHTS at the container, the table, the registry or the component that it is for, and no other."""
    held: set[tuple[str, str, str]] = set()
    names: set[str] = set()
    for each in _made(file, "Microsoft.Authorization/roleAssignments"):
        written = _at(each.body, ("properties", "roleDefinitionId"))
        role, scope = _role(file, written), each.body.entries.get("scope")
        who, kind = (text_of(_at(each.body, ("properties", name))) for name in ("principalId", "principalType"))
        where = file.resources.get(scope.text.removesuffix("[index]")) if isinstance(scope, Expression) else None
        if where is None:
            yield Finding(file.name, each.line, f"{each.name} has no scope of its own, so {role} is for the group")
        elif (role, where.name) not in RIGHTS.get(who, ()) or where.type != PLACES[where.name]:
            yield Finding(
                file.name,
                each.line,
                f"{each.name} assigns {role!r} at {where.type} to {who}, which RIGHTS does not list",
            )
        else:
            held.add((who, role, where.name))
        if kind != (wanted := "ServicePrincipal" if who in ("processors", "workers") else "Group"):
            yield Finding(file.name, each.line, f"{each.name}: {who} should be a {wanted}, and is a {kind}")
        if who != "processors" and text_of(each.condition) != f"!empty({who})":
            yield Finding(file.name, each.line, f"{each.name} should be made if there are {who}: !empty({who})")
        for lack in _of_condition(file, each, who, role):
            yield Finding(file.name, each.line, f"{each.name} {lack}")
        name = text_of(each.body.entries.get("name"))
        if name in names or not name.endswith(f", {who}, {text_of(written)})"):
            yield Finding(
                file.name, each.line, f"{each.name} needs a name of its own: guid(its scope, {who}, its role)"
            )
        names.add(name)
    for who, rights in RIGHTS.items() if names else ():
        for role, place in sorted(rights - {(role, place) for principal, role, place in held if principal == who}):
            yield Finding(file.name, 1, f"the {who} lack {role} at the {place}")


def _of_condition(file: File, assignment: Resource, who: str, role: str) -> Iterator[str]:
    """Where CONFINED names a part of the container, every action that changes a blob is held to it."""
    condition, version = (
        _literal(file, _at(assignment.body, ("properties", name))) for name in ("condition", "conditionVersion")
    )
    part = CONFINED.get((who, role))
    if part is None:
        if condition is not None:
            yield "has a condition that CONFINED does not list"
        return
    if not isinstance(condition, str):
        yield f"has no condition, so {who} may write the whole container and not only {part}"
        return
    blobs = f"{CONTAINER}/blobs"
    denied, _, allowed = " ".join(condition.split()).partition(" OR ")
    for action in CHANGES:
        if f"!(ActionMatches{{'{blobs}/{action}'}})" not in denied:
            yield f"has a condition that leaves {action} open outside of {part}"
    if allowed.strip("() ") != f"@Resource[{blobs}:path] StringLike '{part}'":
        yield f"has a condition that should allow the path {part} and nothing else"
    if version != "2.0":
        yield "has a condition without conditionVersion '2.0', which Azure refuses"


def own_roles(file: File) -> Iterator[Finding]:
    """A role of our own has the data actions of OWN_ROLES, and no action."""
    for each in _made(file, "Microsoft.Authorization/roleDefinitions"):
        wanted = {f"{CONTAINER}/blobs/{action}" for action in OWN_ROLES.get(each.name, ())}
        granted = [entry for entry in _objects(each.body) if "dataActions" in entry.entries]
        for entry in granted:
            has = entry.entries["dataActions"]
            found = {item.value for item in has.items if isinstance(item, Literal)} if isinstance(has, Items) else set()
            for action in sorted(found ^ wanted, key=str):
                verb = "has" if action in found else "lacks"
                yield Finding(file.name, entry.line, f"{each.name} {verb} the data action {action}")
            if "actions" in entry.entries:
                yield Finding(file.name, entry.line, f"{each.name} should have no actions: they reach the container")
        if len(granted) != 1:
            yield Finding(file.name, each.line, f"{each.name} should have one set of permissions")


def children_of_their_parents(file: File) -> Iterator[Finding]:
    """A container is in a blob service, which is in an account: each says in which."""
    for each in file.resources.values():
        parent = re.match(r"\w*", text_of(each.body.entries.get("parent")))
        found = file.resources.get(parent[0]) if parent is not None else None
        wanted = each.type.rpartition("/")[0]
        if "/" in wanted and (found is None or found.type != wanted):
            yield Finding(file.name, each.line, f"the parent of {each.name} should be of type {wanted}")


def private_for_both(file: File) -> Iterator[Finding]:
    """A private endpoint is for blobs or for rows, and a fleet needs both; or it is for a namespace of hubs."""
    for endpoint in _made(file, "Microsoft.Network/privateEndpoints"):
        written = [each.entries["groupIds"] for each in _objects(endpoint.body) if "groupIds" in each.entries]
        drawn = [each for ids in written for item in values_in(ids) for each in branches(item, file)]
        is_of_hubs = "hub" in "".join(
            text_of(each.entries.get("privateLinkServiceId")) for each in _objects(endpoint.body)
        )
        lacking = ({"namespace"} if is_of_hubs else {"blob", "table"}) - {
            each.value for each in drawn if isinstance(each, Literal)
        }
        if lacking:
            said = f"{endpoint.name} are not for {' and '.join(sorted(lacking))}"
            yield Finding(file.name, endpoint.line, said)


def hubs_as_azure_knows_them(file: File) -> Iterator[Finding]:
    """The properties of OF_HUBS, all of them; and a consumer group in each hub that is read."""
    for kind, wanted in OF_HUBS.items():
        for each in _made(file, kind):
            properties = each.body.entries.get("properties")
            found = properties.entries.keys() if isinstance(properties, Object) else set()
            for name in sorted(found ^ wanted):
                verb = "has" if name in found else "lacks"
                yield Finding(file.name, each.line, f"{each.name} {verb} the property {name!r}")
    for each in _made(file, f"{HUB}/consumergroups"):
        if (parent := text_of(each.body.entries.get("parent"))) != "read[index]":
            yield Finding(file.name, each.line, f"{each.name} are for the hubs that are read, and not for {parent}")


def subnets_that_exist(file: File) -> Iterator[Finding]:
    """A subnet is named as a text, which no type looks into."""
    made = [each for network in _made(file, "Microsoft.Network/virtualNetworks") for each in _objects(network.body)]
    known = {name.value for each in made if isinstance(name := each.entries.get("name"), Literal)}
    for value in (each for body in file.bodies() for each in values_in(body)):
        named = re.search(r"/subnets/([\w-]+)", text_of(value)) if isinstance(value, Expression) else None
        if named is not None and named[1] not in known:
            yield Finding(file.name, value.line, f"there is no subnet {named[1]!r}")


def probes_on_real_routes(file: File) -> Iterator[Finding]:
    """Start, life and readiness are asked for, where a processor answers; life never asks for readiness."""
    for app in _made(file, APP):
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
            failures, period = (
                _literal(file, probe.entries.get(name)) for name in ("failureThreshold", "periodSeconds")
            )
            if kind == "Startup" and isinstance(failures, int) and failures * int(str(period)) < _START_S:
                yield Finding(
                    file.name, probe.line, f"a start has {failures} x {period} s; Java needs up to {_START_S} s"
                )
            if not isinstance(failures, int) or failures > _MOST_FAILURES:
                yield Finding(
                    file.name,
                    probe.line,
                    f"failureThreshold is {failures}; Container Apps take {_MOST_FAILURES} at most",
                )
    for each in _made(file, MACHINES):
        for inner in _objects(each.body):
            settings = inner.entries.get("settings")
            if _literal(file, inner.entries.get("type")) == "ApplicationHealthLinux" and isinstance(settings, Object):
                for line, text in _of_health_extension(file, inner, settings):
                    yield Finding(file.name, line, f"{each.name} {text}")


def _of_health_extension(file: File, extension: Object, settings: Object) -> Iterator[tuple[int, str]]:
    """Version 1.0 judges by the status alone; 2.0 wants `ApplicationHealthState` in the body, which /livez has not."""
    path, version = settings.entries.get("requestPath"), _literal(file, extension.entries["typeHandlerVersion"])
    paths = [_literal(file, each) for each in branches(path, file)] if path is not None else [None]
    if paths not in (["/livez"], ["/livez", "/decommission"]):  # of a processor, or of a worker
        yield settings.line, f"is asked for health at {paths[0]}; it should be asked at /livez"
    if version != "1.0":
        yield extension.line, f"is asked for health by version {version!r}, which wants a body that no processor sends"
    if "gracePeriod" in settings.entries:
        yield settings.lines["gracePeriod"], "has a gracePeriod in its settings, which only version 2.0 reads"


def fixed_number(file: File) -> Iterator[Finding]:
    """As many replicas at most as at least: a fleet rebalances by itself, and a replica's start costs seconds."""
    for each in _made(file, APP):
        scale = _at(each.body, ("properties", "template", "scale"))
        least, most = (text_of(_at(scale, (name,))) for name in ("minReplicas", "maxReplicas"))
        if not least or least != most:
            yield Finding(
                file.name, each.line, f"{each.name} has from {least} to {most} replicas; the two should be the same"
            )


def memory_by_cores(file: File) -> Iterator[Finding]:
    """Two GiB for each vCPU: Consumption deploys no other ratio."""
    for each in _made(file, APP):
        for inner in _objects(each.body):
            if "cpu" not in inner.entries or "memory" not in inner.entries:
                continue
            cores, memory = text_of(inner.entries["cpu"]), text_of(inner.entries["memory"])
            twice = f"{2 * int(cores)}Gi" if cores.isdecimal() else f"'${{{cores} * 2}}Gi'"
            if memory != twice:
                yield Finding(file.name, inner.line, f"{cores} vCPUs go with {twice} of memory, and not with {memory}")


def stays_after_a_drain(file: File) -> Iterator[Finding]:
    """What starts again whatever exits runs processors that stay after a drain."""
    for each in _made(file, APP):
        for inner in _objects(each.body):
            arguments = inner.entries.get("args")
            if "image" in inner.entries and not _holds(arguments, "--wait-for-upgrade"):
                yield Finding(
                    file.name,
                    inner.line,
                    f"{each.name} runs without --wait-for-upgrade: a drained processor would be started forever",
                )


def no_secret_in_sight(file: File) -> Iterator[Finding]:
    """No key in an output or in a variable of a container: both are visible to every reader."""
    for output in file.outputs.values():
        if _SECRET.search(text_of(output.value)):
            yield Finding(file.name, output.line, f"the output {output.name!r} shows a secret")
    for each in file.resources.values():
        for inner in values_in(each.body):
            if isinstance(inner, Expression) and inner.kind == "call_expression" and _SECRET.search(inner.text):
                yield Finding(
                    file.name, inner.line, f"{each.name} fetches a key: {inner.text}. Let an identity in instead"
                )
            elif isinstance(inner, Literal) and isinstance(inner.value, str) and re.search("AccountKey=", inner.value):
                yield Finding(file.name, inner.line, f"{each.name} has a key written in it")


def the_right_one(file: File) -> Iterator[Finding]:
    """Ids and addresses are all texts: what is called by a name of READ is read from where that says."""
    named = [(each.name, each.value) for each in file.outputs.values()]
    pairs = [each.entries for body in file.bodies() for each in _objects(body)]
    named += [(str(_literal(file, each["name"])), each["value"]) for each in pairs if {"name", "value"} <= each.keys()]
    for name, value in named:
        if name in READ and not text_of(value).endswith((READ[name], name)):
            yield Finding(file.name, value.line, f"{name} is {text_of(value)}; it should end in {READ[name]}")
    for module in file.modules.values():
        who = _at(module.body, ("params", "processors"))
        if module.path == "roles.bicep" and not text_of(who).endswith(".principalId"):
            yield Finding(file.name, module.line, f"roles are assigned to a principalId, and not to {text_of(who)}")


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
    """What nobody sends fires forever or never: metrics of processors without a sender, columns without a value."""
    parameters = {name: each.body.entries.get("params") for name, each in file.modules.items()}
    for name, given in parameters.items():
        connection = _at(given, ("insightsConnection",))
        if not isinstance(connection, Expression) or not connection.parts:
            continue
        switch, place = text_of(connection.parts[0]), text_of(file.modules[name].condition)
        if place not in (text_of(file.variables.get(switch))):
            yield Finding(file.name, connection.line, f"{switch} does not say that {name} is deployed: {place}")
        for other, its in parameters.items():
            if (made := _at(its, ("telemetry",))) is not None and text_of(made) != switch:
                yield Finding(
                    file.name, made.line, f"{other} makes alerts if {text_of(made)}, and {name} sends if {switch}"
                )
    bodies = (*file.variables.values(), *(each.body for each in file.resources.values()))
    for query in (each.entries.get("query") for body in bodies for each in _objects(body)):
        if isinstance(query, Literal) and (column := re.search(r"\b(Max|Min)\b", str(query.value))):
            yield Finding(file.name, query.line, f"a gauge is sent without {column[0]}; its value is in Sum")


def refers_to_what_is_there(file: File) -> Iterator[Finding]:
    """An app mounts volumes of its own, asks all probes at one port, and has the identity that its variables name."""
    for app in _made(file, APP):
        template = _at(app.body, ("properties", "template"))
        declared = _at(template, ("volumes",))
        volumes = {_literal(file, each.entries.get("name")) for each in _objects(declared)} if declared else set()
        objects = list(_objects(app.body))
        for each in objects:
            if "volumeName" in each.entries and (name := _literal(file, each.entries["volumeName"])) not in volumes:
                yield Finding(file.name, each.line, f"{app.name} mounts {name!r}, and there is no such volume")
        probed = [each.entries["httpGet"] for each in objects if "httpGet" in each.entries]
        ports = {text_of(_at(each, ("port",))) for each in probed}
        if len(ports) > 1:
            shown = ", ".join(sorted(map(str, ports)))
            yield Finding(file.name, app.line, f"the probes of {app.name} ask at several ports: {shown}")
        profiles = {
            _literal(file, name)
            for home in _made(file, "Microsoft.App/managedEnvironments")
            for each in _objects(_at(home.body, ("properties", "workloadProfiles")) or home.body)
            if (name := each.entries.get("name")) is not None
        }
        if (profile := _literal(file, _at(app.body, ("properties", "workloadProfileName")))) not in profiles:
            yield Finding(file.name, app.line, f"{app.name} is of the profile {profile!r}, which its environment lacks")
        for each in objects:
            if "server" in each.entries and (by := text_of(each.entries.get("identity"))) != "identityId":
                yield Finding(file.name, each.line, f"{app.name} pulls its image by {by}; its identity is identityId")
        if "UserAssigned" not in str(_literal(file, _at(app.body, ("identity", "type")))):
            yield Finding(file.name, app.line, f"{app.name} has no user-assigned identity, so nothing lets it in")
        bodies = (app.body, *file.variables.values())
        names = {_literal(file, each.entries.get("name")) for body in bodies for each in _objects(body)}
        for name in sorted((VARIABLES | TELEMETRY) - names):
            yield Finding(file.name, app.line, f"{app.name} does not set {name}, which its processors need")


def nothing_that_azure_refuses(file: File) -> Iterator[Finding]:
    """The types do not tell the two kinds of scale sets apart; Azure does (azure-cli#29461)."""
    for each in _made(file, MACHINES):
        properties = each.body.entries.get("properties")
        mode = _literal(file, _at(properties, ("orchestrationMode",)))
        if mode == "Flexible" and (policy := _at(properties, ("spotRestorePolicy",))) is not None:
            yield Finding(file.name, policy.line, f"{each.name} is flexible, so Azure refuses its spotRestorePolicy")


def addresses_of_any_cloud(file: File) -> Iterator[Finding]:
    """Azure Government and Azure China have other suffixes: environment() knows them."""
    for value in (each for body in file.bodies() for each in values_in(body)):
        text = text_of(value) if isinstance(value, Literal) or getattr(value, "kind", "") == "string" else ""
        if (found := _SUFFIX.search(text)) is not None:
            yield Finding(file.name, value.line, f"{found[0]} is an address of one cloud; take environment().suffixes")


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
    settings,
    no_lifecycle,
    least_privilege,
    own_roles,
    children_of_their_parents,
    private_for_both,
    hubs_as_azure_knows_them,
    subnets_that_exist,
    the_right_one,
    probes_on_real_routes,
    fixed_number,
    memory_by_cores,
    stays_after_a_drain,
    no_secret_in_sight,
    documented,
    alerts_on_real_metrics,
    alerts_on_sent_metrics,
    refers_to_what_is_there,
    nothing_that_azure_refuses,
    addresses_of_any_cloud,
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


def _holds(value: Value | None, text: str) -> bool:
    return isinstance(value, Items) and any(isinstance(each, Literal) and each.value == text for each in value.items)


def _wants(file: File, resource: Resource, path: tuple[str, ...], allowed: set[object]) -> Iterator[Finding]:
    found = _at(resource.body, path)
    value = _literal(file, found)
    if value is None and isinstance(found, Expression):
        value = found.text
    if found is None or value not in allowed:
        line = found.line if found is not None else resource.line
        wanted = " or ".join(_shown(each) for each in sorted(allowed, key=str))
        yield Finding(
            file.name, line, f"{'.'.join(path)} of {resource.name} should be {wanted}, and is {_shown(value)}"
        )


def _shown(value: object) -> str:
    return "not set" if value is None else str(value).lower() if isinstance(value, bool) else repr(value)


def _role(file: File, value: Value | None) -> str:
    """The role whose GUID is in `subscriptionResourceId('Microsoft.Authorization/roleDefinitions', 'GUID')`."""
    if isinstance(value, Expression) and value.kind == "identifier" and value.text in file.variables:
        return _role(file, file.variables[value.text])
    own = file.resources.get(text_of(value).removesuffix(".id"))
    if own is not None and own.type == "Microsoft.Authorization/roleDefinitions":
        return own.name
    found = re.fullmatch(r"subscriptionResourceId\('Microsoft.Authorization/roleDefinitions', '(.*)'\)", text_of(value))
    return ROLES.get(found[1], found[1]) if found is not None else text_of(value)
