"""Names of the ready systems, what they are, and where they come from.

Apart from the systems themselves, so that they can be listed without loading JAX.
"""

from typing import NamedTuple


class Entry(NamedTuple):
    """What is said of a ready system.

    Args:
        summary: one line.
        source: where the system, its numbers or its reference come from.
    """

    summary: str
    source: str


CATALOGUE: dict[str, Entry] = {
    "pendulum": Entry(
        "point mass on a rod, in Cartesian coordinates",
        "Hairer, Wanner, Solving Ordinary Differential Equations II, VII.1",
    ),
    "chain": Entry(
        "chain of point masses in redundant Cartesian coordinates",
        "Shemelova, constraint perturbation equations (two masses); any number here",
    ),
    "two-link": Entry(
        "two-link manipulator led through a singular configuration and out of reach",
        "Mukharlyamov, Deressa (2014), example 1; gains of its Fig. 3",
    ),
    "two-link-reachable": Entry(
        "two-link manipulator led through a singular configuration again and again",
        "Mukharlyamov, Deressa (2014), example 1, with a target that stays within reach",
    ),
    "slider-crank": Entry(
        "slider-crank with equal links, through its in-line singular position",
        "Bayo, Ledesma, Nonlinear Dynamics 9 (1996) 113-130",
    ),
    "andrews": Entry(
        "Andrews' squeezing mechanism, seven bodies in three loops",
        "Test Set for IVP Solvers; Hairer, Wanner, VII.7",
    ),
    "sleigh": Entry(
        "Chaplygin sleigh: a rigid body on a blade",
        "Chaplygin (1911); Neimark, Fufaev, ch. III",
    ),
    "disk": Entry(
        "vertical disk that rolls without slipping",
        "Bloch, Nonholonomic Mechanics and Control, 1.4",
    ),
    "knife-edge": Entry(
        "blade on an inclined plane",
        "Neimark, Fufaev, ch. III; Bloch, 1.6",
    ),
    "constant-speed": Entry(
        "point whose speed is held constant, a constraint not affine in the velocities",
        "Chetaev (1932-33); Neimark, Fufaev, ch. IV",
    ),
    "appell-hamel": Entry(
        "point whose horizontal speed is a multiple of its vertical one",
        "Appell (1911); Hamel (1949); Neimark, Fufaev, ch. IV",
    ),
    "circuit": Entry(
        "electric circuit of two loops with coils, resistors and capacitors",
        "Shemelova, elements of another physical nature; numbers of our own",
    ),
    "robot": Entry(
        "mobile robot on two driven wheels, coasting without a controller",
        "Siegwart, Nourbakhsh, Introduction to Autonomous Mobile Robots, ch. 3",
    ),
    "ball-beam": Entry(
        "ball on a beam that a motor tilts through a rod",
        "Krasinskaya, Krasinskii (2013), section 6; numbers of Quanser BB01 and SRV02",
    ),
    "ball-beam-simplified": Entry(
        "ball and beam with the linear constraint of the literature",
        "as ball-beam",
    ),
    "kepler": Entry(
        "point in a central field of gravity",
        "Baumgarte (1972); Landau, Lifshitz, section 15",
    ),
    "mirror": Entry(
        "adaptive-optics mirror whose DC motor keeps a beam on a target",
        "Mukharlyamov (2019), section 5",
    ),
    "arm": Entry(
        "plane arm of two point masses, in redundant Cartesian coordinates",
        "Shemelova, constraint perturbation equations, example; numbers of our own",
    ),
    "surface-arm": Entry(
        "spatial arm of two point masses whose tip stays on an ellipsoid",
        "Krasinskaya, Krasinskii (2013), introduction; numbers of our own",
    ),
    "motor": Entry(
        "slider-crank driven by a geared DC motor, its charge a coordinate",
        "Shemelova, elements of another physical nature; numbers of Quanser SRV02",
    ),
    "motor-actuator": Entry(
        "the same motor with its current as actuator state",
        "as motor",
    ),
}
