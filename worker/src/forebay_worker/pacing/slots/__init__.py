"""A backend's slots among the workers that share it: by demand, highest tier first.

Pure. May import nothing else. The event loop.
"""
