"""`forebay-worker doctor`: settings, Kafka, backend, GPU, handler and host, checked side by side.

Asks a real backend, NVML and brokers, within time limits. May import signals, execution and settings. The main thread.
"""
