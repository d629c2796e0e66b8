"""The checker of infra/ sees the mistakes that people make: each line of a table is one, and what is said of it."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from infra.check import __main__ as check
from infra.check import fleet, kql, rules
from infra.check.bicep import Finding, parse
from infra.check.types import Types
from samza_azure.host import endpoint

SAMPLE = """
@description('Where it is.')
param location string = resourceGroup().location

@description('How long.')
param days int = 7

var names = [
  'logs'
]

resource store 'Sample.Store/stores@2025-01-01' = {
  name: 'flights'
  location: location
  kind: 'Plain'
  properties: {
    public: false
    days: days
    retention: 30
    tier: 'Hot'
    names: names
    rule: {
      type: 'ByAge'
      age: 3
    }
    labels: {
      any: 'thing'
    }
  }
}

@description('Its id.')
output id string = store.id
"""

TEXT, NUMBER, TRUTH = {"$type": "StringType"}, {"$type": "IntegerType"}, {"$type": "BooleanType"}
REQUIRED, READ_ONLY = 1, 2


@pytest.fixture
def types(tmp_path: Path) -> Types:
    """A resource with one property of each kind, as Bicep's data would describe it."""
    every: list[dict[str, Any]] = []

    def add(kind: dict[str, Any]) -> dict[str, int]:
        every.append(kind)
        return {"$ref": len(every) - 1}

    def choice(*values: str, others: bool = False) -> dict[str, int]:
        elements = [add({"$type": "StringLiteralType", "value": value}) for value in values]
        return add({"$type": "UnionType", "elements": elements + ([add(TEXT)] if others else [])})

    def thing(**properties: tuple[dict[str, int], int]) -> dict[str, Any]:
        described = {name: {"type": kind, "flags": flags} for name, (kind, flags) in properties.items()}
        return {"$type": "ObjectType", "name": "thing", "properties": described}

    by_age = add(thing(type=(choice("ByAge"), REQUIRED), age=(add(NUMBER), REQUIRED)))
    rule = {
        "$type": "DiscriminatedObjectType",
        "discriminator": "type",
        "baseProperties": {},
        "elements": {"ByAge": by_age},
    }
    properties = thing(
        public=(add(TRUTH), 0),
        days=(add(NUMBER), 0),
        retention=(add({**NUMBER, "minValue": 1, "maxValue": 365}), 0),
        tier=(choice("Hot", "Cool"), 0),
        names=(add({"$type": "ArrayType", "itemType": add(TEXT)}), 0),
        rule=(add(rule), 0),
        labels=(add({**thing(), "additionalProperties": add(TEXT)}), 0),
        state=(add(TEXT), READ_ONLY),
    )
    body = thing(
        name=(add({**TEXT, "minLength": 3, "maxLength": 24}), REQUIRED),
        location=(add(TEXT), REQUIRED),
        kind=(choice("Plain", "Layered", others=True), REQUIRED),
        properties=(add(properties), 0),
    )
    resource = add({"$type": "ResourceType", "name": "Sample.Store/stores@2025-01-01", "body": add(body)})
    path = tmp_path / "types.json"
    versions = {"Sample.Store/stores": ["2024-01-01", "2025-01-01"]}
    name = "Sample.Store/stores@2025-01-01"
    path.write_text(
        json.dumps({"source": "sample", "types": every, "resources": {name: resource["$ref"]}, "versions": versions})
    )
    return Types(path)


