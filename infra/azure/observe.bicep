// Logs, metrics, who is told, and the alerts. Each alert links its section of docs/operate.md.

@description('Where they are.')
param location string

@description('What the names of these resources begin with.')
param name string

@description('The storage account that the alerts look at.')
param accountId string

@description('Who gets the mails.')
param emails array

@description('Where docs/operate.md is served.')
param runbook string

@description('Days for which logs and metrics are kept.')
@minValue(30)
@maxValue(730)
param retentionDays int = 30

@description('Whether the processors send metrics to Application Insights. Without them only the alerts of the account and of the compute can work, and the others are not made.')
param telemetry bool

@description('How many processors there should be.')
param processors int

// What AppMetrics holds is sent once a minute, so no rule here is quicker than that. Prometheus is.
// Queries read the column Sum: of a gauge the exporter sends a value and a count of 1, and neither Max nor Min
// (azure-monitor-opentelemetry-exporter 1.0.0b58, _convert_point_to_envelope; those two are for histograms).
var metricRules = telemetry ? [
  {
    name: 'no-leader'
    severity: 0
    text: 'No processor has led for five minutes: nothing is assigned, and the dead are not replaced.'
    query: 'AppMetrics | where Name == "samza_azure.leader" and Sum >= 1'
    operator: 'LessThan'
    threshold: 1
    window: 'PT5M'
    periods: 1
  }
  {
    name: 'tasks-not-running'
    severity: 1
    text: 'Tasks of the group do not run, in three of the last five minutes.'
    // As the leader tells, so that the tasks of a dead owner count. All others say 0.
    query: 'AppMetrics | where Name in ("samza_azure.group.tasks", "samza_azure.group.tasks.running") | summarize tasks = maxif(Sum, Name == "samza_azure.group.tasks"), running = maxif(Sum, Name == "samza_azure.group.tasks.running") by bin(TimeGenerated, 1m) | where running < tasks | summarize minutes = count() | where minutes >= 3'
    operator: 'GreaterThan'
    threshold: 0
    window: 'PT5M'
    periods: 1
  }
  {
    name: 'processors-missing'
    severity: 2
    text: 'For ten minutes there have been fewer processors than were deployed.'
    // A row for each processor that the leader counted, so that the rows are compared with the number wanted.
    query: 'AppMetrics | where Name == "samza_azure.group.members" | summarize members = toint(max(Sum)) | mv-expand processor = range(1, members)'
    operator: 'LessThan'
    threshold: processors
    window: 'PT10M'
    periods: 1
  }
  {
    name: 'run-failed'
    severity: 0
    text: 'The run has failed: a task could not be run anywhere.'
    query: 'AppMetrics | where Name == "samza_azure.run.failed" and Sum >= 1'
    operator: 'GreaterThan'
    threshold: 0
    window: 'PT5M'
    periods: 1
  }
  {
    name: 'watermark-old'
    severity: 1
    text: 'Event time of a stage is more than ten minutes behind.'
    query: 'AppMetrics | where Name == "samza_azure.task.watermark.age" and Sum >= 600'
    operator: 'GreaterThan'
    threshold: 0
    window: 'PT5M'
    periods: 1
  }
  {
    name: 'lag-long'
    severity: 2
    text: 'A stream is read more than ten minutes behind what comes in outside.'
    query: 'AppMetrics | where Name == "samza_azure.partition.lag" and Sum > 600'
    operator: 'GreaterThan'
    threshold: 0
    window: 'PT5M'
    periods: 2
  }
  {
    name: 'lag-grows'
    severity: 2
    text: 'What is not read of a stream outside has grown for a quarter of an hour.'
    // By stream, over all partitions: from each five minutes to the next.
    query: 'AppMetrics | where Name == "samza_azure.partition.lag.rows" | summarize rows = max(Sum) by stream = tostring(Properties.stream), partition = tostring(Properties.partition), minute = bin(TimeGenerated, 1m) | summarize rows = sum(rows) by stream, minute | summarize rows = avg(rows) by stream, part = bin(minute, 5m) | order by stream asc, part asc | extend grows = stream != prev(stream) or rows > prev(rows) | summarize parts = count(), growing = countif(grows) by stream | where parts >= 3 and growing == parts'
    operator: 'GreaterThan'
    threshold: 0
    window: 'PT15M'
    periods: 1
  }
  {
    name: 'readers-behind'
    severity: 2
    text: 'A stream from outside waits for its readers most of the time, and little of it is read.'
    query: 'AppMetrics | where Name == "samza_azure.tasks.waiting_for_readers" | summarize tasks = max(Sum) by stage = tostring(Properties.stage), bin(TimeGenerated, 1m) | summarize minutes = countif(tasks >= 1) by stage | where minutes > 10'
    operator: 'GreaterThan'
    threshold: 0
    window: 'PT15M'
    periods: 1
  }
  {
    name: 'source-warns'
    severity: 2
    text: 'A stream from outside is read, and something there needs people. The status says what.'
    query: 'AppMetrics | where Name == "samza_azure.tasks.warned" | summarize tasks = max(Sum) by stage = tostring(Properties.stage), bin(TimeGenerated, 1m) | summarize minutes = countif(tasks >= 1) by stage | where minutes >= 5'
    operator: 'GreaterThan'
    threshold: 0
    window: 'PT15M'
    periods: 1
  }
  {
    name: 'access-denied'
    severity: 1
    text: 'The account refuses what it allowed before. Processors end with code 5 after two minutes of it.'
    query: 'AppMetrics | where Name == "samza_azure.access.denied" and Sum > 30'
    operator: 'GreaterThan'
    threshold: 0
    window: 'PT5M'
    periods: 1
  }
  {
    name: 'heartbeats-late'
    severity: 2
    text: 'Heartbeats are accepted late: a processor that lives may soon be considered dead.'
    // Three quarters of the timeout of the profile default; of eco it is 15 s, and fast pauses long before.
    query: 'AppMetrics | where Name == "samza_azure.heartbeat.age" and Sum > 6'
    operator: 'GreaterThan'
    threshold: 0
    window: 'PT5M'
    periods: 2
  }
  {
    name: 'leader-changes'
    severity: 2
    text: 'Leadership was taken over more than twice in a quarter of an hour.'
    query: 'AppMetrics | where Name == "samza_azure.failovers" | summarize failovers = sum(Sum) | where failovers > 2'
    operator: 'GreaterThan'
    threshold: 0
    window: 'PT15M'
    periods: 1
  }
  {
    name: 'clean-up-kept'
    severity: 3
    text: 'Blobs of drained runs cannot be deleted: a policy or a hold keeps them, and they cost.'
    query: 'AppMetrics | where Name == "samza_azure.clean_up.kept" and Sum >= 1'
    operator: 'GreaterThan'
    threshold: 0
    window: 'PT1H'
    periods: 1
  }
] : []

