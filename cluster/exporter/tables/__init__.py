"""The rows of the table of metrics, one file for each subject; ``exporter/table.py`` joins them."""
