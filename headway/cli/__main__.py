"""``python -m headway.cli``."""

import sys

from headway.cli import main

sys.exit(main())
