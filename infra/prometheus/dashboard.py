"""A dashboard for Grafana: `python -m infra.prometheus.dashboard > dashboard.json`, then import that.

Top to bottom: is it healthy, does it keep up, who does the work, how is the account. A fleet is a scrape job, as in
`rules.yml`, and each panel shows all fleets. Each panel is one query on what `/metrics` serves;
`tests/prove/dashboard.py` asks a Prometheus that scrapes a live fleet with Spark for each of them.
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


#: 0 for a fleet of the last hour that is gone, since its series are gone as well; 0 if there was none.
LEADERS = (
    "max by (job) (samza_azure_leader) or 0 * group by (job) (last_over_time(samza_azure_leader[1h]))"
    " or (absent(last_over_time(samza_azure_leader[1h])) - 1)"
)

ROWS: dict[str, tuple[Panel, ...]] = {
    "Healthy?": (
        Panel("Leaders", LEADERS, kind="stat", at_least=1),
        Panel("Processors", "max by (job) (samza_azure_group_members)", kind="stat", at_least=1),
        Panel("Tasks", "max by (job) (samza_azure_group_tasks)", kind="stat"),
        Panel("Tasks that run", "max by (job) (samza_azure_group_tasks_running)", kind="stat", at_least=1),
        Panel("Drain step", "max by (job) (samza_azure_drain_step)", kind="stat"),
        Panel("Drain at this step since", "max by (job) (samza_azure_drain_age_seconds)", "s", kind="stat"),
        Panel("Failed", "max by (job) (samza_azure_run_failed)", kind="stat"),
    ),
    "Keeping up?": (
        Panel(
            "Rows to read before a drain flushes",
            "sum by (job, stage) (samza_azure_drain_rows)",
            legend="{{job}} {{stage}}",
        ),
        Panel(
            "Not read yet",
            "sum by (job, stream, stage) (samza_azure_stream_backlog_bytes)",
            "bytes",
            "{{job}} {{stream}} by {{stage}}",
        ),
        Panel(
            "Rows not read yet",
            "sum by (job, stream, stage) (samza_azure_stream_backlog_rows)",
            legend="{{job}} {{stream}} by {{stage}}",
        ),
        Panel(
            "Behind what comes in outside",
            "max by (job, stream) (samza_azure_partition_lag_seconds)",
            "s",
            "{{job}} {{stream}}",
        ),
        Panel(
            "Rows outside not read yet",
            "sum by (job, stream) (samza_azure_partition_lag_rows)",
            legend="{{job}} {{stream}}",
        ),
        Panel(
            "Tasks that wait for their readers",
            "sum by (job, stage) (samza_azure_tasks_waiting_for_readers)",
            legend="{{job}} {{stage}}",
        ),
        Panel(
            "Watermark age", "max by (job, stage) (samza_azure_task_watermark_age_seconds)", "s", "{{job}} {{stage}}"
        ),
        Panel(
            "Rows a second",
            "sum by (job, stage, direction) (rate(samza_azure_task_rows_total[1m]))",
            "ops",
            "{{job}} {{stage}} {{direction}}",
        ),
        Panel(
            "Bytes read a second",
            "sum by (job, stage) (rate(samza_azure_task_bytes_total[1m]))",
            "Bps",
            "{{job}} {{stage}}",
        ),
        Panel(
            "Batch, 95 of 100",
            "histogram_quantile(0.95, sum by (job, stage, le) "
            "(rate(samza_azure_task_batch_duration_seconds_bucket[5m])))",
            "s",
            "{{job}} {{stage}}",
        ),
    ),
    "Who works?": (
        Panel("Tasks by processor", "samza_azure_tasks_running", legend="{{job}} {{processor}}"),
        Panel("Memory of containers", "samza_azure_container_memory_bytes", "bytes", "{{job}} {{processor}}"),
        Panel(
            "Container restarts", "increase(samza_azure_container_restarts_total[15m])", legend="{{job}} {{processor}}"
        ),
        Panel("Heartbeat age", "samza_azure_heartbeat_age_seconds", "s", "{{job}} {{processor}}"),
        Panel(
            "Moves and take-overs",
            'label_replace(sum by (job) (increase(samza_azure_moves_total[5m])), "what", "moves", "", "")'
            ' or label_replace(sum by (job) (increase(samza_azure_failovers_total[5m])), "what", "take-overs", "", "")',
            legend="{{job}} {{what}}",
        ),
    ),
    "The account": (
        Panel(
            "Calls", "sum by (job, outcome) (rate(samza_azure_storage_calls_total[1m]))", "ops", "{{job}} {{outcome}}"
        ),
        Panel(
            "Heartbeat, 95 of 100",
            "histogram_quantile(0.95, sum by (job, le) (rate(samza_azure_heartbeat_latency_seconds_bucket[5m])))",
            "s",
            "{{job}}",
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
        "targets": [{"refId": "A", "expr": panel.query, "legendFormat": panel.legend or "{{job}}"}],
        "fieldConfig": {"defaults": {"unit": panel.unit, "thresholds": {"mode": "absolute", "steps": steps}}},
    }


if __name__ == "__main__":
    json.dump(dashboard(), sys.stdout, indent=2)
