"""`python -m deltastore`: the command line."""

import sys

from deltastore.cli import main

if __name__ == "__main__":
    sys.exit(main())
