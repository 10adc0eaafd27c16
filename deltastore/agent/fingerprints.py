"""Fingerprints: what makes two calls the same call.

Pure; imports codec and kinds. The invariant: equal calls at one position of one run have equal fingerprints in every
process, whatever the order of their keyword arguments and of the keys within them.
"""

from collections.abc import Mapping
from hashlib import blake2b
from typing import Any, Final, NamedTuple

from deltastore.agent.kinds import TAG
from deltastore.codec.strict import strict_pack

DIGEST_BYTES: Final = 16
"""Of a fingerprint: enough that no two calls of a store meet by chance."""


class Position(NamedTuple):
    """Where in its run a program is: the checkpoint that it would start again from, steps and node since.

    `within`: the key of the call that this one is made by, if any.
    """

    run_id: str
    checkpoint_id: str
    step_index: int
    node_name: str | None
    within: str


def fingerprint(position: Position, kind: str, name: str, arguments: Mapping[str, Any], occurrence: int) -> str:
    """Return the fingerprint of a call with these encoded arguments, the `occurrence`-th like it, as hex digits."""
    whole = [*position, kind, name, canonical(dict(arguments)), occurrence]
    return blake2b(strict_pack(whole), digest_size=DIGEST_BYTES).hexdigest()


def canonical(plain: Any) -> Any:
    """Return plain data with the keys of its dicts in one order."""
    if type(plain) is list:
        return [canonical(item) for item in plain]
    if type(plain) is dict:
        tag = plain.get(TAG)
        if tag == "dict":  # the user's own, whatever it looks like
            return {TAG: tag, "of": _in_order(plain["of"])}
        if tag == "pairs":  # a dict too, whose keys are no plain ones
            return {TAG: tag, "of": sorted(canonical(plain["of"]), key=strict_pack)}
        return _in_order(plain)
    return plain


def _in_order(plain: dict[Any, Any]) -> dict[Any, Any]:
    named = all(type(key) is str for key in plain)
    return {key: canonical(plain[key]) for key in (sorted(plain) if named else sorted(plain, key=strict_pack))}
