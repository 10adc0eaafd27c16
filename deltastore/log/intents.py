"""What a put wants of each channel, given its parent: the put rule of each API, as pure functions of the parent's head.

Imports codec, heads and reducers. The invariant: `resolve` reads nothing but the head, and the same head
gives the same answer.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from deltastore.codec.blobs import Cut
from deltastore.codec.records import SEEN_CHANNEL, VERSIONS_CHANNEL
from deltastore.log.heads import Head


class FoldWrite(NamedTuple):
    """A write for a reduced channel. `configured` is the reducer that the user gave the channel, or None."""

    channel: int
    configured: int | None
    default: int
    cut: Cut


@dataclass(slots=True, repr=False)
class Resolution:
    """What changes: new values, writes to fold, channels that go; the others are inherited."""

    assign: dict[int, Cut] = field(default_factory=dict)
    configured: dict[int, int] = field(default_factory=dict)
    folds: list[FoldWrite] = field(default_factory=list)
    drop: set[int] = field(default_factory=set)
    order: tuple[int, ...] | None = None
    seeds: dict[int, int] = field(default_factory=dict)
    versions: dict[str, Any] | None = None


class Intent(Protocol):
    """What a put wants."""

    def names(self) -> Iterable[str]:
        """Return the names of channels whose numbers `resolve` asks for."""

    def resolve(self, parent: Head | None) -> Resolution:
        """Return what changes against the parent's head (None: no parent, or it isn't stored)."""


class WholeState(NamedTuple):
    """The state is exactly these channels (native `put_state`)."""

    cuts: Mapping[int, Cut]
    configured: Mapping[int, int]

    def names(self) -> Iterable[str]:
        """Channels are given by number."""
        return ()

    def resolve(self, parent: Head | None) -> Resolution:
        """Assign every channel given; drop the others."""
        before = parent.state if parent else {}
        return Resolution(
            assign=dict(self.cuts),
            configured=dict(self.configured),
            drop={channel for channel in before if channel not in self.cuts},
            order=tuple(self.cuts),
        )


class Writes(NamedTuple):
    """These writes are folded onto the parent's state (native `append`)."""

    folds: tuple[FoldWrite, ...]

    def names(self) -> Iterable[str]:
        """Channels are given by number."""
        return ()

    def resolve(self, parent: Head | None) -> Resolution:
        """Fold every write; inherit the rest."""
        return Resolution(folds=list(self.folds))


class Versioned(NamedTuple):
    """LangGraph's rule: a channel's value is that of (channel, version).

    A version equal to the parent's → inherited, whatever value is given; else a value given → that; else absent.
    Channels without a version are absent. `cut` gives a channel's value, encoded; `number` gives channels' numbers,
    interning new names; `is_walked` tells whether a channel's history may ever be asked for.
    """

    versions: dict[str, Any]
    present: frozenset[str]
    cut: Callable[[str], Cut]
    number: Callable[[Iterable[str]], list[int]]
    is_walked: Callable[[str], bool]
    hidden: dict[int, Cut]

    def names(self) -> Iterable[str]:
        """Return the channels that have a version."""
        return self.versions

    def resolve(self, parent: Head | None) -> Resolution:
        """Compare versions with the parent's."""
        before = (parent.versions or {}) if parent else {}
        state = parent.state if parent else {}
        seeds = parent.seeds if parent else {}
        out = Resolution(versions=self.versions)
        kept: set[int] = {VERSIONS_CHANNEL, SEEN_CHANNEL}
        numbers = self.number(self.versions)
        for (name, version), channel in zip(self.versions.items(), numbers, strict=True):
            if name in before and before[name] == version:
                if channel in state:
                    kept.add(channel)
                    continue
            elif name in self.present:
                out.assign[channel] = self.cut(name)
                kept.add(channel)
                continue
            if not self.is_walked(name):
                continue
            if channel in state:
                out.seeds[channel] = 1
            else:  # one record farther from the value than the parent was; 0 stays: never had one
                distance = seeds.get(channel, 0)
                out.seeds[channel] = distance + 1 if distance else 0
        out.assign |= self.hidden
        out.drop = {channel for channel in state if channel not in kept}
        return out
