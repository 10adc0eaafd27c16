"""How long work tells how far it is. Pure; imports nothing of the project."""

from collections.abc import Callable

Progress = Callable[[int, int | None], object]
"""Called now and then with how much is done and how much there is (None: not known), each in the unit that the function
names. It runs inside a read transaction: it must be quick, and must not use the store."""
