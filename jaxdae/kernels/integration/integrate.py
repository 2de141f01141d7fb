"""Native integrations with derivatives in both modes and to every order.

Kernels make those by start and parameters; what no kernel has is made by the plain program.
"""

import jax
import jax.numpy as jnp

from jaxdae.derivatives.batch_axes import Axes
from jaxdae.derivatives.device_axes import varying_together

# Rules of derivatives are registered where they are written.
from jaxdae.kernels.integration import reverse_derivatives as reverse_derivatives
from jaxdae.kernels.integration.run import native_integration, Run


def integrate(run: Run, y0, parameters, times) -> list[jax.Array]:
    """Integrate an initial value problem by a native kernel.

    It can be compiled, batched and differentiated in both modes and to every order: by start and
    parameters with kernels, by times with the plain program.

    Args:
        run: what is integrated and saved.
        y0: start, shape (n,).
        parameters: of the shapes that the problem names.
        times: the ends of fixed steps; or, for adaptive ones, the two ends of the run, the time
            from which on a step reaches the end, the length of the first step where it is given,
            and times at which steps end where there are any (`step_ends`); then the times to save,
            where there are any. Increasing.

    Returns:
        The saved states (rows, n), the final one (n,), and with adaptive steps also the times of
        the rows, infinite where they were not reached, and a `Summary`.
    """
    arguments = [jnp.asarray(x, run.problem.dtype) for x in (y0, *parameters, *times)]
    axes = Axes((), (False,) * len(arguments))
    return native_integration.bind(*varying_together(arguments), run=run, axes=axes)
