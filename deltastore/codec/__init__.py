"""Bytes of the format and back: primitives, chunk rows, spans, records, and how values are cut into chunks.

Imports errors and ulid only; knows of no transaction and no store.
"""
