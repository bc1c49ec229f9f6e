"""Decides what counts as an answer: status, content type and bytes of a backend in, completed or failed out.

Pure: no I/O, no clock; imports forebay_schemas, msgspec and the standard library alone. Runs on the event loop.
"""
