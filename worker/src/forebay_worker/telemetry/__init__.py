"""The worker's counters, and its OpenTelemetry spans of each request.

May import request. The event loop.
"""
