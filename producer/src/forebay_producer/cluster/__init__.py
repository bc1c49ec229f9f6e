"""A pool's state on the cluster: its topics, committed offsets, the backlog of each tier and its age. Asks brokers;
changes nothing but topics. May import errors alone. Callers' threads."""
