"""The operations port: /livez /readyz /metrics /status; the status as people read it.

Serves HTTP; reads state, changes none. May import every stage below. A thread of its own, which asks the event loop.
"""
