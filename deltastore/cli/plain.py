"""Inspected values as JSON documents. Pure; imports the generic decoder and inspection.

What JSON has no form for is a dict with one key that begins with `$`; a dict of the user's with such a key, or with
keys that aren't text, is written as `$entries`, so every document can be told apart.
"""

import math
from base64 import b64encode
from typing import Any

from deltastore.codec.generic import Built, Sealed
from deltastore.codec.strict import REMOVE_ALL, Remove
from deltastore.upkeep.inspecting import Unfolded

FORMS = {
    '{"$object": NAME, "parts": …}': "an object of a class, by its name: its fields, or the arguments it is made from",
    '{"$bytes": BASE64}': "bytes",
    '{"$float": "nan" | "inf" | "-inf"}': "a number that JSON lacks",
    '{"$entries": [[KEY, VALUE], …]}': "a dict with other keys than text, or a key that begins with `$`",
    '{"$sealed": {"serializer", "kind", "bytes"}}': "a value that only its serializer can read: encrypted, say",
    '{"$unfolded": {"reducer", "seed", "writes"}}': "a channel that only its own reducer can fold; no `seed`: none yet",
    '{"$remove": ID}': "an order to an upsert; without ID (null): remove all",
}
"""What stands in a document for a value that JSON has no form for; docs/cli.md is made of this."""


def plain(value: Any) -> Any:
    """Return a value as `json` takes it."""
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else {"$float": str(value)}
        case bytes() | bytearray():
            return {"$bytes": b64encode(value).decode()}
        case list() | tuple():
            return [plain(item) for item in value]
        case dict():
            if all(isinstance(key, str) and not key.startswith("$") for key in value):
                return {key: plain(item) for key, item in value.items()}
            return {"$entries": [[plain(key), plain(item)] for key, item in value.items()]}
        case Built():
            return {"$object": value.name, "parts": plain(value.parts)}
        case Sealed():
            return {"$sealed": {"serializer": value.serializer, "kind": value.kind, "bytes": value.size}}
        case Unfolded():
            seed = {"seed": plain(value.seed)} if value.present else {}
            return {"$unfolded": {"reducer": value.reducer, **seed, "writes": plain(value.writes)}}
        case Remove():
            return {"$remove": None if value == REMOVE_ALL else plain(value.id)}
    return {"$object": type(value).__name__, "parts": str(value)}
