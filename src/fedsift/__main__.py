"""``python -m fedsift`` is the command ``fedsift``."""

import sys

from fedsift.cli import main

if __name__ == "__main__":
    sys.exit(main())
