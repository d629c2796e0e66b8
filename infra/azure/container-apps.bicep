// Processors as replicas of one container app, without ingress: nobody calls them, and they find each other through the
// storage account.

@description('Where the app is.')
param location string

@description('The app\'s name.')
param name string

@description('The image with the job in it: FROM samza-azure, COPY job.toml pipeline.py /job/.')
param image string

@description('The registry\'s server, for an image that is pulled by the identity. Empty: a public image.')
param registryServer string = ''

@description('The processors\' identity. Its roles have to be assigned before the app is deployed.')
param identityId string

@description('The identity\'s client id.')
param clientId string

@description('The account\'s blob endpoint.')
param accountUrl string

@description('The host of the Event Hubs namespace. Empty: none.')
param hubHost string = ''

@description('How many processors there are. The fleet spreads its tasks over them by itself.')
@minValue(1)
@maxValue(1000)
param processors int = 3

@description('vCPUs of a processor, and half of its GiB of memory: Consumption has no other ratio.')
@allowed([
  1
  2
  4
])
param cores int = 2

@description('processor.port of the job file, where health is asked for.')
param port int = 8080

@description('Whether replicas are spread over the zones of the region, for which the environment needs a subnet.')
param zoneRedundant bool = false

@description('The subnet of network.bicep. Empty: the platform\'s own network.')
param subnetId string = ''

@description('The Log Analytics workspace that takes the logs.')
param workspaceId string

@description('Application Insights\' connection string, which is an address and no key: the component takes tokens only. Empty: no metrics are sent.')
param insightsConnection string = ''

@description('Who is told when processors restart again and again.')
param actionGroupId string

@description('Where docs/operate.md is served, as a URL. Alerts link its sections.')
param runbook string

var telemetry = !empty(insightsConnection)
var identityVariables = [
  {
    name: 'AZURE_CLIENT_ID'
    value: clientId
  }
  {
    name: 'AZURE_STORAGE_ACCOUNT_URL'
    value: accountUrl
  }
  {
    name: 'EVENTHUBS_NAMESPACE'
    value: hubHost
  }
]
var telemetryVariables = [
  {
    name: 'APPLICATIONINSIGHTS_CONNECTION_STRING'
    value: insightsConnection
  }
  {
    name: 'APPLICATIONINSIGHTS_AUTHENTICATION_STRING'
    value: 'Authorization=AAD;ClientId=${clientId}'
  }
]

resource home 'Microsoft.App/managedEnvironments@2025-07-01' = {
  name: '${name}-environment'
  location: location
  properties: {
    appLogsConfiguration: {
      // Through the diagnostic setting below: the other way wants the workspace's key.
      destination: 'azure-monitor'
    }
    vnetConfiguration: empty(subnetId) ? null : {
      infrastructureSubnetId: subnetId
      internal: true
    }
    zoneRedundant: zoneRedundant && !empty(subnetId)
    workloadProfiles: [
      {
        name: 'Consumption'
        workloadProfileType: 'Consumption'
      }
    ]
  }
}

resource logs 'Microsoft.Insights/diagnosticSettings@2021-05-01-preview' = {
  scope: home
  name: 'logs'
  properties: {
    workspaceId: workspaceId
    logs: [
      {
        categoryGroup: 'allLogs'
        enabled: true
      }
    ]
  }
}

resource app 'Microsoft.App/containerApps@2025-07-01' = {
  name: name
  location: location
  identity: {
    type: 'UserAssigned'
    userAssignedIdentities: {
      '${identityId}': {}
    }
  }
  properties: {
    environmentId: home.id
    workloadProfileName: 'Consumption'
    configuration: {
      activeRevisionsMode: 'Single'
      registries: empty(registryServer) ? [] : [
        {
          server: registryServer
          identity: identityId
        }
      ]
    }
    template: {
      // task.shutdown.ms × 1.5 + 15 s for the default of 30 s. The documentation of the lifecycle names 30 s, and 60 to
      // 80 s of 600 were seen (azure-container-apps#1824), so set task.shutdown.ms = 15000: a task that is not released
      // is taken over anyway.
      terminationGracePeriodSeconds: 60
      containers: [
        {
          name: 'processor'
          image: image
          // An app starts again what exits, so a drained processor has to stay.
          args: [
            'run'
            '/job/job.toml'
            '--wait-for-upgrade'
          ]
          env: telemetry ? concat(identityVariables, telemetryVariables) : identityVariables
          resources: {
            cpu: cores
            memory: '${cores * 2}Gi'
          }
          volumeMounts: [
            {
              // processor.dir of the job file. It survives a container that is started again.
              volumeName: 'scratch'
              mountPath: '/var/lib/samza'
            }
          ]
          // Without ingress the platform has no defaults, and it knows no other probes than HTTP and TCP.
          probes: [
            {
              // Two minutes for the JVM's start; the platform takes no threshold above 10.
              type: 'Startup'
              httpGet: {
                path: '/livez'
                port: port
              }
              periodSeconds: 12
              timeoutSeconds: 5
              failureThreshold: 10
            }
            {
              // A minute: a machine that was frozen for some seconds is not dead.
              type: 'Liveness'
              httpGet: {
                path: '/livez'
                port: port
              }
              periodSeconds: 10
              timeoutSeconds: 5
              failureThreshold: 6
            }
            {
              type: 'Readiness'
              httpGet: {
                path: '/readyz'
                port: port
              }
              periodSeconds: 5
              timeoutSeconds: 5
              failureThreshold: 3
            }
          ]
        }
      ]
      // No rule: the fleet rebalances, and a replica that comes and goes costs a start of Java each time.
      scale: {
        minReplicas: processors
        maxReplicas: processors
      }
      volumes: [
        {
          name: 'scratch'
          storageType: 'EmptyDir'
        }
      ]
    }
  }
}

resource restarts 'Microsoft.Insights/metricAlerts@2018-03-01' = {
  name: '${name}-processor-restarts'
  location: 'global'
  properties: {
    // The metric counts since the replica was created, so this lasts until the replica is replaced, as by a new revision.
    description: 'A processor of ${name} was restarted more than three times since its replica was created. ${runbook}#processor-restarts'
    severity: 2
    enabled: true
    scopes: [
      app.id
    ]
    evaluationFrequency: 'PT5M'
    windowSize: 'PT15M'
    criteria: {
      'odata.type': 'Microsoft.Azure.Monitor.SingleResourceMultipleMetricCriteria'
      allOf: [
        {
          criterionType: 'StaticThresholdCriterion'
          name: 'restarts'
          metricNamespace: 'Microsoft.App/containerApps'
          metricName: 'RestartCount'
          timeAggregation: 'Maximum'
          operator: 'GreaterThan'
          threshold: 3
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

@description('The app, for az containerapp.')
output appName string = app.name
