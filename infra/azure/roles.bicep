// Who may do what, at the narrowest scope that Azure knows: the container and the table, not the account. A new role
// takes minutes to count.

@description('The storage account of storage.bicep.')
param accountName string

@description('The application\'s container.')
param containerName string

@description('The container that virtual machines fetch software from.')
param releasesName string

@description('The application\'s table.')
param tableName string

@description('The principal of the processors\' identity.')
param processors string

@description('The principal of the identity of a Spark cluster\'s machines, which fetch their software. Empty: none.')
param workers string = ''

@description('A group whose members may drain and stop the job. Empty: nobody.')
param operators string = ''

@description('A group whose members may look: status, export. Empty: nobody.')
param readers string = ''

@description('A group whose members may write into streams: produce, SourceWriter. Empty: nobody.')
param producers string = ''

@description('A group whose members may write and delete all that the job stores: compact, delete, rewind, recover. Its members can do what a processor can. Empty: nobody.')
param maintainers string = ''

@description('A group whose members may upload releases, which virtual machines run. Empty: nobody.')
param releasers string = ''

@description('A registry of this resource group that the image is pulled from. Empty: none.')
param registryName string = ''

@description('The Application Insights component that the processors send metrics to. Empty: none.')
param insightsName string = ''

@description('The Event Hubs namespace that the job reads from or writes to. Empty: none.')
param hubNamespaceName string = ''

@description('Its hubs that the job reads.')
param hubsRead array = []

@description('Its hubs that the job writes.')
param hubsWritten array = []

var blobDataContributor = subscriptionResourceId('Microsoft.Authorization/roleDefinitions', 'ba92f5b4-2d11-453d-a403-e96b0029c9fe')
var blobDataReader = subscriptionResourceId('Microsoft.Authorization/roleDefinitions', '2a2b9908-6ea1-4ae2-8e65-a410df84e7d1')
var tableDataContributor = subscriptionResourceId('Microsoft.Authorization/roleDefinitions', '0a9a7e1f-b9d0-4cc4-a60d-0319b160aaa3')
var tableDataReader = subscriptionResourceId('Microsoft.Authorization/roleDefinitions', '76199698-9eea-4c19-bc75-cec21354c6b6')
var acrPull = subscriptionResourceId('Microsoft.Authorization/roleDefinitions', '7f951dda-4ed3-4680-a7ca-43fe172d538d')
// In a variable, since the checker's parser takes a call in a list for two items.
var here = resourceGroup().id
var metricsPublisher = subscriptionResourceId('Microsoft.Authorization/roleDefinitions', '3913510d-42f4-4e42-8a64-420c390055eb')
var hubsReceiver = subscriptionResourceId('Microsoft.Authorization/roleDefinitions', 'a638d3c7-ab3a-418d-83e6-5f17a39d4fde')
var hubsSender = subscriptionResourceId('Microsoft.Authorization/roleDefinitions', '2b629674-e913-4c01-ae53-ef4638d8f975')

// A task trusts the logs below runs/ with its state, so nobody but processors and maintainers may write there. All four
// actions that change a blob are held below streams/; reading is not restricted. Azure has such conditions for blobs and
// queues, and none for the rows of a table.
var streamsOnly = '''
(
 (
  !(ActionMatches{'Microsoft.Storage/storageAccounts/blobServices/containers/blobs/write'})
  AND
  !(ActionMatches{'Microsoft.Storage/storageAccounts/blobServices/containers/blobs/add/action'})
  AND
  !(ActionMatches{'Microsoft.Storage/storageAccounts/blobServices/containers/blobs/delete'})
  AND
  !(ActionMatches{'Microsoft.Storage/storageAccounts/blobServices/containers/blobs/move/action'})
 )
 OR
 (
  @Resource[Microsoft.Storage/storageAccounts/blobServices/containers/blobs:path] StringLike 'streams/*'
 )
)
'''

resource account 'Microsoft.Storage/storageAccounts@2025-06-01' existing = {
  name: accountName
}

resource blobs 'Microsoft.Storage/storageAccounts/blobServices@2025-06-01' existing = {
  parent: account
  name: 'default'
}

