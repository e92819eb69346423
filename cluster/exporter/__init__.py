"""The exporter: what brokers, feedback processes and the supervisor tell, as Prometheus reads it.

``table.py`` has every metric with its alerts and panel; the alert rules, the Grafana board and the page on
metrics are made from it. Read ``table`` first, then ``looking``.
"""
