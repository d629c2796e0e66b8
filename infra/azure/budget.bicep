// A mail when the resource group costs more than was meant. Nothing is stopped by it.

@description('What the budget\'s name begins with.')
param name string

@description('Per month, in the currency of the bill.')
@minValue(1)
param amount int

@description('The first day of a month, such as 2026-12-01. Azure takes none that is past.')
param start string

@description('Who is told.')
param actionGroupId string

resource budget 'Microsoft.Consumption/budgets@2024-08-01' = {
  name: '${name}-budget'
  properties: {
    category: 'Cost'
    amount: amount
    timeGrain: 'Monthly'
    timePeriod: {
      startDate: start
    }
    notifications: {
      spent: {
        enabled: true
        operator: 'GreaterThan'
        threshold: 80
        thresholdType: 'Actual'
        contactEmails: []
        contactGroups: [
          actionGroupId
        ]
      }
      expected: {
        enabled: true
        operator: 'GreaterThan'
        threshold: 100
        thresholdType: 'Forecasted'
        contactEmails: []
        contactGroups: [
          actionGroupId
        ]
      }
    }
  }
}
