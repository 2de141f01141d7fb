"""What all tests share: double precision, a cache of compiled programs, small systems."""

import gc
import os
import subprocess
import sys
from collections import Counter
from importlib.metadata import version
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdae
from jaxdae.files import replace_file

jax.config.update("jax_enable_x64", True)

# Compile time dominates these tests; programs compiled once are read back by the next run.
_CACHE = os.environ.get("JAX_COMPILATION_CACHE_DIR", str(Path(__file__).parents[1] / ".jax_cache"))
jax.config.update("jax_compilation_cache_dir", _CACHE)
# However small: each file begins without programs in memory, and most of those that single
# operations need are the same in all files. Processes that tests start read them, too.
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
# Most programs here run once, for milliseconds. What runs longer, or is compared to the last bit,
# compiles as users do: the files of tests marked `optimized`.
jax.config.update("jax_disable_most_optimizations", True)
# Tracing makes many objects and little garbage; looking for it less often saves a sixth of the time
# of that. Each file's is collected at its end.
gc.set_threshold(200_000, 20, 100)


def _known_to_xla(option: str, value: str) -> bool:
    """Whether the installed release has an option; one that it does not know ends a process.

    A process of its own tries it, once for each release: the answer is kept with the programs.
    """
    answer = Path(_CACHE) / f"{option}-in-{version('jaxlib')}"
    if not answer.exists():
        environment = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": f"--{option}={value}"}
        script = "import jax; jax.devices()"
        trial = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True)
        answer.parent.mkdir(parents=True, exist_ok=True)
        replace_file(answer, b"no" if trial.returncode else b"yes")
    return answer.read_bytes() == b"yes"


# XLA's older generators of loops compile unoptimized programs in half the time, and one module of
# machine code takes less than one for each loop. Read when the first device starts.
for _option, _value in (
    ("xla_cpu_use_fusion_emitters", "false"),
    ("xla_cpu_parallel_codegen_split_count", "1"),
):
    if _known_to_xla(_option, _value):
        _FLAGS = f"{os.environ.get('XLA_FLAGS', '')} --{_option}={_value}"
        os.environ["XLA_FLAGS"] = _FLAGS.strip()


def pytest_collection_modifyitems(items):
    """Files with slow tests first: begun last, they would leave a processor without work."""
    slow = Counter(x.path for x in items if x.get_closest_marker("slow"))
    items.sort(key=lambda x: -slow[x.path])


@pytest.fixture(autouse=True, scope="module")
def _free_compiled_programs():
    """A whole run compiles thousands of programs; kept to its end they would fill the memory."""
    yield
    eqx.clear_caches()
    jax.clear_caches()
    gc.collect()


@pytest.fixture(autouse=True, scope="module")
def _optimization(request):
    """Full optimization for a file whose programs run long, or are what it looks at."""
    quick = request.node.get_closest_marker("optimized") is None
    jax.config.update("jax_disable_most_optimizations", quick)


class DoublePendulum(jaxdae.System):
    """Two point masses on rods in series, both angles from the downward vertical."""

    m1: float = 1.3
    m2: float = 0.7
    l1: float = 0.9
    l2: float = 0.6
    gravity: float = 9.81

    def kinetic_energy(self, t, q, v):
        del t
        cross = 2 * self.l1 * self.l2 * v[0] * v[1] * jnp.cos(q[0] - q[1])
        first = (self.l1 * v[0]) ** 2
        return 0.5 * (self.m1 * first + self.m2 * (first + (self.l2 * v[1]) ** 2 + cross))

    def potential_energy(self, t, q):
        del t
        y1 = -self.l1 * jnp.cos(q[0])
        return self.gravity * (self.m1 * y1 + self.m2 * (y1 - self.l2 * jnp.cos(q[1])))


