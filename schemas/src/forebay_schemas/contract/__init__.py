"""What all deployables and foreign clients agree on: envelope, tiers, topics, headers, results, notices, reasons.

Pure: no I/O, no clock of its own. May import only errors and clock. Any thread.
"""
