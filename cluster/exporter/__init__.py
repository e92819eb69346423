"""The exporter: reports of brokers, feedback processes and the supervisor as metrics for Prometheus.

``table.py`` lists every metric with its alerts and its panel. The alert rules, the Grafana board and
docs/metrics.md are generated from it. Read ``table`` first, then ``looking``.
"""
