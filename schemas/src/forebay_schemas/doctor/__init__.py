"""Checks shared by both doctors: brokers, topics, permissions, clock, network, Schema Registry; and their findings.
kafka and registry ask, with a time limit; the other modules judge, purely. May import every other room. The main
thread."""
