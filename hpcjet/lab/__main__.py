"""`python -m hpcjet.lab up`: the same as `hpcjet lab up`."""

import sys

from hpcjet.lab.command import main

sys.exit(main())
