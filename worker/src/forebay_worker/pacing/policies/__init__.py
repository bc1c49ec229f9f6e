"""The pacing policies: what ended and what was read go in, a limit comes out; and what several of them share.

Pure. May import the policy protocol. The event loop.
"""
