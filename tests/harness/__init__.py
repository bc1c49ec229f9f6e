"""What the tests share: a pool on a real broker, worker processes, and what became of the requests sent to them."""