resource container 'Microsoft.Storage/storageAccounts/blobServices/containers@2025-06-01' existing = {
  parent: blobs
  name: containerName
}

resource releases 'Microsoft.Storage/storageAccounts/blobServices/containers@2025-06-01' existing = {
  parent: blobs
  name: releasesName
}

resource tables 'Microsoft.Storage/storageAccounts/tableServices@2025-06-01' existing = {
  parent: account
  name: 'default'
}

resource table 'Microsoft.Storage/storageAccounts/tableServices/tables@2025-06-01' existing = {
  parent: tables
  name: tableName
}

// The processors write logs and rows.

resource processorsBlobs 'Microsoft.Authorization/roleAssignments@2022-04-01' = {
  scope: container
  name: guid(container.id, processors, blobDataContributor)
  properties: {
    roleDefinitionId: blobDataContributor
    principalId: processors
    // Said, because the directory may not know of a new identity yet.
    principalType: 'ServicePrincipal'
  }
}

resource processorsRows 'Microsoft.Authorization/roleAssignments@2022-04-01' = {
  scope: table
  name: guid(table.id, processors, tableDataContributor)
  properties: {
    roleDefinitionId: tableDataContributor
    principalId: processors
    principalType: 'ServicePrincipal'
  }
}

resource processorsReleases 'Microsoft.Authorization/roleAssignments@2022-04-01' = {
  scope: releases
  name: guid(releases.id, processors, blobDataReader)
  properties: {
    roleDefinitionId: blobDataReader
    principalId: processors
    principalType: 'ServicePrincipal'
  }
}

// Requests to drain and stop are rows; an operator writes no blob.

resource operatorsBlobs 'Microsoft.Authorization/roleAssignments@2022-04-01' = if (!empty(operators)) {
  scope: container
  name: guid(container.id, operators, blobDataReader)
  properties: {
    roleDefinitionId: blobDataReader
    principalId: operators
    principalType: 'Group'
  }
}

resource operatorsRows 'Microsoft.Authorization/roleAssignments@2022-04-01' = if (!empty(operators)) {
  scope: table
  name: guid(table.id, operators, tableDataContributor)
  properties: {
    roleDefinitionId: tableDataContributor
    principalId: operators
    principalType: 'Group'
  }
}

resource readersBlobs 'Microsoft.Authorization/roleAssignments@2022-04-01' = if (!empty(readers)) {
  scope: container
  name: guid(container.id, readers, blobDataReader)
  properties: {
    roleDefinitionId: blobDataReader
    principalId: readers
    principalType: 'Group'
  }
}

resource readersRows 'Microsoft.Authorization/roleAssignments@2022-04-01' = if (!empty(readers)) {
  scope: table
  name: guid(table.id, readers, tableDataReader)
  properties: {
    roleDefinitionId: tableDataReader
    principalId: readers
    principalType: 'Group'
  }
}

// Whoever puts rows into a stream appends to its log, and announces that in a row. Storage Blob Data Contributor could
// also delete the container, which is no data action, so no condition holds it.

resource streamWriter 'Microsoft.Authorization/roleDefinitions@2022-04-01' = if (!empty(producers)) {
  name: guid(container.id, 'stream writer')
  properties: {
    roleName: 'Stream writer of ${accountName}/${containerName}'
    description: 'Reads, writes and deletes blobs, as far as the condition of its assignment allows, and no container.'
    type: 'CustomRole'
    assignableScopes: [
      here
    ]
    permissions: [
      {
        dataActions: [
          'Microsoft.Storage/storageAccounts/blobServices/containers/blobs/read'
          'Microsoft.Storage/storageAccounts/blobServices/containers/blobs/write'
          'Microsoft.Storage/storageAccounts/blobServices/containers/blobs/add/action'
          'Microsoft.Storage/storageAccounts/blobServices/containers/blobs/delete'
        ]
      }
    ]
  }
}

resource producersBlobs 'Microsoft.Authorization/roleAssignments@2022-04-01' = if (!empty(producers)) {
  scope: container
  name: guid(container.id, producers, streamWriter.id)
  properties: {
    roleDefinitionId: streamWriter.id
    principalId: producers
    principalType: 'Group'
    condition: streamsOnly
    conditionVersion: '2.0'
  }
}

