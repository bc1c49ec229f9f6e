"""`forebay dead-letters`: list, show, history, replay, discard, export.

Reads arguments, writes to stdout and stderr. May import cli's shared modules, dead_letters and below. The main thread.
"""
