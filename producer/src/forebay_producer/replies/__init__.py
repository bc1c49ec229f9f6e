"""The way back to a client: which partition of results a replica follows, and pieces of streamed answers as they come.
May import the cluster room. Threads of its own read Kafka; the rest is pure."""
