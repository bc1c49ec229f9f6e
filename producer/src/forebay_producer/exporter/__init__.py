"""`forebay exporter`: reads pools whether workers run or not, and shows backlog, age, workers and risk to Prometheus.

Asks brokers from a thread of its own, serves HTTP. May import cluster, metrics and errors.
"""