resource workspace 'Microsoft.OperationalInsights/workspaces@2025-07-01' = {
  name: '${name}-logs'
  location: location
  properties: {
    sku: {
      name: 'PerGB2018'
    }
    retentionInDays: retentionDays
    features: {
      disableLocalAuth: true
    }
  }
}

resource insights 'Microsoft.Insights/components@2020-02-02' = {
  name: '${name}-insights'
  location: location
  kind: 'other'
  properties: {
    Application_Type: 'other'
    WorkspaceResourceId: workspace.id
    // Senders show a token of theirs; the connection string is an address and no key.
    DisableLocalAuth: true
  }
}

resource people 'Microsoft.Insights/actionGroups@2023-01-01' = {
  name: '${name}-people'
  location: 'global'
  properties: {
    groupShortName: take(name, 12)
    enabled: true
    emailReceivers: [for (email, index) in emails: {
      name: 'mail-${index}'
      emailAddress: email
      useCommonAlertSchema: true
    }]
  }
}

resource onMetrics 'Microsoft.Insights/scheduledQueryRules@2023-12-01' = [for rule in metricRules: {
  name: '${name}-${rule.name}'
  location: location
  kind: 'LogAlert'
  properties: {
    displayName: '${name}: ${rule.name}'
    description: '${rule.text} ${runbook}#${rule.name}'
    severity: rule.severity
    enabled: true
    scopes: [
      workspace.id
    ]
    evaluationFrequency: rule.window == 'PT1H' ? 'PT15M' : 'PT1M'
    windowSize: rule.window
    criteria: {
      allOf: [
        {
          query: rule.query
          timeAggregation: 'Count'
          operator: rule.operator
          threshold: rule.threshold
          failingPeriods: {
            numberOfEvaluationPeriods: rule.periods
            minFailingPeriodsToAlert: rule.periods
          }
        }
      ]
    }
    autoMitigate: true
    // The workspace knows the table only after the first metric has come.
    skipQueryValidation: true
    actions: {
      actionGroups: [
        people.id
      ]
      customProperties: {
        runbook: '${runbook}#${rule.name}'
      }
    }
  }
}]

