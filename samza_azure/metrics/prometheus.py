"""The metrics of this process, collected by an SDK of our own: for Prometheus and, if it is told to, Azure Monitor."""

from collections.abc import Callable
from functools import cache
from typing import Any

from opentelemetry.metrics import get_meter_provider, set_meter_provider

from samza_azure.errors import ConfigError
from samza_azure.extras import PROMETHEUS, to_install
from samza_azure.metrics.insights import readers

#: A machine may run several processors from one job file; each takes the first free port from the configured one on.
PORTS = 100


@cache
def _collect() -> bool:
    """Collect for them from now on. False if another SDK already collects this process's metrics."""
    from opentelemetry.exporter.prometheus import PrometheusMetricReader
    from opentelemetry.sdk.metrics import MeterProvider as Sdk

    if isinstance(get_meter_provider(), Sdk):
        return False
    set_meter_provider(Sdk([PrometheusMetricReader(), *readers()]))
    return True


def on_scrape() -> Callable[[], tuple[bytes, str] | None]:
    """A function to call at each scrape: it returns the metrics in Prometheus's format, and their content type.

    It returns None if the packages of the extra `metrics` are not installed, or if another SDK collects the metrics.
    """
    try:
        from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest

        shown = _collect()
    except ImportError:
        shown = False
    return (lambda: (generate_latest(), CONTENT_TYPE_PLAIN_0_0_4)) if shown else (lambda: None)


def serve(port: int, host: str = "127.0.0.1") -> int:
    """Serve this process's metrics to Prometheus, on the first free port from `port` on; 0: any. Return the port.

    Raise `ConfigError` if a package is missing, another SDK collects the metrics, or no port is free.
    """
    try:
        from prometheus_client import start_http_server

        shown = _collect()
    except ImportError as error:
        raise ConfigError(
            f"metrics.prometheus.port is set, and {error.name} is not installed. "
            f"Run: {to_install(PROMETHEUS)}, or remove the key."
        ) from error
    if not shown:
        raise ConfigError(
            "metrics.prometheus.port is set, but OpenTelemetry's SDK already sends this process's metrics somewhere "
            "else. Remove the key, or start without that SDK's environment variables."
        )
    for number in range(port, min(port + PORTS, 65536) if port else 1):
        try:
            server, _ = start_http_server(number, host)
            break
        except OSError as error:
            taken: Any = error
    else:
        raise ConfigError(
            f"metrics.prometheus.port is {port}, and no port from there on is free: {taken}. Set another one."
        )
    return int(server.server_port)
