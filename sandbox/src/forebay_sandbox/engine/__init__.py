"""The simulated engine: continuous batching as a step function, OpenAI's API over it, faults to order.

A server in a process of its own; physics, protocol and faults are pure. May import no other room.
"""
