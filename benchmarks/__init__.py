"""Forebay beside a raw Kafka loop of the same run: throughput, latency, memory. `make bench` runs it."""
