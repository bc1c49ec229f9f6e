"""`forebay dead-letters`: list, show, history, replay, discard, export.

Reads arguments, writes to stdout and stderr. Imports cli's shared modules, dead_letters and below. The main thread.
"""
