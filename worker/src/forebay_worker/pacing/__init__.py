"""How many requests may be in flight: the gate, the model of the engine, predictions and their accuracy.

Pure. May import request and signals' readings. The event loop.
"""
