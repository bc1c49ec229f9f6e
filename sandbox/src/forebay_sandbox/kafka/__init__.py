"""A real Kafka on this machine: jars from Maven, a Java runtime, brokers as processes, the console tools. Starts and
ends processes, writes to its own folders. May import the package's modules for files and processes."""
