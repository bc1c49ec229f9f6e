"""The requests of a workload, from ten minutes of real traces and a seed. Reads the files beside it."""

from __future__ import annotations

import csv
import gzip
import math
import random
import tomllib
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any
from zlib import crc32

from forebay_sandbox.engine.physics import EnginePhysics
from forebay_schemas.contract.tiers import Tier

HERE = Path(__file__).parent
MAX_TOKENS_CAP = 2048
NOISE_SIGMA = 0.5

CODE_DEADLINE_SECONDS = 5.0
CONV_DEADLINE_SECONDS = 5.0
CONV_LOW_DEADLINE_SECONDS = 65.0
CONV_DEADLINE_SECONDS_PER_TOKEN = 0.05


class Hint(StrEnum):
    """The meaning of a request's max_tokens, a client's only hint of its answer's length."""

    CAP = "cap"
    """The same number for every request."""
    NOISY = "noisy"
    """The true length, or more by a log-normal factor; never less, or the answer would be cut."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """One request. Times are seconds since the run began; ``output_tokens`` is the truth that only the engine knows.

    ``row``: its number in the trace.
    """

    at_seconds: float
    tier: Tier
    prompt_tokens: int
    output_tokens: int
    deadline_seconds: float
    hint_max_tokens: int
    biz_type: str
    row: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A line of workloads.toml."""

    name: str
    parts: tuple[str, ...]
    scale: float
    start_seconds: float
    wall_seconds: float
    bound_requests: int


def physics() -> EnginePhysics:
    """The engine that all workloads run on."""
    return EnginePhysics(**_document()["engine"])


def workloads() -> dict[str, Workload]:
    """All of them by name."""
    return {line["name"]: Workload(**{**line, "parts": tuple(line["parts"])}) for line in _document()["workload"]}


def work_seconds(arrival: Arrival, engine: EnginePhysics) -> float:
    """The engine's time that a request costs at best: every step shared by a full batch."""
    return (
        engine.c_seconds * arrival.prompt_tokens
        + (arrival.output_tokens - 1) * engine.b_seconds
        + arrival.output_tokens * engine.a_seconds / engine.max_num_seqs
    )


def alone_seconds(arrival: Arrival, engine: EnginePhysics) -> float:
    """Duration of a request on an engine that does nothing else."""
    prefill_steps = math.ceil(arrival.prompt_tokens / engine.prefill_chunk_tokens)
    return (
        prefill_steps * engine.a_seconds
        + arrival.prompt_tokens * engine.c_seconds
        + (arrival.output_tokens - 1) * (engine.a_seconds + engine.b_seconds)
    )


def arrivals(workload: Workload, *, hint: Hint, seed: int) -> list[Arrival]:
    """The workload's requests in order of time; the seed makes the noise of the hints and nothing else."""
    noise = random.Random(f"{workload.name} {seed}")
    found = []
    for part in workload.parts:
        for row, trace_seconds, prompt_tokens, output_tokens in _trace(part):
            at_seconds = (trace_seconds - workload.start_seconds) / workload.scale
            if not 0 <= at_seconds < workload.wall_seconds:
                continue
            tier, allowed_seconds = _tier_and_deadline(workload, part, row, output_tokens)
            found.append(
                Arrival(
                    at_seconds=at_seconds,
                    tier=tier,
                    prompt_tokens=prompt_tokens,
                    output_tokens=output_tokens,
                    deadline_seconds=at_seconds + allowed_seconds,
                    hint_max_tokens=hint_max_tokens(output_tokens, hint=hint, noise=noise),
                    biz_type=part,
                    row=row,
                )
            )
    return sorted(found, key=lambda arrival: arrival.at_seconds)


def conversation_rows() -> list[tuple[float, int]]:
    """(seconds since the trace began, tokens of the answer) of the conversation trace's ten minutes."""
    return [(at_seconds, output_tokens) for _, at_seconds, _, output_tokens in _trace("conv")]


def hint_max_tokens(output_tokens: int, *, hint: Hint, noise: random.Random) -> int:
    """The max_tokens of a request with this number of output tokens."""
    if hint is Hint.CAP:
        return MAX_TOKENS_CAP
    return max(output_tokens, round(output_tokens * math.exp(noise.gauss(0.0, NOISE_SIGMA))))


def _tier_and_deadline(workload: Workload, part: str, row: int, output_tokens: int) -> tuple[Tier, float]:
    if part == "code":
        return Tier.HIGH, CODE_DEADLINE_SECONDS
    for_the_answer = CONV_DEADLINE_SECONDS_PER_TOKEN * output_tokens
    if len(workload.parts) > 1 and crc32(b"tier%d" % row) % 10 < 3:
        return Tier.LOW, CONV_LOW_DEADLINE_SECONDS + for_the_answer
    return Tier.MID, CONV_DEADLINE_SECONDS + for_the_answer


@cache
def _document() -> dict[str, Any]:
    return tomllib.loads((HERE / "workloads.toml").read_text(encoding="utf-8"))


@cache
def _trace(part: str) -> tuple[tuple[int, float, int, int], ...]:
    with gzip.open(HERE / "data" / f"azure_llm_2023_{part}.csv.gz", "rt", encoding="utf-8") as file:
        return tuple(
            (int(row["row"]), float(row["at_seconds"]), int(row["prompt_tokens"]), int(row["output_tokens"]))
            for row in csv.DictReader(file)
        )
