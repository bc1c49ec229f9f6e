"""The simulated engine: continuous batching as a step function, OpenAI's API over it, faults to order.

A server of its own process. physics, protocol and faults are pure.
"""
