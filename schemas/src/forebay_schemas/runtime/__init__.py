"""Everything around a process's work: entry point, settings, logs, metrics, tracing, port errors. Reads the environment
and files, writes to stderr. May import contract, formats and kafka. The main thread."""
