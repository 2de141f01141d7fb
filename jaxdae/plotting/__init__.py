"""Pictures of trajectories and tuning runs, as matplotlib `Figure` objects.

Every function returns a new figure and touches no global state of matplotlib: no `pyplot`, no
`rcParams`, no display. `import jaxdae` does not import this package.
"""

import lazy_loader

# The names stand in the stub beside this file, each once; what one needs is loaded when it is used:
# pictures of mechanisms trace systems with JAX, which pictures of stored runs do without.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
