"""What a worker asks of Kafka as a whole: whether topics and permissions will do, and the brokers' time.

startup asks brokers; broker_clock only reads stamps. May import nothing of this package. The event loop.
"""
