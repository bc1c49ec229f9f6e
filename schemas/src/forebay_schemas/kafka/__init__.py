"""Kafka apart from our topics: client settings, errors as text, permissions, topic drift. Makes clients and asks
brokers. May import contract, errors, clock and properties. Any thread; librdkafka calls watch."""
