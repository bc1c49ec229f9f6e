"""One attempt: the runners, the HTTP backend, the user's handler, a streamed answer as one.

Reaches the backend. May import dispatch and request. The event loop.
"""
