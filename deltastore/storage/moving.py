"""Moving a store into a fresh environment: fill it beside, bring it up to date, and let it take over.

Knows rows, not what they mean: which of them changed meanwhile is the caller's. Imports filling, the shared
environments, the directory rules and the engine. The invariant: until the moved row is committed the store is the old
environment; from then on it is the new one, which holds all that the old one acknowledged.
"""

import contextlib
import os
import re
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from threading import get_ident

from deltastore.errors import ConflictError, StorageError
from deltastore.storage import directory, environment
from deltastore.storage.engine import EngineError, translate
from deltastore.storage.environment import SharedEnvironment
from deltastore.storage.filling import UNFINISHED, Filled, _Turn, fill
from deltastore.storage.lmdb import LmdbStorage
from deltastore.storage.port import Row

LOCK = "moving.lock"
"""The file whose lock whoever moves a store holds; the system takes it from a process that ends."""
_ENVIRONMENT = re.compile(r"env-([1-9][0-9]{0,17})(?:\.filling)?")

Part = tuple[bytes, bytes, Iterable[Row]]
"""A range of keys, lower and upper, and all rows that belong into it, in order."""
