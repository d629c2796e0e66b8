// A network of the fleet's own, where one is wanted: for virtual machines, a Spark cluster, and private endpoints.

@description('Where the network is.')
param location string

@description('What the names of these resources begin with.')
param name string

@description('The account that gets private endpoints. Empty: none.')
param accountId string = ''

@description('The Event Hubs namespace that gets a private endpoint. Empty: none.')
param hubNamespaceId string = ''

@description('Its host, such as flights.servicebus.windows.net.')
param hubHost string = ''

@description('Whether the processors\' subnet is for Container Apps, which want it delegated, or for virtual machines.')
param forContainerApps bool

@description('The address space, a /16. The subnets are cut from it.')
param addressPrefix string = '10.64.0.0/16'

var privateNetwork = !empty(accountId)
var processorsRange = cidrSubnet(addressPrefix, 22, 0)
var workersRange = cidrSubnet(addressPrefix, 22, 1)
// A fleet reads and writes blobs and rows; a private endpoint is for one of the two.
var services = privateNetwork ? [
  'blob'
  'table'
] : []

// environment() does not know the suffix of Event Hubs, but the namespace does.
var hubSuffix = empty(hubHost) ? '' : substring(hubHost, indexOf(hubHost, '.') + 1)

// Without rules: nothing from the internet is let in by default. Bells, and executors, come from within the network.
resource guard 'Microsoft.Network/networkSecurityGroups@2024-10-01' = {
  name: '${name}-nsg'
  location: location
}

// Who reaches a master or a worker may run programs there: only the two subnets may. Executors take any free port.
resource ofCluster 'Microsoft.Network/networkSecurityGroups@2024-10-01' = {
  name: '${name}-cluster-nsg'
  location: location
  properties: {
    securityRules: [
      {
        name: 'cluster'
        properties: {
          priority: 100
          direction: 'Inbound'
          access: 'Allow'
          protocol: 'Tcp'
          sourceAddressPrefixes: [
            processorsRange
            workersRange
          ]
          sourcePortRange: '*'
          destinationAddressPrefix: '*'
          destinationPortRange: '*'
        }
      }
      {
        // Nor a bastion: whoever logs in to a worker allows port 22 from its subnet, above this.
        name: 'nobody-else'
        properties: {
          priority: 200
          direction: 'Inbound'
          access: 'Deny'
          protocol: '*'
          sourceAddressPrefix: 'VirtualNetwork'
          sourcePortRange: '*'
          destinationAddressPrefix: '*'
          destinationPortRange: '*'
        }
      }
    ]
  }
}

resource address 'Microsoft.Network/publicIPAddresses@2024-10-01' = if (!forContainerApps) {
  name: '${name}-nat-ip'
  location: location
  sku: {
    name: 'Standard'
  }
  properties: {
    publicIPAllocationMethod: 'Static'
  }
}

// Machines of a flexible scale set have no way out by default.
resource nat 'Microsoft.Network/natGateways@2024-10-01' = if (!forContainerApps) {
  name: '${name}-nat'
  location: location
  sku: {
    name: 'Standard'
  }
  properties: {
    publicIpAddresses: [
      {
        id: address.id
      }
    ]
  }
}

resource network 'Microsoft.Network/virtualNetworks@2024-10-01' = {
  name: '${name}-vnet'
  location: location
  properties: {
    addressSpace: {
      addressPrefixes: [
        addressPrefix
      ]
    }
    subnets: [
      {
        name: 'processors'
        properties: {
          addressPrefix: processorsRange
          networkSecurityGroup: {
            id: guard.id
          }
          natGateway: forContainerApps ? null : {
            id: nat.id
          }
          delegations: forContainerApps ? [
            {
              name: 'container-apps'
              properties: {
                serviceName: 'Microsoft.App/environments'
              }
            }
          ] : []
        }
      }
      {
        name: 'workers'
        properties: {
          addressPrefix: workersRange
          networkSecurityGroup: {
            id: ofCluster.id
          }
          natGateway: forContainerApps ? null : {
            id: nat.id
          }
        }
      }
      {
        name: 'endpoints'
        properties: {
          addressPrefix: cidrSubnet(addressPrefix, 24, 255)
          privateEndpointNetworkPolicies: 'Disabled'
        }
      }
    ]
  }
}

resource zones 'Microsoft.Network/privateDnsZones@2024-06-01' = [for service in services: {
  name: 'privatelink.${service}.${environment().suffixes.storage}'
  location: 'global'
}]

resource links 'Microsoft.Network/privateDnsZones/virtualNetworkLinks@2024-06-01' = [for (service, index) in services: {
  parent: zones[index]
  name: '${name}-${service}'
  location: 'global'
  properties: {
    registrationEnabled: false
    virtualNetwork: {
      id: network.id
    }
  }
}]

resource endpoints 'Microsoft.Network/privateEndpoints@2024-10-01' = [for service in services: {
  name: '${name}-${service}'
  location: location
  properties: {
    subnet: {
      id: '${network.id}/subnets/endpoints'
    }
    privateLinkServiceConnections: [
      {
        name: service
        properties: {
          privateLinkServiceId: accountId
          groupIds: [
            service
          ]
        }
      }
    ]
  }
}]

resource records 'Microsoft.Network/privateEndpoints/privateDnsZoneGroups@2024-10-01' = [for (service, index) in services: {
  parent: endpoints[index]
  name: 'default'
  properties: {
    privateDnsZoneConfigs: [
      {
        name: service
        properties: {
          privateDnsZoneId: zones[index].id
        }
      }
    ]
  }
}]

resource hubZone 'Microsoft.Network/privateDnsZones@2024-06-01' = if (!empty(hubNamespaceId)) {
  name: 'privatelink.${hubSuffix}'
  location: 'global'
}

resource hubLink 'Microsoft.Network/privateDnsZones/virtualNetworkLinks@2024-06-01' = if (!empty(hubNamespaceId)) {
  parent: hubZone
  name: '${name}-hubs'
  location: 'global'
  properties: {
    registrationEnabled: false
    virtualNetwork: {
      id: network.id
    }
  }
}

resource hubEndpoint 'Microsoft.Network/privateEndpoints@2024-10-01' = if (!empty(hubNamespaceId)) {
  name: '${name}-hubs'
  location: location
  properties: {
    subnet: {
      id: '${network.id}/subnets/endpoints'
    }
    privateLinkServiceConnections: [
      {
        name: 'namespace'
        properties: {
          privateLinkServiceId: hubNamespaceId
          groupIds: [
            'namespace'
          ]
        }
      }
    ]
  }
}

resource hubRecords 'Microsoft.Network/privateEndpoints/privateDnsZoneGroups@2024-10-01' = if (!empty(hubNamespaceId)) {
  parent: hubEndpoint
  name: 'default'
  properties: {
    privateDnsZoneConfigs: [
      {
        name: 'namespace'
        properties: {
          privateDnsZoneId: hubZone.id
        }
      }
    ]
  }
}

@description('Where processors are put.')
output subnetId string = '${network.id}/subnets/processors'

@description('Where workers of a Spark cluster are put, and its master.')
output workersSubnetId string = '${network.id}/subnets/workers'
