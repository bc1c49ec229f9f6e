"""Results, retries and dead letters: what each ending writes, and its delivery before it counts.

Reaches the Producer. May import request, telemetry, cluster. The event loop.
"""