OF_A_TEMPLATE = [
    ("misspelt property", "public: false", "publik: false", "has no property 'publik'; did you mean 'public'?"),
    ("unknown property", "public: false", "colour: false", "has no property 'colour'"),
    ("missing property", "  kind: 'Plain'\n", "", "needs the property 'kind'"),
    ("read-only property", "public: false", "state: 'Good'", "state is read-only"),
    ("wrong choice", "tier: 'Hot'", "tier: 'Warm'", "tier is 'Warm'; it takes 'Hot', 'Cool'"),
    ("misspelt choice of an open list", "kind: 'Plain'", "kind: 'Plan'", "kind is 'Plan'; it takes 'Plain', 'Layered'"),
    ("text for a truth", "public: false", "public: 'false'", "public should be a bool, and is 'false'"),
    ("truth for a number", "days: days", "days: true", "days should be a whole number, and is true"),
    ("number for a text", "location: location", "location: 7", "location should be a string, and is 7"),
    ("parameter of another type", "days: days", "days: location", "days should be a whole number, and is a string"),
    ("one item for a list", "names: names", "names: location", "names should be a list, and is a string"),
    ("number in a list of texts", "  'logs'\n", "  7\n", "names should be a string, and is 7"),
    ("out of range", "retention: 30", "retention: 500", "retention is 500; it goes from 1 to 365"),
    ("too short", "name: 'flights'", "name: 'ab'", "name has 2 letters; it takes 3 to 24"),
    ("kind that is left out", "      type: 'ByAge'\n", "", "rule needs the property 'type', which says what it is"),
    ("kind that is none", "type: 'ByAge'", "type: 'ByName'", "rule.type is 'ByName'; it takes 'ByAge'"),
    ("property of a kind", "      age: 3\n", "", "rule needs the property 'age'"),
    ("wrong label", "any: 'thing'", "any: 7", "labels.any should be a string, and is 7"),
    ("misspelt resource", "Sample.Store/stores@", "Sample.Store/store@", "did you mean 'Sample.Store/stores'?"),
    ("version that is none", "@2025-01-01", "@2025-01-02", "has no version '2025-01-02'; the newest is 2025-01-01"),
    ("version that we lack", "@2025-01-01", "@2024-01-01", "is in the type data, but not its version 2024-01-01"),
    ("undeclared", "days: days", "days: day", "'day' is not declared; did you mean 'days'?"),
    ("unused", "days: days", "days: 7", "'days' is declared and never used"),
    ("twice", "public: false", "tier: 'Cool'\n    public: false", "'tier' stands here twice"),
    ("not closed", "output id string = store.id", "output id string = {", "this cannot be read"),
    (
        "something else of an open list",
        "kind: 'Plain'",
        "kind: 'Fancy'",
        "kind is 'Fancy'; it takes 'Plain', 'Layered'",
    ),
    ("a resource for a text", "location: location", "location: store", "location should be a string, and is an object"),
    ("property that is read and not there", "= store.id", "= store.properties.dys", "has no property 'properties.dys'"),
    ("id of what has none", "= store.id", "= store.ids", "store has no property 'ids'"),
    ("decorator that is none", "@description('How long.')", "@describe('How long.')", "no decorator 'describe'"),
    ("one argument too few", "resourceGroup().location", "take('a')", "take takes 2 arguments, and gets 1"),
    ("newer syntax", "= store.id", "= store.?id", "'.?' is newer than the dialect"),
]


def test_the_probes_of_the_templates_are_paths_that_a_processor_serves() -> None:
    """The checker runs where samza_azure's own packages are not installed, so it has a copy."""
    assert set(endpoint.ROUTES) == rules.ROUTES


