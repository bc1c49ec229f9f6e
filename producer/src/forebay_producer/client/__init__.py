"""The client library: submit requests, await their outcomes, cancel and expedite. `Producer` is its face.

May import cluster, settings, errors and metrics. Callers' threads, and one that follows results.
"""
