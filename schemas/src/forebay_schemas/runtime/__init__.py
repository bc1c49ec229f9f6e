"""What a process needs around its work: entry point, settings, logs, metrics, tracing, errors of a port.

Reads the environment and files, writes to stderr. May import contract, formats and kafka. The main thread.
"""
