"""Records that are made to harm, for each topic that a worker reads. Pure."""

from __future__ import annotations

from collections.abc import Sequence

MIB = 2**20
Headers = Sequence[tuple[str, bytes | None]]


def text(request_id: str, extra: str = "") -> bytes:
    """An envelope as text, so that it may hold what no encoder writes."""
    return (
        f'{{"request_id": "{request_id}", "biz_type": "chat_completion", "ttl_ms": 60000, '
        f'"payload": {{"messages": [], "max_tokens": 1}}{extra}}}'
    ).encode()


# By the id of their results: odd, and requests all the same.
RUN: dict[str, bytes] = {
    "../../../etc/passwd": text("../../../etc/passwd"),
    "%00%0d%0aX-Evil: 1": text("%00%0d%0aX-Evil: 1"),
    "'; DROP TABLE results; -- ${jndi:ldap://x}": text("'; DROP TABLE results; -- ${jndi:ldap://x}"),
    "😀" * 200: text("😀" * 200),
    "second": text("first", ', "request_id": "second"'),
    "deep-unknown": text("deep-unknown", ', "unknown": ' + "[" * 500 + "]" * 500),
    "large-float-in-reply": text("large-float-in-reply", ', "reply": 1e400'),
    "many-members": text("many-members", "".join(f', "m{n}": null' for n in range(20_000))),
}
REFUSED: dict[str, bytes] = {
    "line break in the id": text(r"a\r\nx-evil: 1"),
    "half a character in the id": text(r"\ud800"),
    "direction override in the id": text(r"\u202egnp.exe"),
    "NUL in the id": text(r"a\u0000b"),
    "id of 201": text("a" * 201),
    "id of 8 MiB": text("a" * (7 * MIB)),
    "id is an object": b'{"request_id": {"$oid": "1"}, "biz_type": "b", "payload": {}}',
    "time in 1e400": text("h1", ', "ttl_ms": 1e400'),
    "time of NaN": text("h2", ', "ttl_ms": NaN'),
    "time of 5,000 digits": text("h3", ', "ttl_ms": ' + "9" * 5_000),
    "time before the epoch": text("h4", ', "expire_at": -9223372036854775808'),
    "attempts without end": text("h5", ', "max_attempts": 18446744073709551615'),
    "priority is a list": text("h6", ', "priority": [[[]]]'),
    "tenant with a line break": text("h7", r', "tenant": "a\nb"'),
    "half a character elsewhere": text("h0", r', "unknown": "\ud83d"'),
    "deep payload": text("h8", ', "payload": {"a": ' + "[" * 200_000 + "]" * 200_000 + "}"),
    "deep unknown": text("h9", ', "unknown": ' + "[" * 2_000_000),
    "UTF-16": text("h10").decode().encode("utf-16"),
    "byte order mark": b"\xef\xbb\xbf" + text("h11"),
    "NUL behind": text("h12") + b"\0",
    "overlong UTF-8": text("h13", ', "x": "@"').replace(b"@", b"\xc0\xaf"),
    "two envelopes": text("h14") + text("h15"),
    "Avro of nobody": b"\xc3\x01" + b"\x00" * 8 + text("h16"),
    "Avro cut off": b"\xc3\x01\x00",
    "framing without a registry": b"\0\0\0\0\x01" + text("h17"),
    "framing cut off": b"\0\0\0",
    "gzip": b"\x1f\x8b\x08\0" + b"\0" * 1_000,
}
HEADERS: dict[str, Headers] = {
    "attempt of 40 digits": [("forebay-attempt", b"9" * 40)],
    "attempt below 0": [("forebay-attempt", b"-5")],
    "attempt twice": [("forebay-attempt", b"3"), ("forebay-attempt", b"\xff")],
    "enqueued in far future": [("forebay-first-enqueued-at", b"9" * 18)],
    "enqueued as float": [("forebay-first-enqueued-at", b"1e400")],
    "not before the year 9999": [("forebay-not-before", b"253402300799999")],
    "replayed without end": [("forebay-replay-count", b"9" * 30)],
    "replay of rubbish": [("forebay-replay-of", b"../\x00/-1")],
    "content type of others": [("content-type", b"application/avro; \r\nx: 1")],
    "tenant in bytes": [("forebay-tenant", b"\xff\xfe")],
    "tenant is large": [("forebay-tenant", b"t" * 60_000)],
    "expedited from rubbish": [("forebay-expedited-from", b"[[["), ("forebay-expedited-tier", b"\0")],
    "trace of rubbish": [("traceparent", b"00-\r\n-\xff-zz"), ("tracestate", b"=" * 60_000)],
    "name of a header is empty": [("", b""), ("", None)],
    "2,000 headers": [("forebay-attempt", b"7")] * 2_000,
    "header of 1 MiB": [("x", b"y" * MIB)],
}
RETRIED = b"\xff of nobody"
CONTROL: tuple[bytes, ...] = (
    b"",
    b"\xff\xfe",
    b"[" * 100_000,
    b'{"action": "cancel", "request_id": "innocent-0", "at": 1e400, "by": "x"}',
    b'{"action": "cancel", "request_id": "\\ud800", "at": 1, "by": "x"}',
    b'{"action": ["cancel"], "request_id": "innocent-0", "at": 1, "by": "x"}',
    b'{"action": "cancel", "request_id": "nobody", "topic": "../x", "partition": -1, "offset": -9223372036854775808,'
    b' "at": -1, "by": "\\u001b[2J"}',
    b'{"action": "expedite", "request_id": "nobody", "topic": "x", "partition": 99999999999999999999, "offset": 1,'
    b' "at": 1, "by": ""}',
)
COORDINATION: tuple[bytes | None, ...] = (
    None,
    b"",
    b"\xff",
    b"[" * 100_000,
    b'{"kind": "finished", "worker": "../x", "topic": "t", "partition": 0, "offsets": [0]}',
    b'{"kind": "finished", "worker": "x", "topic": "t", "partition": 0, "offsets": [1e400]}',
    b'{"kind": "last_commit", "worker": "x", "topic": "@", "partition": 0, "committed": 9223372036854775807,'
    b' "metadata": "f1\\ud800"}',
    b'{"kind": "last_commit", "worker": "x", "topic": "@", "partition": 0, "committed": 0, "metadata": "f1~~~~~"}',
    b'{"kind": "capacity", "worker": "x", "backend": "b", "limit_requests": NaN}',
    b'{"kind": "controlled", "worker": 1}',
)
