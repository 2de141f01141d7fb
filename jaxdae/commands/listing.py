"""`jaxdae list`: the ready systems, or what they can be run with."""

from jaxdae.models.registry import catalogue


def run(options) -> int:
    """Print name, summary and source of every ready system, or names of another kind."""
    if options.what == "models":
        _models()
        return 0
    # Loaded here: these names are those of classes, which need JAX.
    from jaxdae.simulation.choices import CHOICES

    choices = CHOICES[options.what]
    width = max(map(len, choices))
    for name, kind in choices.items():
        print(f"{name:<{width}}  {(kind.__doc__ or '').strip().partition('. ')[0].splitlines()[0]}")
    return 0


def _models() -> None:
    width = max(map(len, catalogue()))
    for name, entry in catalogue().items():
        print(f"{name:<{width}}  {entry.summary}")
        print(f"{'':<{width}}  {entry.source}")
    print("\njaxdae simulate NAME runs one; jaxdae tune NAME tunes its gains;")
    print("jaxdae analyze NAME examines its equilibrium and the steps that solvers may take.")
