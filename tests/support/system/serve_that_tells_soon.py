"""`twinpool`, but that it tells sooner that a worker waits for a node: its patience is for busy machines."""

from __future__ import annotations

import sys

from twinpool.cli.app import main
from twinpool.serving import launcher

if __name__ == "__main__":
    launcher.PLACED_SOON_S = 2.0
    sys.exit(main())
