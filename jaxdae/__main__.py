"""`python -m jaxdae` is the command `jaxdae`."""

import sys

from jaxdae.cli import main

sys.exit(main())
