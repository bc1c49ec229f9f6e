"""What starts, when, and what becomes of it: lanes against gate, breaker, overload ladder, lookahead.

May import outcome, lanes, pacing, request and below; no I/O of its own. The event loop.
"""