class Everything(jaxdae.System):
    """Every function of a declaration at once, each depending on all it may depend on.

    Three coordinates, one rheonomic position constraint, one nonholonomic constraint that is not
    affine in the velocities, one actuator state, one input.
    """

    mass: float = 1.2
    length: float = 1.5

    def kinetic_energy(self, t, q, v):
        a, b, c = v
        inertia = 0.5 * (1 + 0.3 * q[0] ** 2 + 0.2 * jnp.sin(t)) * c**2
        return 0.5 * self.mass * (a**2 + b**2) + inertia + 0.4 * jnp.cos(q[2]) * a * c

    def potential_energy(self, t, q):
        spring = (2 + jnp.cos(t)) * (q[1] ** 2 + q[0] * q[2])
        return self.mass * 9.81 * q[1] + spring

    def dissipation(self, t, q, v):
        return 0.1 * (1 + 0.5 * jnp.sin(t)) * (v @ v) + 0.05 * q[0] ** 2 * v[2] ** 2

    def force(self, t, q, v, w, u):
        drive = 0.0 if u is None else u
        return jnp.stack([w[0] * jnp.cos(q[2]), jnp.sin(t) * v[2], w[0] + drive])

    def position_constraints(self, t, q):
        pivot = jnp.stack([0.2 * jnp.sin(t), jnp.zeros_like(t)])
        arm = q[:2] - pivot
        return jnp.stack([arm @ arm - self.length**2])

    def velocity_constraints(self, t, q, v):
        return jnp.stack([v[2] + 0.3 * v[0] ** 2 + q[0] * v[1] - 0.5 * jnp.cos(t)])

    def actuator_rate(self, t, q, v, w, u):
        drive = jnp.sin(3 * t) if u is None else u
        return jnp.stack([drive - w[0] - 0.2 * v[2] + 0.1 * q[0]])

    def labels(self):
        return jaxdae.Labels(
            coordinates=("x", "y", "angle"),
            units=("m", "m", "rad"),
            constraints=("rod", "rolling"),
            constraint_units=("m^2", "m/s"),
        )


class LedPoint(jaxdae.System):
    """A unit mass on the unit circle whose abscissa is led: `x = speed t`.

    Both constraints fix the motion; at `t = 1 / speed` the target leaves the circle, and the
    Jacobian `[[2x, 2y], [1, 0]]` loses rank there and nowhere before.
    """

    speed: float = 0.5

    def kinetic_energy(self, t, q, v):
        del t, q
        return 0.5 * v @ v

    def position_constraints(self, t, q):
        return jnp.stack([q @ q - 1, q[0] - self.speed * t])

    def labels(self):
        return jaxdae.Labels(constraints=("circle", "leader"))

    def start(self):
        """State at `t = 0`, on top of the circle."""
        return jaxdae.State(jnp.array([0.0, 1.0]), jnp.stack([self.speed * jnp.ones(()), 0.0]))


class RepeatedRod(jaxdae.System):
    """A point mass on a rod whose constraint is stated `len(weights)` times over."""

    weights: tuple = eqx.field(static=True, default=(1.0, 1.0))
    length: float = 1.0

    def kinetic_energy(self, t, q, v):
        del t, q
        return 0.5 * (1.0 * v[0] ** 2 + 2.0 * v[1] ** 2)

    def potential_energy(self, t, q):
        del t
        return 2.0 * 9.81 * q[1]

    def position_constraints(self, t, q):
        del t
        return jnp.asarray(self.weights, q.dtype) * (q @ q - self.length**2)


class Massless(jaxdae.System):
    """A mass on the curve `y = x^2 / 2`, where `y` carries no inertia of its own."""

    mass: float = 1.5
    stiffness: float = 4.0

    def kinetic_energy(self, t, q, v):
        del t, q
        return 0.5 * self.mass * v[0] ** 2

    def potential_energy(self, t, q):
        del t
        return 0.5 * self.stiffness * q[1] ** 2

    def position_constraints(self, t, q):
        del t
        return jnp.stack([q[1] - 0.5 * q[0] ** 2])


@pytest.fixture(scope="session")
def double_pendulum():
    return DoublePendulum()


@pytest.fixture(scope="session")
def everything():
    return Everything()


@pytest.fixture(scope="session")
def led_point():
    """The class: `led_point(speed)`."""
    return LedPoint


@pytest.fixture(scope="session")
def repeated_rod():
    """The class: `repeated_rod(weights)`."""
    return RepeatedRod


@pytest.fixture(scope="session")
def massless():
    return Massless()


@pytest.fixture
def rng():
    """Random numbers, the same in every run."""
    return np.random.default_rng(20140613)
