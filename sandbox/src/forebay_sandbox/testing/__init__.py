"""Only for tests: secured brokers, a Schema Registry, links that break, foreign engines, Kubernetes, tools. Starts and
ends processes, fetches from public registries. May import kafka and engine."""
