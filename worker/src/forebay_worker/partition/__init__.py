"""One partition while it is ours: received, running and finished offsets, claims, credit for what may be handed on.

Pure but for the lock around claims. May import only bounds of this package. The intake's thread and the event loop.
"""
