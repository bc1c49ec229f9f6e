"""The options that select dead letters, shared by all dead-letter commands."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Final

import typer

from forebay_producer.cli.values import point_in_time_ms
from forebay_producer.dead_letters.selection import NONE, Selection
from forebay_schemas.contract.reasons import REASONS_BY_CODE
from forebay_schemas.contract.tiers import TIERS
from forebay_schemas.errors import UsageError

_PANEL: Final = "Which dead letters (a repeated filter means any of its values)"


def _option(name: str, metavar: str, help_text: str) -> Any:
    return typer.Option(name, metavar=metavar, help=help_text, rich_help_panel=_PANEL, show_default=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectionOptions:
    """A command that has a parameter of this type has these options in its place (see `cli.common.command`)."""

    reason: Annotated[
        list[str] | None, _option("--reason", "CODE", "Letters with this reason, e.g. backend_error.")
    ] = None
    model: Annotated[list[str] | None, _option("--model", "NAME", "Letters whose payload names this model.")] = None
    tenant: Annotated[
        list[str] | None, _option("--tenant", "NAME", "Letters of this tenant; - for letters without a tenant.")
    ] = None
    tier: Annotated[
        list[str] | None, _option("--tier", "TIER", "Letters that died in this tier: high, mid or low; - if unknown.")
    ] = None
    biz_type: Annotated[list[str] | None, _option("--biz-type", "NAME", "Letters of this biz_type.")] = None
    error_class: Annotated[
        list[str] | None, _option("--error-class", "NAME", "Letters with this error class, as in Spring's header.")
    ] = None
    error: Annotated[
        list[str] | None, _option("--error", "TEXT", "Letters whose error contains this text, e.g. CUDA.")
    ] = None
    ids: Annotated[
        list[str] | None,
        _option("--id", "ID", "Letters with this request id, record key or place (partition:offset, 0:17)."),
    ] = None
    since: Annotated[
        str | None,
        _option("--since", "TIME", "Letters that died at or after this time: 2h (ago) or 2026-01-31T09:00:00Z."),
    ] = None
    until: Annotated[
        str | None, _option("--until", "TIME", "Letters that died before this time, given as for --since.")
    ] = None

    def selection(self, *, now_ms: int) -> Selection:
        """The selection for these options. Raises ``UsageError`` naming the invalid option."""
        for tier in self.tier or ():
            if tier not in TIERS and tier != NONE:
                raise UsageError("--tier", f"is {tier!r}", fix=f"give {', '.join(TIERS)} or {NONE}")
        since = None if self.since is None else point_in_time_ms(self.since, field="--since", now_ms=now_ms)
        until = None if self.until is None else point_in_time_ms(self.until, field="--until", now_ms=now_ms)
        if since is not None and until is not None and since >= until:
            raise UsageError("--until", "is not after --since", fix="give a later time, or leave it out")
        return Selection(
            reason=_values(self.reason),
            model=_values(self.model),
            tenant=_values(self.tenant),
            tier=_values(self.tier),
            biz_type=_values(self.biz_type),
            error_class=_values(self.error_class),
            error=_values(self.error),
            id=_values(self.ids),
            since=since,
            until=until,
        )


def known_reasons(selection: Selection) -> str:
    """To be added to a message that nothing matches: which reasons there are, if it asks for another one."""
    unknown = any(reason not in REASONS_BY_CODE and reason != NONE for reason in selection.reason)
    return f"; known reasons are {', '.join(REASONS_BY_CODE)}" if unknown else ""


def _values(given: list[str] | None) -> tuple[str, ...]:
    return tuple(sorted(set(given or ())))
