"""How long a new request of each tier would wait: one estimate for clients, workers and tools. Pure. May import the
contract. Any thread."""