def test_an_action_is_named_by_its_commit() -> None:
    """A tag can be moved to other code."""
    text = (check.HERE.parent / ".github" / "workflows" / "check.yml").read_text()
    used = re.findall(r"uses: (\S+)", text)
    assert used and [each for each in used if not re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", each)] == []


def test_the_sample_is_clean(types: Types) -> None:
    file = parse(Path("sample.bicep"), SAMPLE)
    assert list(types.check(file, {})) == []
    assert file.findings == []


@pytest.mark.parametrize(
    ("old", "new", "said"), [each[1:] for each in OF_A_TEMPLATE], ids=[each[0] for each in OF_A_TEMPLATE]
)
def test_a_mistake_in_a_template_is_seen(types: Types, old: str, new: str, said: str) -> None:
    assert old in SAMPLE
    file = parse(Path("sample.bicep"), SAMPLE.replace(old, new))
    list(types.check(file, {}))
    assert [each for each in file.findings if said in each.text], file.findings


OF_THE_FLEET = [
    (
        "a key opens the account",
        "storage.bicep",
        "allowSharedKeyAccess: false",
        "allowSharedKeyAccess: true",
        "should be false, and is true",
    ),
    (
        "anybody reads",
        "storage.bicep",
        "allowBlobPublicAccess: false",
        "allowBlobPublicAccess: true",
        "should be false, and is true",
    ),
    (
        "a public container",
        "storage.bicep",
        "publicAccess: 'None'",
        "publicAccess: 'Blob'",
        "publicAccess of container should be 'None'",
    ),
    ("old TLS", "storage.bicep", "TLS1_2", "TLS1_0", "should be 'TLS1_2' or 'TLS1_3', and is 'TLS1_0'"),
    (
        "TLS left out",
        "storage.bicep",
        "    minimumTlsVersion: 'TLS1_2'\n",
        "",
        "minimumTlsVersion of account should be",
    ),
    (
        "versions forever",
        "storage.bicep",
        "isVersioningEnabled: false",
        "isVersioningEnabled: true",
        "isVersioningEnabled of blobs should be false",
    ),
    (
        "soft delete",
        "storage.bicep",
        "deleteRetentionPolicy: {\n      enabled: false",
        "deleteRetentionPolicy: {\n      enabled: true",
        "deleteRetentionPolicy.enabled of blobs should be false",
    ),
    ("a wrong role", "roles.bicep", "ba92f5b4-2d11", "ba92f5b4-2d12", "assigns 'ba92f5b4-2d12"),
    (
        "a role at the account",
        "roles.bicep",
        "scope: container\n  name: guid(container.id, processors",
        "scope: account\n  name: guid(container.id, processors",
        "at Microsoft.Storage/storageAccounts to processors, which RIGHTS does not list",
    ),
    (
        "a role without a scope",
        "roles.bicep",
        "  scope: table\n  name: guid(table.id, processors",
        "  name: guid(table.id, processors",
        "has no scope of its own",
    ),
    (
        "readers for processors",
        "roles.bicep",
        "roleDefinitionId: tableDataContributor\n    principalId: processors",
        "roleDefinitionId: tableDataReader\n    principalId: processors",
        "the processors lack Storage Table Data Contributor at the table",
    ),
    (
        "producers who may only look",
        "roles.bicep",
        "roleDefinitionId: streamWriter.id\n    principalId: producers",
        "roleDefinitionId: blobDataReader\n    principalId: producers",
        "the producers lack streamWriter at the container",
    ),
    (
        "anybody's software",
        "roles.bicep",
        "    principalId: releasers\n",
        "    principalId: operators\n",
        "'Storage Blob Data Contributor' at Microsoft.Storage/storageAccounts/blobServices/containers to operators",
    ),
    (
        "a route that is none",
        "container-apps.bicep",
        "path: '/livez'",
        "path: '/health'",
        "asks for /health, which no processor answers",
    ),
    (
        "health in words that no processor says",
        "scale-set.bicep",
        "typeHandlerVersion: '1.0'",
        "typeHandlerVersion: '2.0'",
        "machines is asked for health by version '2.0', which wants a body that no processor sends",
    ),
    (
        "a time that only the other version knows",
        "scale-set.bicep",
        "numberOfProbes: 6\n",
        "numberOfProbes: 6\n                gracePeriod: 900\n",
        "which only version 2.0 reads",
    ),
    (
        "a machine's health at a route that is none",
        "scale-set.bicep",
        "'/livez'",
        "'/health'",
        "asked for health at /health",
    ),
    ("life by readiness", "container-apps.bicep", "path: '/livez'", "path: '/readyz'", "it should ask for /livez"),
    ("a probe left out", "container-apps.bicep", "type: 'Readiness'", "type: 'Liveness'", "no probe of type Readiness"),
    (
        "more failures than it takes",
        "container-apps.bicep",
        "failureThreshold: 10",
        "failureThreshold: 60",
        "Container Apps take 10 at most",
    ),
    (
        "a number that floats",
        "container-apps.bicep",
        "maxReplicas: processors",
        "maxReplicas: 30",
        "the two should be the same",
    ),
    ("memory of another ratio", "container-apps.bicep", "${cores * 2}Gi", "${cores * 7}Gi", "vCPUs go with"),
    (
        "started forever",
        "container-apps.bicep",
        "            '--wait-for-upgrade'\n",
        "",
        "without --wait-for-upgrade",
    ),
    (
        "a key handed out",
        "storage.bicep",
        "string = account.id",
        "string = account.listKeys().keys[0].value",
        "shows a secret",
    ),
    (
        "a parameter without a word",
        "budget.bicep",
        "@description('Who is told.')\n",
        "",
        "'actionGroupId' has no @description",
    ),
    ("a metric that is none", "observe.bicep", "'Availability'", "'Availabilty'", "has no metric 'Availabilty'"),
    (
        "a column without a value",
        "observe.bicep",
        '"samza_azure.leader" and Sum >= 1',
        '"samza_azure.leader" and Max >= 1',
        "a gauge is sent without Max; its value is in Sum",
    ),
    (
        "alerts on metrics that nobody sends",
        "main.bicep",
        "    telemetry: sends\n",
        "    telemetry: telemetry\n",
        "observe makes alerts if telemetry, and apps sends if sends",
    ),
    (
        "metrics from where nobody runs",
        "main.bicep",
        "var sends = telemetry && compute == 'container-apps'",
        "var sends = telemetry",
        "sends does not say that apps is deployed: compute == 'container-apps'",
    ),
    (
        "metrics that nobody signs",
        "container-apps.bicep",
        "'APPLICATIONINSIGHTS_AUTHENTICATION_STRING'",
        "'APPLICATIONINSIGHTS_AUTHENTICATION'",
        "app does not set APPLICATIONINSIGHTS_AUTHENTICATION_STRING",
    ),
    (
        "a policy that the types have and Azure refuses",
        "scale-set.bicep",
        "    priorityMixPolicy: {\n",
        "    spotRestorePolicy: {\n      enabled: true\n    }\n    priorityMixPolicy: {\n",
        "machines is flexible, so Azure refuses its spotRestorePolicy",
    ),
    (
        "a module that is none",
        "main.bicep",
        "module roles 'roles.bicep'",
        "module roles 'role.bicep'",
        "there is no template 'role.bicep'",
    ),
    (
        "a parameter that the module lacks",
        "main.bicep",
        "    jobName: name\n",
        "    jobname: name\n",
        "has no parameter 'jobname'; did you mean 'jobName'?",
    ),
    ("a parameter left out", "main.bicep", "    start: budgetStart\n", "", "budget.bicep needs the parameter 'start'"),
    (
        "a parameter of another type",
        "main.bicep",
        "    emails: emails\n",
        "    emails: name\n",
        "wants 'emails' to be of type array, and gets string",
    ),
    (
        "a choice that the module lacks",
        "main.bicep",
        "    sku: storageSku\n",
        "    sku: 'Premium_LRS'\n",
        "as 'sku', and gets 'Premium_LRS'",
    ),
    (
        "an output that is none",
        "main.bicep",
        "identity.outputs.principalId",
        "identity.outputs.principal",
        "has no output 'principal'; did you mean 'principalId'?",
    ),
    (
        "an output used as a number",
        "main.bicep",
        "    processors: processors\n    cores",
        "    processors: storage.outputs.accountUrl\n    cores",
        "wants 'processors' to be of type int, and gets string",
    ),
    ("directories", "storage.bicep", "isHnsEnabled: false", "isHnsEnabled: true", "isHnsEnabled of account should be"),
    (
        "processors before their roles",
        "main.bicep",
        "  dependsOn: [\n    roles\n  ]\n",
        "",
        "apps starts processors, and does not wait for their roles",
    ),
    (
        "a probe at another port",
        "container-apps.bicep",
        "path: '/livez'\n                port: port",
        "path: '/livez'\n                port: 80",
        "the probes of app ask at several ports: 80, port",
    ),
    (
        "a misspelt variable",
        "container-apps.bicep",
        "'AZURE_CLIENT_ID'",
        "'AZURE_CLIENTID'",
        "app does not set AZURE_CLIENT_ID",
    ),
    (
        "another identity",
        "container-apps.bicep",
        "type: 'UserAssigned'",
        "type: 'SystemAssigned'",
        "app has no user-assigned identity",
    ),
    (
        "a volume that is none",
        "container-apps.bicep",
        "volumeName: 'scratch'",
        "volumeName: 'scrach'",
        "app mounts 'scrach', and there is no such volume",
    ),
    (
        "a default that is no choice",
        "main.bicep",
        "compute string = 'container-apps'",
        "compute string = 'container-app'",
        "the default 'container-app' of 'compute' is none of its choices",
    ),
    (
        "a default of another type",
        "main.bicep",
        "processors int = 3",
        "processors int = '3'",
        "'processors' is int, and its default '3'",
    ),
    (
        "a comparison that never holds",
        "main.bicep",
        "= if (compute == 'scale-set')",
        "= if (compute == 'scaleset')",
        "'compute' is never 'scaleset'",
    ),
    (
        "a function that is none",
        "main.bicep",
        "empty(registryName)",
        "isEmpty(registryName)",
        "there is no function 'isEmpty'; did you mean 'empty'?",
    ),
    (
        "a key after all",
        "observe.bicep",
        "DisableLocalAuth: true",
        "DisableLocalAuth: false",
        "DisableLocalAuth of insights",
    ),
    (
        "a local user",
        "storage.bicep",
        "isLocalUserEnabled: false",
        "isLocalUserEnabled: true",
        "should be false, and is",
    ),
    (
        "another tenant",
        "storage.bicep",
        "allowCrossTenantReplication: false",
        "allowCrossTenantReplication: true",
        "allowCrossTenantReplication of account should be false",
    ),
    (
        "an account without tables",
        "storage.bicep",
        "'StorageV2'",
        "'BlockBlobStorage'",
        "should be 'StorageV2', and is",
    ),
    (
        "private the other way round",
        "storage.bicep",
        "empty(admittedAddresses) ? 'Disabled' : 'Enabled'",
        "empty(admittedAddresses) ? 'Enabled' : 'Disabled'",
        "publicNetworkAccess of account should be",
    ),
    ("a lock that is none", "storage.bicep", "'CanNotDelete'", "'CannotDelete'", "should be 'CanNotDelete', and is"),
    (
        "a child without a parent",
        "storage.bicep",
        "  parent: account\n  name: 'default'",
        "  name: 'default'",
        "the parent of blobs should be of type Microsoft.Storage/storageAccounts",
    ),
    (
        "a child of another",
        "storage.bicep",
        "  parent: tables\n  name: tableName",
        "  parent: blobs\n  name: tableName",
        "the parent of table should be of type",
    ),
    ("another address", "storage.bicep", "primaryEndpoints.blob", "primaryEndpoints.table", "it should end in .blob"),
    ("another id", "identity.bicep", "properties.principalId", "properties.clientId", "should end in .principalId"),
    ("no way to the rows", "network.bicep", "  'table'\n] : []", "] : []", "endpoints are not for table"),
    ("a subnet that is none", "network.bicep", "/subnets/processors", "/subnets/processor", "no subnet 'processor'"),
    ("a severity that is none", "observe.bicep", "severity: 1\n    enabled", "severity: 5\n    enabled", "and is 5"),
    (
        "a property that the loop's items lack",
        "observe.bicep",
        "rule.severity",
        "rule.severty",
        "rule has no property 'severty'; did you mean 'severity'?",
    ),
    ("two fleets", "container-apps.bicep", "Mode: 'Single'", "Mode: 'Multiple'", "should be 'Single', and is"),
    (
        "a short end",
        "container-apps.bicep",
        "GracePeriodSeconds: 60",
        "GracePeriodSeconds: 6",
        "should be 60, and is 6",
    ),
    (
        "logs by a key",
        "container-apps.bicep",
        "'azure-monitor'",
        "'log-analytics'",
        "should be 'azure-monitor', and is",
    ),
    (
        "a profile that is none",
        "container-apps.bicep",
        "ProfileName: 'Consumption'",
        "ProfileName: 'Consumtion'",
        "is of the profile 'Consumtion', which its environment lacks",
    ),
    ("an image for nobody", "container-apps.bicep", "identity: identityId", "identity: clientId", "pulls its image by"),
    (
        "the id of another kind",
        "container-apps.bicep",
        "value: clientId",
        "value: identityId",
        "AZURE_CLIENT_ID is identityId; it should end in clientId",
    ),
    ("a start in a hurry", "container-apps.bicep", "Threshold: 10", "Threshold: 3", "a start has 3 x 12 s; Java needs"),
    (
        "passwords",
        "scale-set.bicep",
        "disablePasswordAuthentication: true",
        "disablePasswordAuthentication: false",
        "be true",
    ),
    (
        "settings as they are",
        "scale-set.bicep",
        "base64(cloudInit)",
        "cloudInit",
        "should be 'base64(cloudInit)', and is",
    ),
    ("a file that is none", "scale-set.bicep", "'cloud-init.yaml'", "'cloud-init.yml'", "no file 'cloud-init.yml'"),
    ("spot machines in a uniform set", "scale-set.bicep", "'Flexible'", "'Uniform'", "should be 'Flexible', and is"),
    (
        "a group that is none",
        "roles.bicep",
        "principalType: 'ServicePrincipal'",
        "principalType: 'Group'",
        "processors should be a ServicePrincipal, and is a Group",
    ),
    (
        "two of one name",
        "roles.bicep",
        "name: guid(table.id, processors, tableDataContributor)",
        "name: guid(container.id, processors, blobDataContributor)",
        "processorsRows needs a name of its own",
    ),
    (
        "readers who may write",
        "roles.bicep",
        "    roleDefinitionId: tableDataReader\n    principalId: readers",
        "    roleDefinitionId: tableDataContributor\n    principalId: readers",
        "to readers, which RIGHTS does not list",
    ),
    (
        "producers who may delete the container",
        "roles.bicep",
        "roleDefinitionId: streamWriter.id\n    principalId: producers",
        "roleDefinitionId: blobDataContributor\n    principalId: producers",
        "to producers, which RIGHTS does not list",
    ),
    (
        "a role with actions",
        "roles.bicep",
        "        dataActions: [\n",
        "        actions: [\n          'Microsoft.Storage/*/delete'\n        ]\n        dataActions: [\n",
        "streamWriter should have no actions: they reach the container",
    ),
    (
        "a role that lacks an action",
        "roles.bicep",
        "          'Microsoft.Storage/storageAccounts/blobServices/containers/blobs/add/action'\n",
        "",
        "streamWriter lacks the data action Microsoft.Storage/storageAccounts/blobServices/containers/blobs/add/action",
    ),
    (
        "producers without a condition",
        "roles.bicep",
        "    condition: streamsOnly\n",
        "",
        "producersBlobs has no condition, so producers may write the whole container and not only streams/*",
    ),
    (
        "producers of another path",
        "roles.bicep",
        "StringLike 'streams/*'",
        "StringLike '*'",
        "producersBlobs has a condition that should allow the path streams/* and nothing else",
    ),
    (
        "a condition that forgets an action",
        "roles.bicep",
        "blobs/add/action'}",
        "blobs/adds/action'}",
        "producersBlobs has a condition that leaves add/action open outside of streams/*",
    ),
    (
        "a condition of the first version",
        "roles.bicep",
        "conditionVersion: '2.0'",
        "conditionVersion: '1.0'",
        "without conditionVersion '2.0', which Azure refuses",
    ),
    (
        "a condition on another role",
        "roles.bicep",
        "    principalId: maintainers\n    principalType: 'Group'\n",
        "    principalId: maintainers\n    principalType: 'Group'\n    condition: streamsOnly\n",
        "maintainersBlobs has a condition that CONFINED does not list",
    ),
    (
        "nobody as a group",
        "roles.bicep",
        "if (!empty(operators))",
        "if (empty(operators))",
        "should be made if there are",
    ),
    (
        "a role of another kind",
        "roles.bicep",
        "roleDefinitions', 'ba92",
        "roleDefinition', 'ba92",
        "lack Storage Blob Data",
    ),
    ("roles for another id", "main.bicep", "outputs.principalId\n", "outputs.clientId\n", "assigned to a principalId"),
    (
        "one branch of another type",
        "main.bicep",
        "observe.outputs.insightsName : ''",
        "observe.outputs.insightsName : 0",
        "wants 'insightsName' to be of type string, and gets int",
    ),
    (
        "a default that the module lacks",
        "main.bicep",
        "'Standard_ZRS'",
        "'Standard_ZSR'",
        "as 'sku', and gets 'Standard_ZSR'",
    ),
    ("another scope", "main.bicep", "targetScope = 'resourceGroup'", "targetScope = 'subscription'", "belongs into"),
    (
        "an output of what may not be there",
        "main.bicep",
        "ownNetwork ? network.outputs.subnetId : ''",
        "network.outputs.subnetId",
        "network.outputs.subnetId is read in any case, and network is there only if ownNetwork",
    ),
    (
        "a number as a condition",
        "main.bicep",
        "'budget.bicep' = {",
        "'budget.bicep' = if (budgetAmount) {",
        "the condition of budget should be a bool, and is int",
    ),
    ("two deployments of one name", "main.bicep", "  name: 'budget'\n", "  name: 'storage'\n", "have the same name"),
    (
        "one parameter for another",
        "main.bicep",
        "processors: processors\n    regularProcessors",
        "processors: regularProcessors\n    regularProcessors",
        "gets 'regularProcessors' as 'processors', and has both",
    ),
    (
        "an output of another type",
        "budget.bicep",
        "resource budget",
        "@description('It.')\noutput it int = name\n\nresource budget",
        "'it' is of type int, and gets string",
    ),
    (
        "looked up for nothing",
        "roles.bicep",
        "  scope: registry\n",
        "  scope: insights\n",
        "'registry' is looked up and never used",
    ),
]


def found(name: str, text: str) -> list[Finding]:
    """What the checker says of one template; of `main.bicep` together with those that it puts together."""
    changed = (
        check.templates({name: text}) if name == "main.bicep" else {name: parse(check.HERE / "azure" / name, text)}
    )
    return check.findings(changed, None)[0]  # these rules need no type data


def test_the_templates_are_clean() -> None:
    """With the types, where this machine has them."""
    types = Types(check.TYPES) if check.TYPES.exists() else None
    assert check.findings(check.templates(), types)[0] == []


@pytest.mark.parametrize(
    ("name", "old", "new", "said"), [each[1:] for each in OF_THE_FLEET], ids=[each[0] for each in OF_THE_FLEET]
)
def test_a_mistake_in_the_fleet_is_seen(name: str, old: str, new: str, said: str) -> None:
    text = (check.HERE / "azure" / name).read_text()
    assert old in text
    seen = found(name, text.replace(old, new, 1))
    assert [each for each in seen if each.file == name and said in each.text], seen


OF_A_QUERY = [
    ("an operator that is none", " | where ", " | wher ", "wher"),
    ("a column that is none", "Sum >= 1", "Value >= 1", "The name 'Value' does not refer to any known column"),
    (
        "a table that is none",
        "AppMetrics | where",
        "AppMetric | where",
        "The name 'AppMetric' does not refer to any known",
    ),
    ("a function that is none", "sum(Sum)", "total(Sum)", "total"),
]


def test_a_mistake_in_a_query_is_seen() -> None:
    """All at once: loading what reads them, which `make setup` has installed, takes longer than reading."""
    text = (check.HERE / "azure" / "observe.bicep").read_text()
    assert all(old in text for _, old, _, _ in OF_A_QUERY)
    texts = {name: text.replace(old, new, 1) for name, old, new, _ in OF_A_QUERY} | {"no mistake": text}
    seen = kql.check({name: parse(Path(name), changed) for name, changed in texts.items()})
    for name, _, _, said in OF_A_QUERY:
        assert [each for each in seen if each.file == name and said in each.text], (name, seen)
    assert [each for each in seen if each.file == "no mistake"] == []


OF_A_MANIFEST = [
    ("misspelt probe", "readinessProbe:", "readynessProbe:", "readynessProbe"),
    ("version that is none", "apiVersion: apps/v1", "apiVersion: apps/v9", "apps/v9"),
    ("text for a number", "replicas: 3", "replicas: three", "three"),
    ("life by readiness", "path: /livez", "path: /readyz", "startupProbe asks for /readyz"),
    ("started forever", ", --wait-for-upgrade]", "]", "without --wait-for-upgrade"),
    (
        "more memory than it asks for",
        "limits:\n              memory: 4Gi",
        "limits:\n              memory: 8Gi",
        "as much memory as it may use",
    ),
    (
        "labels that differ",
        "  selector:\n    matchLabels:\n      app.kubernetes.io/name: flights\n  template",
        "  selector:\n    matchLabels:\n      app.kubernetes.io/name: flight\n  template",
        "the Deployment selects",
    ),
    (
        "a budget for no pod",
        "  maxUnavailable: 1\n  selector:\n    matchLabels:\n      app.kubernetes.io/name: flights",
        "  maxUnavailable: 1\n  selector:\n    matchLabels:\n      app.kubernetes.io/name: fleet",
        "PodDisruptionBudget selects",
    ),
    ("a port that is none", "port: health", "port: helth", "startupProbe asks at the port 'helth'"),
    (
        "a volume that is none",
        "- name: tmp\n              mountPath",
        "- name: temp\n              mountPath",
        "'temp'",
    ),
    (
        "an account that is none",
        "Name: samza-azure\n      auto",
        "Name: samza\n      auto",
        "no ServiceAccount 'samza'",
    ),
    ("no identity", '        azure.workload.identity/use: "true"\n', "", "the pods get no identity"),
    ("an image without a tag", "azurecr.io/flights:1", "azurecr.io/flights", "no tag and no digest"),
    ("a root that can be written", "readOnlyRootFilesystem: true", "readOnlyRootFilesystem: false", "should be true"),
    (
        "a hook that tells nothing",
        "samza-azure, decommission,",
        "samza-azure, status,",
        "preStop should run",
    ),
    (
        "a hook for another job",
        "decommission, /job/job.toml",
        "decommission, /job.toml",
        "preStop should run",
    ),
    (
        "a hook that takes all the time",
        '--timeout, "50"',
        '--timeout, "60"',
        "--timeout of preStop",
    ),
    ("a notice that is too late", "--by, 55s", "--by, 60s", "--by of preStop"),
    ("a short end", "GracePeriodSeconds: 60", "GracePeriodSeconds: 6", "GracePeriodSeconds should be 60 at least"),
]


@pytest.mark.parametrize(
    ("old", "new", "said"), [each[1:] for each in OF_A_MANIFEST], ids=[each[0] for each in OF_A_MANIFEST]
)
def test_a_mistake_in_a_manifest_is_seen(old: str, new: str, said: str) -> None:
    text = (check.HERE / "kubernetes" / "fleet.yaml").read_text()
    assert old in text
    assert fleet.manifests("fleet.yaml", text) == []
    seen = fleet.manifests("fleet.yaml", text.replace(old, new, 1))
    assert [each for each in seen if said in each.text], seen


OF_A_CLUSTER = [
    ("a right to more", "rights.yaml", "resources: [pods]", "resources: [pods, secrets]", "and nothing else"),
    ("a right too few", "rights.yaml", ", delete]", "]", "Spark needs to create, get, list, watch, delete pods"),
    (
        "rights for executors",
        "rights.yaml",
        "    name: samza-azure\n",
        "    name: executors\n",
        "should have no token of the cluster",
    ),
    ("no token for Spark", "processors.yaml", "Token: true", "Token: false", "needs a token of the cluster"),
    (
        "a volume that is none",
        "processors.yaml",
        "- name: executors\n          con",
        "- name: exec\n          con",
        "'executors'",
    ),
    ("a port that is text", "network.yaml", "port: 7078", "port: driver port", "driver port"),
]


@pytest.mark.parametrize(
    ("path", "old", "new", "said"), [each[1:] for each in OF_A_CLUSTER], ids=[each[0] for each in OF_A_CLUSTER]
)
def test_a_mistake_in_the_manifests_of_a_cluster_is_seen(
    tmp_path: Path, path: str, old: str, new: str, said: str
) -> None:
    folder = tmp_path / "kubernetes"
    shutil.copytree(check.HERE / "kubernetes", folder)
    file = folder / "cluster" / path
    assert old in file.read_text()
    file.write_text(file.read_text().replace(old, new, 1))
    [text] = [text for name, text in fleet.of_kubernetes(folder) if name == "kustomization.yaml"]
    assert [each for each in fleet.manifests("kustomization.yaml", text) if said in each.text]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("serviceAccountName: executors", "serviceAccountName: default", "a service account of their own"),
        ("Token: false", "Token: true", "should have no token of the cluster"),
        ("mountPath: /tmp", "mountPath: /temp", "nothing is mounted at /tmp"),
        ("runAsNonRoot: true", "runAsNonRoot: false", "as a user without rights"),
    ],
)
def test_a_mistake_in_the_pod_of_executors_is_seen(old: str, new: str, said: str) -> None:
    text = (check.HERE / "kubernetes" / "cluster" / "executor.yaml").read_text()
    assert fleet.manifests("executor.yaml", text) == []
    seen = fleet.manifests("executor.yaml", text.replace(old, new))
    assert [each for each in seen if said in each.text], seen


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not here")
def test_kubectl_builds_what_is_checked() -> None:
    folder = check.HERE / "kubernetes"
    done = subprocess.run(["kubectl", "kustomize", folder], capture_output=True, text=True, check=True)
    text = re.sub(r"executors-\w{10}\b", "executors", done.stdout)  # what it generates has a checksum in its name
    made = {(each["kind"], each["metadata"]["name"]): each for each in yaml.safe_load_all(text)}
    generated = made.pop(("ConfigMap", "executors"))
    assert {*generated["data"]} == {"executor.yaml"}
    assert made == {(each["kind"], each["metadata"]["name"]): each for each in fleet.built(folder)}


