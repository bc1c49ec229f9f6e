"""Shared by the tests: a pool on a real broker, worker processes, and the outcomes of requests."""
