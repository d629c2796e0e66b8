"""Rules of alerts for Prometheus, their tests, and a dashboard for Grafana."""
