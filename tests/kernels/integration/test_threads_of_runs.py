"""How many threads serve a batch of runs: none that takes longer to be made than its part."""

from itertools import pairwise

import jax.numpy as jnp
import numpy as np

from jaxdae.derivatives.primitives import Axes
from jaxdae.kernels.integration.arguments import Saving
from jaxdae.kernels.integration.initial_value import InitialValueProblem
from jaxdae.kernels.integration.run import KernelRun, work
from jaxdae.kernels.llvm.batch_loops import Lanes
from jaxdae.solvers import RK4
from jaxdae.solvers.kernel_steps import step_method


def members(steps: int, sines: int) -> int:
    """Those that are worth a thread, in runs of some steps with some operations."""

    def rate(t, y):
        return sum((jnp.sin((i + 1.0) * y) for i in range(sines)), jnp.cos(t))

    method = step_method(RK4())
    problem = InitialValueProblem(rate, 1, (), method, None, lambda y: y, np.float64)
    run = KernelRun(problem, Saving(start=False, every=0, times=False), 0, 1, False)
    axes = Axes((64,), (True, False))
    return work(run, Lanes(8, np.float64), axes, steps).least


def test_members_of_shorter_runs_share_a_thread():
    """In full vectors, the fewer the longer a run takes, and at last one vector of them."""
    by_steps = [members(n, 4) for n in (1, 10, 100, 100_000)]
    assert all(a >= b for a, b in pairwise(by_steps))
    assert by_steps[0] > 64 > by_steps[-1] == 8
    assert all(x % 8 == 0 for x in by_steps)
    assert members(10, 40) < members(10, 4)
