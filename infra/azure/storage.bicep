// The storage account that a fleet lives on, with the container and the table of one application in it. The processors
// therefore need no right to create anything.

@description('Where the account is. The fleet belongs into the same region: each batch waits for an append.')
param location string

@description('3 to 24 lower-case letters and digits, unique in all of Azure.')
@minLength(3)
@maxLength(24)
param accountName string

@description('azure.storage.container of the job file. Without that key it is app.name-app.id, such as flights-1.')
@minLength(3)
@maxLength(63)
param containerName string

@description('azure.storage.table of the job file. Without that key it is app.name and app.id, such as flights1.')
@minLength(3)
@maxLength(63)
param tableName string

@description('Standard_ZRS survives the loss of a zone; Standard_LRS costs about a fifth less. Geo-redundant kinds work, but after a fail-over the account may be older than the fleet remembers.')
@allowed([
  'Standard_LRS'
  'Standard_ZRS'
  'Standard_GRS'
  'Standard_GZRS'
])
param sku string = 'Standard_ZRS'

@description('Whether the account is reached through private endpoints only. network.bicep makes them.')
param privateNetwork bool = false

@description('Addresses of the internet that are let in although the account is private. Empty: none.')
param admittedAddresses array = []

@description('Days for which a deleted container can be restored.')
@minValue(1)
@maxValue(365)
param containerRetentionDays int = 7

@description('Whether a lock forbids the deletion of the account until somebody takes it off.')
param lock bool = false

resource account 'Microsoft.Storage/storageAccounts@2025-06-01' = {
  name: accountName
  location: location
  // Premium block blobs have no tables, and their append blobs are in doubt.
  kind: 'StorageV2'
  sku: {
    name: sku
  }
  properties: {
    accessTier: 'Hot'
    // Append blobs and leases gain nothing by a hierarchy, and transactions cost more.
    isHnsEnabled: false
    // An identity is the only way in: a key cannot be scoped, leaks, and nobody would rotate it.
    allowSharedKeyAccess: false
    defaultToOAuthAuthentication: true
    allowBlobPublicAccess: false
    allowCrossTenantReplication: false
    minimumTlsVersion: 'TLS1_2'
    supportsHttpsTrafficOnly: true
    isLocalUserEnabled: false
    publicNetworkAccess: privateNetwork && empty(admittedAddresses) ? 'Disabled' : 'Enabled'
    networkAcls: {
      defaultAction: privateNetwork ? 'Deny' : 'Allow'
      bypass: 'None'
      ipRules: [for address in admittedAddresses: {
        value: address
        action: 'Allow'
      }]
    }
  }
}

resource blobs 'Microsoft.Storage/storageAccounts/blobServices@2025-06-01' = {
  parent: account
  name: 'default'
  properties: {
    // Every write of control.json would leave a full copy forever, and so would every deleted piece of a log.
    isVersioningEnabled: false
    // What lies between two stages is deleted when it has been read: 1 MB/s would be 0.6 TB after seven days.
    deleteRetentionPolicy: {
      enabled: false
    }
    // The one mistake that loses everything can be undone.
    containerDeleteRetentionPolicy: {
      enabled: true
      days: containerRetentionDays
    }
    // Each write would cost a second one, and nobody reads it.
    changeFeed: {
      enabled: false
    }
    lastAccessTimeTrackingPolicy: {
      enable: false
    }
  }
}

// No lifecycle rule: tiers are for block blobs, and a rule that deletes a piece of a log loses state.
resource container 'Microsoft.Storage/storageAccounts/blobServices/containers@2025-06-01' = {
  parent: blobs
  name: containerName
  properties: {
    publicAccess: 'None'
  }
}

// Where virtual machines fetch the software and the job from. Container images carry theirs.
resource releases 'Microsoft.Storage/storageAccounts/blobServices/containers@2025-06-01' = {
  parent: blobs
  name: 'releases'
  properties: {
    publicAccess: 'None'
  }
}

resource tables 'Microsoft.Storage/storageAccounts/tableServices@2025-06-01' = {
  parent: account
  name: 'default'
}

resource table 'Microsoft.Storage/storageAccounts/tableServices/tables@2025-06-01' = {
  parent: tables
  name: tableName
}

resource noDelete 'Microsoft.Authorization/locks@2020-05-01' = if (lock) {
  scope: account
  name: 'the-state-of-the-fleet'
  properties: {
    level: 'CanNotDelete'
    notes: 'The account holds the state of a fleet. A deleted container is restorable for some days; an account is not.'
  }
}

@description('For the other templates.')
output accountName string = account.name

@description('For private endpoints and alerts.')
output accountId string = account.id

@description('azure.storage.account of the job file.')
output accountUrl string = account.properties.primaryEndpoints.blob

@description('For role assignments.')
output containerName string = container.name

@description('For role assignments.')
output releasesName string = releases.name

@description('For role assignments.')
output tableName string = table.name
