"""Chaos on real parts: `python -m chaos` runs a pool on three brokers, breaks things by a seed, and counts what became
of what was accepted."""
