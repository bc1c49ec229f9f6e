"""Pacing in virtual time: the worker's policies in front of a simulated engine, against what any scheduler could do."""
