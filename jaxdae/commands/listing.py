"""`jaxdae list`: the ready systems."""

from jaxdae.models.catalogue import CATALOGUE


def run(options) -> int:
    """Print name, summary and source of every ready system."""
    del options
    width = max(map(len, CATALOGUE))
    for name, entry in CATALOGUE.items():
        print(f"{name:<{width}}  {entry.summary}")
        print(f"{'':<{width}}  {entry.source}")
    print("\njaxdae simulate NAME runs one; jaxdae tune NAME tunes its gains;")
    print("jaxdae analyze NAME judges its equilibrium and the steps that solvers may take.")
    return 0
