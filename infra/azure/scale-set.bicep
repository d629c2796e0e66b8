// Processors on virtual machines, one each, or workers of a Spark cluster: some at the regular price, the rest as spot
// machines. Azure announces an eviction 30 s ahead, in Scheduled Events, which host.notices and the unit of a worker read.
// If the machine is shut down in order, systemd sends SIGTERM and the processor hands over its tasks; otherwise its
// heartbeats stop and the leader gives its tasks to others.

@description('Where the machines are.')
param location string

@description('The scale set\'s name.')
param name string

@description('The job\'s name on the machines: /etc/samza-azure/NAME/job.toml.')
param jobName string

@description('The blob in the container releases that the machines install: a .tar.gz with samza_azure-*.whl, constraints.txt and job/.')
param release string

@description('The cluster whose workers run here, such as spark://10.64.4.4:7077. Empty: processors run here.')
param master string = ''

@description('The size of a machine.')
param vmSize string = 'Standard_D2as_v6'

@description('How many machines there are, spot machines included.')
@minValue(1)
@maxValue(1000)
param processors int = 3

@description('How many of them are never evicted. The fleet then always has somebody who leads.')
@minValue(0)
param regularProcessors int = 1

@description('The machines\' identity. Its roles have to be assigned before they start.')
param identityId string

@description('The identity\'s client id.')
param clientId string

@description('The account\'s blob endpoint.')
param accountUrl string

@description('The host of the Event Hubs namespace. Empty: none.')
param hubHost string = ''

@description('The subnet of network.bicep, with a way out to the packages\' registries.')
param subnetId string

@description('The public key of whoever logs in through a bastion. There is no password, and no address from outside.')
param sshPublicKey string

@description('processor.port of the job file, where health is asked for. The unit of a worker has a port of its own.')
param port int = 8080

@description('Zones that the machines are spread over.')
param zones array = [
  '1'
  '2'
  '3'
]

var adminName = 'azureuser'
var unitName = empty(master) ? 'samza-azure' : 'samza-azure-worker'
var ofProcessor = loadFileAsBase64('../systemd/samza-azure@.service')
var ofWorker = loadFileAsBase64('../systemd/samza-azure-worker@.service')
var named = replace(loadTextContent('cloud-init.yaml'), '{unitName}', unitName)
var withUnit = replace(named, '{unit}', empty(master) ? ofProcessor : ofWorker)
var withAccount = replace(replace(withUnit, '{clientId}', clientId), '{accountUrl}', accountUrl)
var withHubs = replace(replace(withAccount, '{hubHost}', hubHost), '{master}', master)
var withExtras = replace(withHubs, '{extras}', empty(hubHost) ? '' : ',eventhubs')
var cloudInit = replace(replace(withExtras, '{release}', release), '{jobName}', jobName)

resource machines 'Microsoft.Compute/virtualMachineScaleSets@2025-04-01' = {
  name: name
  location: location
  zones: zones
  sku: {
    name: vmSize
    capacity: processors
  }
  identity: {
    type: 'UserAssigned'
    userAssignedIdentities: {
      '${identityId}': {}
    }
  }
  properties: {
    orchestrationMode: 'Flexible'
    platformFaultDomainCount: 1
    // New machines get the new release; the old ones stay until somebody replaces them. See docs/operate.md.
    upgradePolicy: {
      mode: 'Manual'
    }
    // No spotRestorePolicy: the types have it, but Azure refuses it with a flexible scale set (azure-cli#29461). An evicted
    // machine comes back when somebody sets the capacity again. See processors-missing in docs/operate.md.
    priorityMixPolicy: {
      baseRegularPriorityCount: regularProcessors
      regularPriorityPercentageAboveBase: 0
    }
    // An unhealthy machine is replaced. The grace period, 10 to 90 minutes, is for those that are new or were just changed
    // by Azure: the first start installs Java and the release. A processor that hangs is systemd's business.
    automaticRepairsPolicy: {
      enabled: true
      gracePeriod: 'PT30M'
      repairAction: 'Replace'
    }
    virtualMachineProfile: {
      priority: 'Spot'
      // Nothing on the disk is needed again, and a deallocated machine's disk is paid for.
      evictionPolicy: 'Delete'
      billingProfile: {
        // Up to the regular price: evicted for want of machines only.
        maxPrice: -1
      }
      // A deletion by the scale set is announced, too, and begins sooner if the processor approves it.
      scheduledEventsProfile: {
        terminateNotificationProfile: {
          enable: true
          notBeforeTimeout: 'PT5M'
        }
      }
      osProfile: {
        computerNamePrefix: take(name, 9)
        adminUsername: adminName
        customData: base64(cloudInit)
        linuxConfiguration: {
          disablePasswordAuthentication: true
          ssh: {
            publicKeys: [
              {
                path: '/home/${adminName}/.ssh/authorized_keys'
                keyData: sshPublicKey
              }
            ]
          }
        }
      }
      securityProfile: {
        securityType: 'TrustedLaunch'
        uefiSettings: {
          secureBootEnabled: true
          vTpmEnabled: true
        }
      }
      storageProfile: {
        imageReference: {
          publisher: 'Debian'
          offer: 'debian-12'
          sku: '12-gen2'
          version: 'latest'
        }
        osDisk: {
          createOption: 'FromImage'
          caching: 'ReadWrite'
          diskSizeGB: 64
          deleteOption: 'Delete'
          managedDisk: {
            storageAccountType: 'StandardSSD_LRS'
          }
        }
      }
      networkProfile: {
        networkApiVersion: '2022-11-01'
        networkInterfaceConfigurations: [
          {
            name: 'network'
            properties: {
              primary: true
              enableAcceleratedNetworking: true
              deleteOption: 'Delete'
              ipConfigurations: [
                {
                  name: 'address'
                  properties: {
                    primary: true
                    subnet: {
                      id: subnetId
                    }
                  }
                }
              ]
            }
          }
        ]
      }
      extensionProfile: {
        extensions: [
          {
            name: 'health'
            properties: {
              publisher: 'Microsoft.ManagedServices'
              type: 'ApplicationHealthLinux'
              // By the status alone. 2.0 wants a body with ApplicationHealthState, and without one no machine is healthy.
              typeHandlerVersion: '1.0'
              autoUpgradeMinorVersion: true
              settings: {
                protocol: 'http'
                port: empty(master) ? port : 8090
                requestPath: empty(master) ? '/livez' : '/decommission'
                intervalInSeconds: 10
                numberOfProbes: 6
              }
            }
          }
        ]
      }
    }
  }
}

@description('The scale set, for az vmss.')
output scaleSetName string = machines.name
