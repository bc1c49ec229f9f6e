"""A whole Forebay on this machine: Kafka, engines, workers, exporter, Prometheus; an incident to practise on.

Starts and ends processes. May import kafka and engine.
"""
