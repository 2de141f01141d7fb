"""`jaxdae list`: the ready systems."""

from jaxdae.models import MODELS


def run(options) -> int:
    """Print name, summary and source of every ready system."""
    del options
    width = max(map(len, MODELS))
    for model in MODELS.values():
        print(f"{model.name:<{width}}  {model.summary}")
        print(f"{'':<{width}}  {model.source}")
    print("\njaxdae simulate NAME runs one; jaxdae tune NAME tunes its gains;")
    print("jaxdae analyze NAME judges its equilibrium and the steps that solvers may take.")
    return 0
