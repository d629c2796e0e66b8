"""The metrics of this process for Azure Monitor: what sends them to Application Insights, once a minute.

The exporter reads its own variables: the address of the component, and with `APPLICATIONINSIGHTS_AUTHENTICATION_STRING`
the identity whose token it shows. Logs and traces are not sent: a span for each storage call would be billed.
"""

import logging
import os
from typing import Any

from samza_azure.extras import INSIGHTS, to_install

__all__ = ["VARIABLE", "readers"]

log = logging.getLogger(__name__)

#: Names the component; without it nothing is sent.
VARIABLE = "APPLICATIONINSIGHTS_CONNECTION_STRING"


def readers() -> list[Any]:
    """What collects for Application Insights: nothing, if the variable is not set or the exporter is not installed."""
    if not os.environ.get(VARIABLE):
        return []
    # The exporter would report on itself to Microsoft, by a thread of its own, unless it is told not to.
    os.environ.setdefault("APPLICATIONINSIGHTS_STATSBEAT_DISABLED_ALL", "true")
    try:
        from azure.monitor.opentelemetry.exporter import AzureMonitorMetricExporter
        from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
    except ImportError as error:
        log.warning(
            "%s is set, and %s is not installed, so no metrics are sent to Azure Monitor. "
            "Run: %s, or remove the variable",
            VARIABLE,
            error.name,
            to_install(INSIGHTS),
        )
        return []
    # What could not be sent is not kept for later: the root may be read-only, and alerts ask for the present.
    exporter = AzureMonitorMetricExporter(disable_offline_storage=True)
    return [PeriodicExportingMetricReader(exporter, export_interval_millis=60_000, export_timeout_millis=10_000)]