@pytest.mark.parametrize("name", ["samza-azure-worker@.service", "samza-azure-master@.service"])
def test_the_units_of_a_cluster_are_as_narrow_as_that_of_a_processor(name: str) -> None:
    text = (check.HERE / "systemd" / name).read_text()
    assert fleet.unit(name, text)[1] == []
    seen = fleet.unit(name, text.replace("NoNewPrivileges=yes", "NoNewPrivileges=no").replace("User=samza", ""))[1]
    assert {each.text.partition(" ")[0] for each in seen} >= {"NoNewPrivileges", "User"}


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("Restart=on-failure", "Restart=always", "what ended well stays ended"),
        (" --wait-for-upgrade", "", "has no --wait-for-upgrade"),
        ("IntervalSec=0", "IntervalSec=600", "the unit would give up"),
        ("RestartPreventExitStatus=2", "RestartPreventExitStatus=3", "would be started forever"),
        ("SuccessExitStatus=8", "SuccessExitStatus=2", "should not be started again"),
        ("UMask=0077", "UMask=0022", "UMask should be 0077"),
    ],
)
def test_a_mistake_in_the_unit_is_seen(old: str, new: str, said: str) -> None:
    text = (check.HERE / "systemd" / "samza-azure@.service").read_text()
    assert fleet.unit("samza-azure@.service", text)[1] == []
    seen = fleet.unit("samza-azure@.service", text.replace(old, new))[1]
    assert [each for each in seen if said in each.text], seen


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("{clientId}", "{client}", "nobody fills in {client}"),
        ("{release}", "flights.tar.gz", "scale-set.bicep fills in {release}, which is not there"),
        ("#cloud-config", "# cloud-config", "a first line that says #cloud-config"),
        ("    content: |", "  content: |", "cannot be read"),
        ("fresh=$(mktemp -d)", "fresh=$(mktemp -d", "/opt/install-release: "),
        ("  - default\n", "", "users should begin with default"),
    ],
)
def test_a_mistake_in_the_settings_of_a_machine_is_found(old: str, new: str, said: str) -> None:
    template, text = ((check.HERE / "azure" / name).read_text() for name in ("scale-set.bicep", "cloud-init.yaml"))
    assert fleet.cloud_init(template, text) == []
    seen = fleet.cloud_init(template, text.replace(old, new))
    assert [each for each in seen if said in each.text], seen


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('"tini", "--", ', "", "tini"),
        ("USER 10001:10001", "USER root", "without rights"),
        ("HEALTHCHECK", "# HEALTHCHECK", "HEALTHCHECK"),
        ("--owner=root --group=root", "--owner=samza --group=samza", "/job should be root's"),
        ("--mode=0700 /var", "/var", "readable by its user only"),
    ],
)
def test_a_mistake_in_the_image_is_seen(old: str, new: str, said: str) -> None:
    text = (check.HERE / "image" / "Dockerfile").read_text()
    assert fleet.image("Dockerfile", text)[1] == []
    seen = fleet.image("Dockerfile", text.replace(old, new))[1]
    assert [each for each in seen if said in each.text], seen
