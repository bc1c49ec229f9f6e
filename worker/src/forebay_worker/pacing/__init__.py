"""How many requests may be in flight: the gate, the model of the engine, predictions, and how true they came.

Pure. May import request and signals' readings. The event loop.
"""
