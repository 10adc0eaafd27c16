"""Makes it: python -m walkthrough_store PATH."""

import sys

from walkthrough_store import make

make(sys.argv[1])
