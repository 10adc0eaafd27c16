"""The highest resident memory of this process since some moment. Pages of a mapped file that were used count."""

import resource
import sys
from pathlib import Path

CLEAR_REFS, STATUS = Path("/proc/self/clear_refs"), Path("/proc/self/status")
RESET_PEAK = "5"
"""What Linux takes as the order to forget the peak so far."""


def restart_peak() -> int:
    """Let the peak be what is resident now, and return that in bytes; elsewhere than on Linux the peak stays."""
    if CLEAR_REFS.exists():
        CLEAR_REFS.write_text(RESET_PEAK)
    return peak_bytes()


def peak_bytes() -> int:
    # ru_maxrss of a new process begins with that of its parent, so it is only the second choice
    if STATUS.exists():
        line = next(line for line in STATUS.read_text().splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
