"""A worker's life: wait for Kafka, learn its time, start the threads, turn, drain, end.

Runs the parts that wiring made; decides nothing about requests. May import wiring and below. The main thread and its
event loop.
"""
