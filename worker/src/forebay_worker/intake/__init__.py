"""From Kafka to lanes: consume, decode, sort, park, hand on; partitions as they come and go; commits.

Reaches Kafka through protocols. May import request, partition and cluster. A thread for each consumer.
"""
