"""The command `forebay`, one module a command; options, output and errors that commands share.

Reads arguments and stdin, writes to stdout and stderr. Imports every other room. The main thread.
"""
