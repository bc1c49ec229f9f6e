"""The sources of the chart's dashboards: what one is, how it becomes Grafana's JSON, and pictures of them from a demo.

`python -m dashboards`, run in the parent folder, writes them. May import the sandbox. The main thread.
"""
