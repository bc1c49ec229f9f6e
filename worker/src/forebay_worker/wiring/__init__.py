"""One wiring: `build` makes all parts of a worker from its settings and the `World` that it runs in.

Reads WorkerSettings and hands each part what it needs. May import every stage below. The main thread.
"""
