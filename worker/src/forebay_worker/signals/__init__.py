"""Readings from engine and GPU: sources, the poller, readings with their age; NVML in a child process.

Reaches the engine's metrics page, Prometheus and NVML. May import no other room. Tasks of the event loop.
"""
