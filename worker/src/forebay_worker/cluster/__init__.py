"""What a worker asks of Kafka as a whole: whether topics and permissions will do, and the brokers' time.

startup asks brokers on the event loop's threads, topic_watch on a thread of its own; broker_clock only reads stamps.
May import nothing of this package.
"""
