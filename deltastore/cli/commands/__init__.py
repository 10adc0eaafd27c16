"""One module a command: `command`, the function; `EXAMPLE`, a call; `KEYS`, what its JSON document holds."""
