"""What is known of Kafka apart from our topics: client settings, connection errors in words, permissions, topic drift.

Makes clients and asks brokers. May import contract, errors, clock and properties. Any thread; librdkafka's call watch.
"""