resource throttled 'Microsoft.Insights/metricAlerts@2018-03-01' = {
  name: '${name}-storage-throttled'
  location: 'global'
  properties: {
    description: 'The storage account refuses calls because there are too many of them. ${runbook}#storage-throttled'
    severity: 2
    enabled: true
    scopes: [
      accountId
    ]
    evaluationFrequency: 'PT1M'
    windowSize: 'PT5M'
    criteria: {
      'odata.type': 'Microsoft.Azure.Monitor.SingleResourceMultipleMetricCriteria'
      allOf: [
        {
          criterionType: 'StaticThresholdCriterion'
          name: 'throttled'
          metricNamespace: 'Microsoft.Storage/storageAccounts'
          metricName: 'Transactions'
          dimensions: [
            {
              name: 'ResponseType'
              operator: 'Include'
              values: [
                'ServerBusyError'
                'ClientThrottlingError'
                'ClientAccountRequestThrottlingError'
                'ClientAccountBandwidthThrottlingError'
              ]
            }
          ]
          timeAggregation: 'Total'
          operator: 'GreaterThan'
          threshold: 20
        }
      ]
    }
    actions: [
      {
        actionGroupId: people.id
      }
    ]
  }
}

resource unavailable 'Microsoft.Insights/metricAlerts@2018-03-01' = {
  name: '${name}-storage-unavailable'
  location: 'global'
  properties: {
    description: 'The storage account fails calls. Work pauses and goes on by itself. ${runbook}#storage-unavailable'
    severity: 1
    enabled: true
    scopes: [
      accountId
    ]
    evaluationFrequency: 'PT1M'
    windowSize: 'PT5M'
    criteria: {
      'odata.type': 'Microsoft.Azure.Monitor.SingleResourceMultipleMetricCriteria'
      allOf: [
        {
          criterionType: 'StaticThresholdCriterion'
          name: 'availability'
          metricNamespace: 'Microsoft.Storage/storageAccounts'
          metricName: 'Availability'
          timeAggregation: 'Average'
          operator: 'LessThan'
          threshold: 99
        }
      ]
    }
    actions: [
      {
        actionGroupId: people.id
      }
    ]
  }
}

resource slow 'Microsoft.Insights/metricAlerts@2018-03-01' = {
  name: '${name}-storage-slow'
  location: 'global'
  properties: {
    description: 'Calls to the storage account take more than half a second on average. ${runbook}#storage-slow'
    severity: 2
    enabled: true
    scopes: [
      accountId
    ]
    evaluationFrequency: 'PT5M'
    windowSize: 'PT15M'
    criteria: {
      'odata.type': 'Microsoft.Azure.Monitor.SingleResourceMultipleMetricCriteria'
      allOf: [
        {
          criterionType: 'StaticThresholdCriterion'
          name: 'latency'
          metricNamespace: 'Microsoft.Storage/storageAccounts'
          metricName: 'SuccessE2ELatency'
          timeAggregation: 'Average'
          operator: 'GreaterThan'
          threshold: 500
        }
      ]
    }
    actions: [
      {
        actionGroupId: people.id
      }
    ]
  }
}

@description('Where logs go.')
output workspaceId string = workspace.id

@description('For the role that lets processors send metrics.')
output insightsName string = insights.name

@description('Where metrics go.')
output insightsConnection string = insights.properties.ConnectionString

@description('Who is told.')
output actionGroupId string = people.id
