"""Checks of Kafka as a whole: topics, permissions, topic ids, and the brokers' time.

startup asks brokers on the event loop's threads, topic_watch on a thread of its own; broker_clock only reads stamps.
May import nothing of this package.
"""
