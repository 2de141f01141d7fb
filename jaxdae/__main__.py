"""`python -m jaxdae` is the command `jaxdae`."""

import sys

from jaxdae.interruptions import listening


def main() -> int:
    """Run the command: see `jaxdae.cli.main`."""
    listening()  # before the command is loaded
    from jaxdae import cli

    return cli.main()


if __name__ == "__main__":
    sys.exit(main())
