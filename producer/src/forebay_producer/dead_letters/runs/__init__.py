"""Runs over dead letters: a lease among other runs, sending each replay once, the pace behind live traffic, the canary.

Writes to request topics and the audit topic. May import dead_letters, client and cluster. The command's thread.
"""
