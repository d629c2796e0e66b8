"""A dashboard for Grafana: `python -m infra.prometheus.dashboard > dashboard.json`, then import that.

Top to bottom: is it healthy, does it keep up, who does the work, how is the account. Each panel is one query on what
`/metrics` serves; `tests/prove/dashboard.py` asks a Prometheus that scrapes a live fleet with Spark for each of them.
"""

import json
import sys
from dataclasses import dataclass
from typing import Any

WIDTH, HEIGHT = 24, 7


@dataclass(frozen=True, slots=True)
class Panel:
    """One query, what it is, and the unit by Grafana's name. With `at_least` a number that is less is red."""

    title: str
    query: str
    unit: str = "short"
    legend: str = ""
    kind: str = "timeseries"
    at_least: float | None = None


ROWS: dict[str, tuple[Panel, ...]] = {
    "Healthy?": (
        Panel("Leaders", "max(samza_azure_leader) or vector(0)", kind="stat", at_least=1),
        Panel("Processors", "max(samza_azure_group_members)", kind="stat", at_least=1),
        Panel("Tasks", "max(samza_azure_group_tasks)", kind="stat"),
        Panel("Tasks that run", "max(samza_azure_group_tasks_running)", kind="stat", at_least=1),
        Panel("Drain step", "max(samza_azure_drain_step)", kind="stat"),
        Panel("Drain at this step since", "max(samza_azure_drain_age_seconds)", "s", kind="stat"),
        Panel("Failed", "max(samza_azure_run_failed)", kind="stat"),
    ),
    "Keeping up?": (
        Panel("Rows to read before a drain flushes", "sum by (stage) (samza_azure_drain_rows)", legend="{{stage}}"),
        Panel("Not read yet", "sum by (stream) (samza_azure_stream_backlog_bytes)", "bytes", "{{stream}}"),
        Panel("Rows not read yet", "sum by (stream) (samza_azure_stream_backlog_rows)", legend="{{stream}}"),
        Panel("Watermark age", "max by (stage) (samza_azure_task_watermark_age_seconds)", "s", "{{stage}}"),
        Panel(
            "Rows a second",
            "sum by (stage, direction) (rate(samza_azure_task_rows_total[1m]))",
            "ops",
            "{{stage}} {{direction}}",
        ),
        Panel("Bytes read a second", "sum by (stage) (rate(samza_azure_task_bytes_total[1m]))", "Bps", "{{stage}}"),
        Panel(
            "Batch, 95 of 100",
            "histogram_quantile(0.95, sum by (stage, le) (rate(samza_azure_task_batch_duration_seconds_bucket[5m])))",
            "s",
            "{{stage}}",
        ),
    ),
    "Who works?": (
        Panel("Tasks by processor", "samza_azure_tasks_running", legend="{{processor}}"),
        Panel("Memory of containers", "samza_azure_container_memory_bytes", "bytes", "{{processor}}"),
        Panel("Container restarts", "increase(samza_azure_container_restarts_total[15m])", legend="{{processor}}"),
        Panel("Heartbeat age", "samza_azure_heartbeat_age_seconds", "s", "{{processor}}"),
        Panel(
            "Moves and take-overs",
            'label_replace(sum(increase(samza_azure_moves_total[5m])), "what", "moves", "", "")'
            ' or label_replace(sum(increase(samza_azure_failovers_total[5m])), "what", "take-overs", "", "")',
            legend="{{what}}",
        ),
    ),
    "The account": (
        Panel("Calls", "sum by (outcome) (rate(samza_azure_storage_calls_total[1m]))", "ops", "{{outcome}}"),
        Panel(
            "Heartbeat, 95 of 100",
            "histogram_quantile(0.95, sum by (le) (rate(samza_azure_heartbeat_latency_seconds_bucket[5m])))",
            "s",
            "waits",
        ),
    ),
}


def panels() -> list[Panel]:
    """All of them."""
    return [panel for row in ROWS.values() for panel in row]


def dashboard() -> dict[str, Any]:
    """What Grafana imports."""
    placed: list[dict[str, Any]] = []
    down = 0
    for title, row in ROWS.items():
        placed.append({"type": "row", "title": title, "gridPos": {"x": 0, "y": down, "w": WIDTH, "h": 1}})
        wide = WIDTH // len(row)
        for place, panel in enumerate(row):
            at = {"x": place * wide, "y": down + 1, "w": wide, "h": HEIGHT}
            placed.append({**_panel(panel), "id": len(placed), "gridPos": at})
        down += HEIGHT + 1
    return {
        "title": "samza_azure",
        "uid": "samza-azure",
        "schemaVersion": 39,
        "refresh": "10s",
        "time": {"from": "now-15m", "to": "now"},
        "templating": {"list": [{"name": "source", "type": "datasource", "query": "prometheus"}]},
        "panels": placed,
    }


def _panel(panel: Panel) -> dict[str, Any]:
    steps: list[dict[str, Any]] = [{"color": "text", "value": None}]
    if panel.at_least is not None:
        steps = [{"color": "red", "value": None}, {"color": "green", "value": panel.at_least}]
    return {
        "type": panel.kind,
        "title": panel.title,
        "datasource": {"type": "prometheus", "uid": "${source}"},
        "targets": [{"refId": "A", "expr": panel.query, "legendFormat": panel.legend or "__auto"}],
        "fieldConfig": {"defaults": {"unit": panel.unit, "thresholds": {"mode": "absolute", "steps": steps}}},
    }


if __name__ == "__main__":
    json.dump(dashboard(), sys.stdout, indent=2)
