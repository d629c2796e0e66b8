// A fleet in one resource group: az deployment group what-if --template-file infra/azure/main.bicep --parameters …
// Nothing of this was ever deployed by those who wrote it; see infra/README.md.

targetScope = 'resourceGroup'

@description('Where everything is.')
param location string = resourceGroup().location

@description('What names begin with: the job\'s name, in lower-case letters, digits and hyphens.')
@minLength(2)
@maxLength(20)
param name string

@description('The storage account: 3 to 24 lower-case letters and digits, unique in all of Azure.')
@minLength(3)
@maxLength(24)
param accountName string

@description('azure.storage.container of the job file.')
param containerName string

@description('azure.storage.table of the job file.')
param tableName string

@description('Standard_LRS is cheaper and does not survive the loss of a zone.')
param storageSku string = 'Standard_ZRS'

@description('Whether a lock forbids the deletion of the storage account.')
param lock bool = false

@description('Whether the account is reached through private endpoints only. With compute none: connect your own network and its DNS with the one that is made here, or nothing reaches the account.')
param privateNetwork bool = false

@description('With privateNetwork: addresses of the internet that are let in all the same, as long as they stand here, to upload the first release or to look. Single IPv4 addresses. Empty: none.')
param admittedAddresses array = []

@description('What the processors run on. none: on what you have, such as Kubernetes with the manifests of infra/kubernetes.')
@allowed([
  'container-apps'
  'scale-set'
  'none'
])
param compute string = 'container-apps'

@description('How many processors there are.')
@minValue(1)
@maxValue(1000)
param processors int = 3

@description('container-apps: the image with the job in it.')
param image string = ''

@description('container-apps: the registry in this resource group that the image is pulled from. Empty: a public image.')
param registryName string = ''

@description('container-apps: the registry\'s server, if it is not the name and the cloud\'s suffix, as with a domain name label: az acr show --query loginServer.')
param registryServer string = ''

@description('container-apps: whether replicas are spread over the zones of the region. The environment then gets a network of its own, and neither can be changed later.')
param zoneRedundant bool = false

@description('container-apps: vCPUs of a processor, and half of its GiB of memory.')
param cores int = 2

@description('scale-set: the blob in the container releases that the machines install.')
param release string = ''

@description('scale-set: the size of a machine. Not every region and subscription has each: az vm list-skus.')
param vmSize string = 'Standard_D2as_v6'

@description('scale-set: the zones that machines are spread over. Empty: a region without zones. They cannot be changed later.')
param zones array = [
  '1'
  '2'
  '3'
]

@description('scale-set: how many machines are never evicted.')
param regularProcessors int = 1

@description('scale-set: the public key of whoever logs in.')
param sshPublicKey string = ''

@description('scale-set: how many machines are workers of a Spark cluster, all of them spot machines but sparkRegularWorkers. 0: none.')
@minValue(0)
@maxValue(1000)
param sparkWorkers int = 0

@description('sparkWorkers: how many of them are never evicted.')
@minValue(0)
param sparkRegularWorkers int = 0

@description('sparkWorkers: the size of their machines.')
param sparkVmSize string = 'Standard_D4as_v6'

@description('sparkWorkers: the master that they are workers of, on a machine of the subnet workers, and spark.master of the job file.')
param sparkMaster string = 'spark://10.64.4.4:7077'

@description('none: the issuer of an AKS cluster\'s tokens. Empty: no cluster.')
param clusterIssuer string = ''

@description('A group whose members may drain and stop the job. Empty: nobody.')
param operators string = ''

@description('A group whose members may write into streams: produce, SourceWriter. Empty: nobody.')
param producers string = ''

@description('A group whose members may write and delete all that the job stores: compact, delete, rewind, recover. Empty: nobody.')
param maintainers string = ''

@description('scale-set: a group whose members may upload releases, which the machines run. Empty: nobody.')
param releasers string = ''

@description('A group whose members may look. Empty: nobody.')
param readers string = ''

@description('An Event Hubs namespace to make, 6 to 50 letters, digits and hyphens, unique in all of Azure. Empty: none.')
param hubNamespace string = ''

@description('hubNamespace: the hubs that the job reads.')
param hubsRead array = []

@description('hubNamespace: the hubs that the job writes.')
param hubsWritten array = []

@description('hubNamespace: partitions of each hub, as streams.<id>.partitions says. Standard cannot change it later.')
param hubPartitions int = 4

@description('hubNamespace: throughput units of the tier Standard.')
param hubUnits int = 1

@description('hubNamespace: for how many hours events are kept, 168 at most.')
param hubRetentionHours int = 72

@description('Who gets the mails of alerts and budget.')
param emails array

@description('Per month, in the currency of the bill.')
param budgetAmount int

@description('The first day of the month of the first deployment, or of a later one, such as 2026-12-01. It stays what it was: Azure refuses to change the start of a budget, and with it the whole deployment.')
param budgetStart string

@description('container-apps: whether processors send metrics to Application Insights, which is billed by the gigabyte, and alerts are made of them. Without it nothing tells of a fleet without a leader.')
param telemetry bool = true

@description('Where docs/operate.md is served, as a URL. Alerts link its sections.')
param runbook string = 'docs/operate.md'

var withCluster = compute == 'scale-set' && sparkWorkers > 0
var ownNetwork = privateNetwork || zoneRedundant || compute == 'scale-set'
var server = empty(registryServer) ? '${registryName}${environment().suffixes.acrLoginServer}' : registryServer
// Only container-apps.bicep has its processors send metrics. Alerts on metrics that nobody sends would fire forever, or never.
var sends = telemetry && compute == 'container-apps'

