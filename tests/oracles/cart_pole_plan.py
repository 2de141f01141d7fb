"""The cart with a pendulum in two coordinates, planned by CasADi and IPOPT."""

from typing import NamedTuple

import casadi
import numpy as np

CART, BOB, LENGTH, GRAVITY = 1.0, 0.2, 0.5, 9.81


class Planned(NamedTuple):
    """Inputs, cost and end time."""

    inputs: np.ndarray
    cost: float
    end: float


def planned(
    target: float, end, largest: float, intervals: int, *, steps: int = 20, price: float = 0.0
) -> Planned:
    """From rest to rest, the pendulum hanging, by held forces of least squares.

    Args:
        target: place of the cart at the end [m].
        end: end time [s]; a pair of bounds where it is free.
        largest: force [N].
        intervals: of the force.
        steps: classical Runge-Kutta steps of an interval.
        price: of time, added to the cost [1/s].
    """
    y, u, h = casadi.SX.sym("y", 4), casadi.SX.sym("u"), casadi.SX.sym("h")
    total, moment = CART + BOB, BOB * LENGTH

    def rate(y):
        """The angle is counted from where the pendulum hangs."""
        angle, spin = y[1], y[3]
        s, c = casadi.sin(angle), casadi.cos(angle)
        known = casadi.vertcat(u + moment * spin**2 * s, -moment * GRAVITY * s)
        mass = casadi.blockcat([[total, moment * c], [moment * c, moment * LENGTH]])
        return casadi.vertcat(y[2], spin, casadi.inv(mass) @ known)

    reached = y
    for _ in range(steps):
        a = rate(reached)
        b = rate(reached + h / 2 * a)
        c = rate(reached + h / 2 * b)
        d = rate(reached + h * c)
        reached = reached + h / 6 * (a + 2 * b + 2 * c + d)
    step = casadi.Function("step", [y, u, h], [reached])

    program = casadi.Opti()
    states, forces = program.variable(4, intervals + 1), program.variable(intervals)
    free = isinstance(end, tuple)
    time = program.variable() if free else end
    cost = price * time
    for k in range(intervals):
        following = step(states[:, k], forces[k], time / (intervals * steps))
        program.subject_to(states[:, k + 1] == following)
        cost = cost + forces[k] ** 2 * time / intervals
    program.subject_to(states[:, 0] == np.zeros(4))
    program.subject_to(states[:, -1] == np.array([target, 0.0, 0.0, 0.0]))
    program.subject_to(program.bounded(-largest, forces, largest))
    if free:
        program.subject_to(program.bounded(end[0], time, end[1]))
        program.set_initial(time, sum(end) / 2)
    program.minimize(cost)
    quiet = {"print_level": 0, "sb": "yes", "tol": 1e-13, "bound_relax_factor": 0.0}
    program.solver("ipopt", {"print_time": 0}, quiet)
    done = program.solve()
    return Planned(np.array(done.value(forces)), float(done.value(cost)), float(done.value(time)))
