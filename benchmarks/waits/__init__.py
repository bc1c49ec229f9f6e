"""Estimated against actual waits, and admission under overload, in virtual time."""
