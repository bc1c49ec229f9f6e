"""Admission: refuses a request before it is sent when it would wait in vain. May import cluster, settings and errors.
Decisions are pure, in callers' threads; a thread of its own reads the pool's load.
"""
