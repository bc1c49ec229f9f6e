"""The contract among deployables and foreign clients: envelope, tiers, topics, headers, results, notices, reasons.
Pure: no I/O, no clock of its own. May import only errors and clock. Any thread."""
