// An Event Hubs namespace with the hubs that a job reads and writes, and a consumer group of its own in each that it reads.

@description('Where it is: in the region of the fleet, or each batch of events travels.')
param location string

@description('The namespace: 6 to 50 letters, digits and hyphens, unique in all of Azure.')
@minLength(6)
@maxLength(50)
param hubNamespace string

@description('Basic has neither consumer groups of one\'s own nor private endpoints.')
@allowed([
  'Standard'
  'Premium'
])
param tier string = 'Standard'

@description('Throughput units of Standard, 1 MB/s or 1,000 events/s in each, or processing units of Premium.')
@minValue(1)
@maxValue(40)
param units int = 1

@description('The hubs that the job reads.')
param hubsRead array

@description('The hubs that the job writes. One may be read as well.')
param hubsWritten array

@description('options.consumer_group of the job file. One job each: readers of another one would be evicted.')
param consumerGroup string

@description('streams.<id>.partitions of the job file. Standard cannot change it later.')
@minValue(1)
@maxValue(32)
param partitions int = 4

@description('For how many hours events are kept: Standard takes 168 at most.')
@minValue(1)
@maxValue(168)
param retentionHours int = 72

@description('Whether the namespace is reached through private endpoints only. network.bicep makes them.')
param privateNetwork bool

@description('Addresses of the internet that are let in although the namespace is private. Empty: none.')
param admittedAddresses array

@description('Who is told when the namespace is throttled.')
param actionGroupId string

@description('Where docs/operate.md is served, as a URL. Alerts link its sections.')
param runbook string

resource namespace 'Microsoft.EventHub/namespaces@2024-01-01' = {
  name: hubNamespace
  location: location
  sku: {
    name: tier
    tier: tier
    capacity: units
  }
  properties: {
    // An identity is the only way in, as to the storage account.
    disableLocalAuth: true
    minimumTlsVersion: '1.2'
    publicNetworkAccess: privateNetwork && empty(admittedAddresses) ? 'Disabled' : 'Enabled'
  }
}

// Without a rule Deny lets everybody in, so what shuts the door is that there is no public access.
resource rules 'Microsoft.EventHub/namespaces/networkRuleSets@2024-01-01' = {
  parent: namespace
  name: 'default'
  properties: {
    publicNetworkAccess: privateNetwork && empty(admittedAddresses) ? 'Disabled' : 'Enabled'
    defaultAction: privateNetwork ? 'Deny' : 'Allow'
    trustedServiceAccessEnabled: false
    ipRules: [for address in admittedAddresses: {
      ipMask: address
      action: 'Allow'
    }]
  }
}

resource read 'Microsoft.EventHub/namespaces/eventhubs@2024-01-01' = [for hub in hubsRead: {
  parent: namespace
  name: hub
  properties: {
    partitionCount: partitions
    retentionDescription: {
      // Numbers that are missing in a compacted hub are errors.
      cleanupPolicy: 'Delete'
      retentionTimeInHours: retentionHours
    }
  }
}]

resource groups 'Microsoft.EventHub/namespaces/eventhubs/consumergroups@2024-01-01' = [for (hub, index) in hubsRead: {
  parent: read[index]
  name: consumerGroup
}]

resource written 'Microsoft.EventHub/namespaces/eventhubs@2024-01-01' = [for hub in hubsWritten: if (!contains(hubsRead, hub)) {
  parent: namespace
  name: hub
  properties: {
    partitionCount: partitions
    retentionDescription: {
      cleanupPolicy: 'Delete'
      retentionTimeInHours: retentionHours
    }
  }
}]

resource throttled 'Microsoft.Insights/metricAlerts@2018-03-01' = {
  name: '${hubNamespace}-hubs-throttled'
  location: 'global'
  properties: {
    description: 'The Event Hubs namespace refuses requests because there are too many of them. ${runbook}#hubs-throttled'
    severity: 2
    enabled: true
    scopes: [
      namespace.id
    ]
    evaluationFrequency: 'PT1M'
    windowSize: 'PT5M'
    criteria: {
      'odata.type': 'Microsoft.Azure.Monitor.SingleResourceMultipleMetricCriteria'
      allOf: [
        {
          criterionType: 'StaticThresholdCriterion'
          name: 'throttled'
          metricNamespace: 'Microsoft.EventHub/namespaces'
          metricName: 'ThrottledRequests'
          timeAggregation: 'Total'
          operator: 'GreaterThan'
          threshold: 20
        }
      ]
    }
    actions: [
      {
        actionGroupId: actionGroupId
      }
    ]
  }
}

@description('For role assignments.')
output hubNamespaceName string = namespace.name

@description('For private endpoints.')
output hubNamespaceId string = namespace.id

@description('options.namespace of the job file, such as flights.servicebus.windows.net.')
output hubHost string = split(split(namespace.properties.serviceBusEndpoint, '/')[2], ':')[0]
