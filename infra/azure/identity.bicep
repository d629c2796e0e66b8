// The processors' identity. User-assigned: it exists before the first processor starts and outlives every revision, so
// its roles count by the time they are needed.

@description('Where the identity is.')
param location string

@description('The identity\'s name.')
param identityName string

@description('The issuer of an AKS cluster\'s tokens, for the manifests in infra/kubernetes: az aks show --query oidcIssuerProfile.issuerUrl. Empty: no cluster.')
param clusterIssuer string = ''

@description('The service account that may use the identity, as namespace:name.')
param clusterServiceAccount string = 'samza-azure:samza-azure'

resource identity 'Microsoft.ManagedIdentity/userAssignedIdentities@2024-11-30' = {
  name: identityName
  location: location
}

resource federation 'Microsoft.ManagedIdentity/userAssignedIdentities/federatedIdentityCredentials@2024-11-30' = if (!empty(clusterIssuer)) {
  parent: identity
  name: 'kubernetes'
  properties: {
    issuer: clusterIssuer
    subject: 'system:serviceaccount:${clusterServiceAccount}'
    audiences: [
      'api://AzureADTokenExchange'
    ]
  }
}

@description('What compute is given.')
output identityId string = identity.id

@description('What roles are assigned to.')
output principalId string = identity.properties.principalId

@description('AZURE_CLIENT_ID: with a user-assigned identity azure-identity has to know which one.')
output clientId string = identity.properties.clientId
