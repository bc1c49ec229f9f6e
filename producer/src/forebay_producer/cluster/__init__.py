"""What the cluster says of a pool: its topics, committed offsets, what waits in each tier and how old it is.

Asks brokers; changes nothing but topics. May import errors alone. Callers' threads.
"""
