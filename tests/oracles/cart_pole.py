"""Optimal inputs of a cart with a pendulum, in minimal coordinates: NumPy, SciPy, no JAX.

With the place `x` of the cart and the angle `a` of the pendulum from the upright,

    (M + m) x'' + m l cos(a) a'' = u + m l sin(a) a'^2,    l cos(a) x'' + l^2 a'' = g l sin(a)

Inputs are held on equal intervals. Gradients are exact: by an imaginary step, which all operations
here let through.
"""

import numpy as np
from scipy.optimize import minimize

CART, BOB, LENGTH, GRAVITY = 1.0, 0.2, 0.5, 9.81


def rate(y, u):
    """Rates of `(x, a, x', a')`, arrays of any shape in each."""
    _, a, x_dot, a_dot = y
    s, c = np.sin(a), np.cos(a)
    push = u + BOB * LENGTH * s * a_dot**2
    x_ddot = (push - BOB * GRAVITY * s * c) / (CART + BOB * s**2)
    return np.stack([x_dot, a_dot, x_ddot, (GRAVITY * s - c * x_ddot) / LENGTH])


def motion(y, inputs, interval, steps):
    """States at the nodes, by Runge and Kutta with many steps in each interval."""
    h, rows = interval / steps, [y]
    for u in inputs:
        for _ in range(steps):
            a = rate(y, u)
            b = rate(y + h / 2 * a, u)
            c = rate(y + h / 2 * b, u)
            y = y + h / 6 * (a + 2 * b + 2 * c + rate(y + h * c, u))
        rows.append(y)
    return rows


def optimum(start, cost, terminal, interval, nodes, bound, steps=40):
    """Inputs of least cost within `|u| <= bound`, and that cost.

    Args:
        start: `(x, a, x', a')`.
        cost: of a state and an input, a number.
        terminal: of the last state.
        interval: from node to node [s].
        nodes: number of inputs.
        bound: of the inputs [N].
        steps: in each interval.
    """

    def total(inputs):
        y = np.asarray(start, inputs.dtype)
        rows = motion(np.multiply.outer(y, np.ones(inputs.shape[1:])), inputs, interval, steps)
        return interval * sum(map(cost, rows, inputs)) + terminal(rows[-1])

    def value_and_gradient(inputs):
        moved = inputs[:, None] + 1e-30j * np.eye(nodes)
        values = total(moved)
        return values[0].real, values.imag / 1e-30

    found = minimize(
        value_and_gradient, np.zeros(nodes), jac=True, method="L-BFGS-B",
        bounds=[(-bound, bound)] * nodes,
        options={"ftol": 1e-16, "gtol": 1e-11, "maxiter": 1000},
    )  # fmt: skip
    return found.x, found.fun
