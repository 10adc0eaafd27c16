"""The demo: an agent on two savers, killed, resumed and forked. `__main__` starts it, `story` tells it."""
