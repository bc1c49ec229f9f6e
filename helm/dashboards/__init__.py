"""The sources of the chart's dashboards: what a dashboard is, and how it becomes Grafana's JSON.

`python -m dashboards FOLDER`, run in the parent folder, writes the files. Imports nothing of Forebay. The main thread.
"""
