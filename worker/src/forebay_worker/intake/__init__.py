"""From Kafka to lanes: consume, decode, sort, park, hand on; partitions as they come and go; commits.

Reaches Kafka through protocols. Imports request, partition, lanes' bounds and credit. A thread for each consumer.
"""
