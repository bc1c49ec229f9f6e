"""Checks that both doctors share: brokers, topics, permissions, clock, network, Schema Registry; and their findings.

kafka and registry ask, within a time limit; the other modules judge what was seen, purely. May import every other room.
The main thread.
"""
