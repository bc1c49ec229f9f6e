"""Coordination among workers: notices and capacities read in order, hand-overs, this worker's share of slots.

follower has a thread and a consumer of its own; the others run on the event loop. May import dispatch and below.
"""
