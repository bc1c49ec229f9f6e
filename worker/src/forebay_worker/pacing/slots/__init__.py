"""A backend's slots among the workers that share it: by demand, highest tier first.

Pure. Imports nothing else. The event loop.
"""
