"""`forebay exporter`: reads pools, with or without running workers, and exports backlog, age, workers and risk to
Prometheus. Asks brokers from its own thread, serves HTTP. May import cluster, metrics and errors."""
