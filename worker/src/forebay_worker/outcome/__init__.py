"""Results, retries and dead letters: what each ending writes, and its delivery before it counts.

Reaches the Producer. Imports request, telemetry, cluster. The event loop.
"""
