"""Pacing in real time: `forebay-worker run` as it comes, between a real broker and the simulated engine."""
