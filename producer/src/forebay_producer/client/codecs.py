"""The codecs that requests are written with, and the reader for all formats. Asks the Schema Registry, if any."""

from __future__ import annotations

from collections.abc import Mapping

from forebay_producer.settings import ProducerSettings
from forebay_schemas.clock import Clock
from forebay_schemas.contract.envelope import Codec, JsonCodec
from forebay_schemas.contract.tiers import TIERS, Tier
from forebay_schemas.formats.avro import AvroCodec
from forebay_schemas.formats.envelope_reader import EnvelopeReader, NoSchemas
from forebay_schemas.formats.schema_fetcher import WaitingSchemas


def make_codecs(settings: ProducerSettings) -> Mapping[Tier, Codec]:
    """The codec for each tier's topic. With a registry configured, the schema is registered there if need be.

    Raises ``SchemaRegistryUnreachableError``, ``SchemaRegistryRefusedError``, ``UsageError``.
    """
    if settings.codec == "json":
        return dict.fromkeys(TIERS, JsonCodec())
    registry = settings.schema_registry()
    if registry is None:
        return dict.fromkeys(TIERS, AvroCodec(schema_id=None))
    pool = settings.pool_topics()
    try:
        return {tier: AvroCodec(schema_id=registry.id_of_latest(pool.requests(tier))) for tier in TIERS}
    finally:
        registry.close()


def make_envelope_reader(settings: ProducerSettings, *, clock: Clock) -> EnvelopeReader:
    """Reads records of every format; asks the registry for schemas it has not seen. Raises ``UsageError``."""
    registry = settings.schema_registry()
    return EnvelopeReader(NoSchemas() if registry is None else WaitingSchemas(registry, clock=clock))
