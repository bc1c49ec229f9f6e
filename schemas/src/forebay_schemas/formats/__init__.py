"""Bytes to envelopes: JSON, Avro, and the framing of a Schema Registry with the schemas that it holds.

Decoding is pure; schema_registry and schema_fetcher reach the registry, the latter from a thread of its own.
May import contract, errors, clock and properties.
"""