resource producersRows 'Microsoft.Authorization/roleAssignments@2022-04-01' = if (!empty(producers)) {
  scope: table
  name: guid(table.id, producers, tableDataContributor)
  properties: {
    roleDefinitionId: tableDataContributor
    principalId: producers
    principalType: 'Group'
  }
}

// Compaction and deletion write wherever the job does.

resource maintainersBlobs 'Microsoft.Authorization/roleAssignments@2022-04-01' = if (!empty(maintainers)) {
  scope: container
  name: guid(container.id, maintainers, blobDataContributor)
  properties: {
    roleDefinitionId: blobDataContributor
    principalId: maintainers
    principalType: 'Group'
  }
}

resource maintainersRows 'Microsoft.Authorization/roleAssignments@2022-04-01' = if (!empty(maintainers)) {
  scope: table
  name: guid(table.id, maintainers, tableDataContributor)
  properties: {
    roleDefinitionId: tableDataContributor
    principalId: maintainers
    principalType: 'Group'
  }
}

// A group of its own: what is uploaded there runs with the processors' identity.

resource releasersBlobs 'Microsoft.Authorization/roleAssignments@2022-04-01' = if (!empty(releasers)) {
  scope: releases
  name: guid(releases.id, releasers, blobDataContributor)
  properties: {
    roleDefinitionId: blobDataContributor
    principalId: releasers
    principalType: 'Group'
  }
}

// Executors need no access to what the job stores, so their machines have another identity than the processors'.

resource workersReleases 'Microsoft.Authorization/roleAssignments@2022-04-01' = if (!empty(workers)) {
  scope: releases
  name: guid(releases.id, workers, blobDataReader)
  properties: {
    roleDefinitionId: blobDataReader
    principalId: workers
    principalType: 'ServicePrincipal'
  }
}

resource registry 'Microsoft.ContainerRegistry/registries@2025-04-01' existing = if (!empty(registryName)) {
  name: registryName
}

resource pull 'Microsoft.Authorization/roleAssignments@2022-04-01' = if (!empty(registryName)) {
  scope: registry
  name: guid(resourceGroup().id, registryName, processors, acrPull)
  properties: {
    roleDefinitionId: acrPull
    principalId: processors
    principalType: 'ServicePrincipal'
  }
}

resource insights 'Microsoft.Insights/components@2020-02-02' existing = if (!empty(insightsName)) {
  name: insightsName
}

resource publish 'Microsoft.Authorization/roleAssignments@2022-04-01' = if (!empty(insightsName)) {
  scope: insights
  name: guid(resourceGroup().id, insightsName, processors, metricsPublisher)
  properties: {
    roleDefinitionId: metricsPublisher
    principalId: processors
    principalType: 'ServicePrincipal'
  }
}

// At each hub and not at the namespace, whose other hubs are none of the job's business. With the endpoint for Kafka, too.

resource namespace 'Microsoft.EventHub/namespaces@2024-01-01' existing = if (!empty(hubNamespaceName)) {
  name: hubNamespaceName
}

resource readHubs 'Microsoft.EventHub/namespaces/eventhubs@2024-01-01' existing = [for hub in hubsRead: {
  parent: namespace
  name: hub
}]

resource writtenHubs 'Microsoft.EventHub/namespaces/eventhubs@2024-01-01' existing = [for hub in hubsWritten: {
  parent: namespace
  name: hub
}]

resource receive 'Microsoft.Authorization/roleAssignments@2022-04-01' = [for (hub, index) in hubsRead: {
  scope: readHubs[index]
  name: guid(readHubs[index].id, processors, hubsReceiver)
  properties: {
    roleDefinitionId: hubsReceiver
    principalId: processors
    principalType: 'ServicePrincipal'
  }
}]

resource send 'Microsoft.Authorization/roleAssignments@2022-04-01' = [for (hub, index) in hubsWritten: {
  scope: writtenHubs[index]
  name: guid(writtenHubs[index].id, processors, hubsSender)
  properties: {
    roleDefinitionId: hubsSender
    principalId: processors
    principalType: 'ServicePrincipal'
  }
}]
