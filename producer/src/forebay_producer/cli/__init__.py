"""The command `forebay`, one module a command; options, output and errors that commands share.

Reads arguments and stdin, writes to stdout and stderr. May import every other room. The main thread.
"""
