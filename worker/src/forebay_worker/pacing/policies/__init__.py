"""The pacing policies: ended requests and readings go in, a limit comes out; and the parts that several of them share.

Pure. May import the policy protocol. The event loop.
"""