module identity 'identity.bicep' = {
  name: 'identity'
  params: {
    location: location
    identityName: '${name}-processors'
    clusterIssuer: clusterIssuer
  }
}

module workersIdentity 'identity.bicep' = if (withCluster) {
  name: 'identity-workers'
  params: {
    location: location
    identityName: '${name}-workers'
  }
}

module storage 'storage.bicep' = {
  name: 'storage'
  params: {
    location: location
    accountName: accountName
    containerName: containerName
    tableName: tableName
    sku: storageSku
    privateNetwork: privateNetwork
    admittedAddresses: admittedAddresses
    lock: lock
  }
}

module observe 'observe.bicep' = {
  name: 'observe'
  params: {
    location: location
    name: name
    accountId: storage.outputs.accountId
    emails: emails
    runbook: runbook
    telemetry: sends
    processors: processors
  }
}

module hubs 'eventhubs.bicep' = if (!empty(hubNamespace)) {
  name: 'eventhubs'
  params: {
    location: location
    hubNamespace: hubNamespace
    units: hubUnits
    hubsRead: hubsRead
    hubsWritten: hubsWritten
    consumerGroup: name
    partitions: hubPartitions
    retentionHours: hubRetentionHours
    privateNetwork: privateNetwork
    admittedAddresses: admittedAddresses
    actionGroupId: observe.outputs.actionGroupId
    runbook: runbook
  }
}

module roles 'roles.bicep' = {
  name: 'roles'
  params: {
    accountName: storage.outputs.accountName
    containerName: storage.outputs.containerName
    releasesName: storage.outputs.releasesName
    tableName: storage.outputs.tableName
    processors: identity.outputs.principalId
    workers: withCluster ? workersIdentity.outputs.principalId : ''
    operators: operators
    producers: producers
    maintainers: maintainers
    releasers: releasers
    readers: readers
    registryName: registryName
    insightsName: sends ? observe.outputs.insightsName : ''
    hubNamespaceName: !empty(hubNamespace) ? hubs.outputs.hubNamespaceName : ''
    hubsRead: !empty(hubNamespace) ? hubsRead : []
    hubsWritten: !empty(hubNamespace) ? hubsWritten : []
  }
}

module network 'network.bicep' = if (ownNetwork) {
  name: 'network'
  params: {
    location: location
    name: name
    accountId: privateNetwork ? storage.outputs.accountId : ''
    hubNamespaceId: !empty(hubNamespace) ? (privateNetwork ? hubs.outputs.hubNamespaceId : '') : ''
    hubHost: !empty(hubNamespace) ? (privateNetwork ? hubs.outputs.hubHost : '') : ''
    forContainerApps: compute == 'container-apps'
  }
}

module apps 'container-apps.bicep' = if (compute == 'container-apps') {
  name: 'container-apps'
  // A processor that starts before its roles are there is refused.
  dependsOn: [
    roles
  ]
  params: {
    location: location
    name: name
    image: image
    registryServer: empty(registryName) ? registryServer : server
    identityId: identity.outputs.identityId
    clientId: identity.outputs.clientId
    accountUrl: storage.outputs.accountUrl
    hubHost: !empty(hubNamespace) ? hubs.outputs.hubHost : ''
    processors: processors
    cores: cores
    zoneRedundant: zoneRedundant
    subnetId: ownNetwork ? network.outputs.subnetId : ''
    workspaceId: observe.outputs.workspaceId
    insightsConnection: sends ? observe.outputs.insightsConnection : ''
    actionGroupId: observe.outputs.actionGroupId
    runbook: runbook
  }
}

module machines 'scale-set.bicep' = if (compute == 'scale-set') {
  name: 'scale-set'
  dependsOn: [
    roles
  ]
  params: {
    location: location
    name: name
    jobName: name
    release: release
    vmSize: vmSize
    zones: zones
    processors: processors
    regularProcessors: regularProcessors
    identityId: identity.outputs.identityId
    clientId: identity.outputs.clientId
    accountUrl: storage.outputs.accountUrl
    hubHost: !empty(hubNamespace) ? hubs.outputs.hubHost : ''
    subnetId: ownNetwork ? network.outputs.subnetId : ''
    sshPublicKey: sshPublicKey
  }
}

module sparkMachines 'scale-set.bicep' = if (withCluster) {
  name: 'spark-workers'
  dependsOn: [
    roles
  ]
  params: {
    location: location
    name: '${name}-workers'
    jobName: name
    release: release
    master: sparkMaster
    vmSize: sparkVmSize
    zones: zones
    processors: sparkWorkers
    regularProcessors: sparkRegularWorkers
    identityId: withCluster ? workersIdentity.outputs.identityId : ''
    clientId: withCluster ? workersIdentity.outputs.clientId : ''
    accountUrl: storage.outputs.accountUrl
    subnetId: ownNetwork ? network.outputs.workersSubnetId : ''
    sshPublicKey: sshPublicKey
  }
}

module budget 'budget.bicep' = {
  name: 'budget'
  params: {
    name: name
    amount: budgetAmount
    start: budgetStart
    actionGroupId: observe.outputs.actionGroupId
  }
}

@description('azure.storage.account of the job file.')
output accountUrl string = storage.outputs.accountUrl

@description('AZURE_CLIENT_ID of processors that run elsewhere, and azure.workload.identity/client-id of the manifests.')
output clientId string = identity.outputs.clientId
