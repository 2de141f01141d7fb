"""CasADi on the suite: SUNDIALS' IDAS on the index-1 form, with its sensitivity equations."""

from collections.abc import Callable
from typing import Any

import numpy as np
from competitors.base import package

from .answers import Answer, Program, RefusedError, TOLERANCES
from .catalogue import Motion
from .mechanism import Mechanism, named


def _vector(ca: Any, scalars: Any) -> Any:
    return ca.vertcat(*scalars) if len(scalars) else ca.SX(0, 1)


def _equations(ca: Any, mechanism: Mechanism) -> dict[str, Any]:
    """Rates and residuals: accelerations and multipliers are algebraic unknowns."""
    n = len(mechanism.coordinates)
    t, q, v, by = (
        ca.SX.sym(x, k) for x, k in (("t", 1), ("q", n), ("v", n), ("p", len(mechanism.by)))
    )
    values = dict(mechanism.values) | dict(zip(mechanism.by, ca.vertsplit(by), strict=True))
    p, qs, vs = named([*values], [*values.values()]), ca.vertsplit(q), ca.vertsplit(v)
    kinetic = mechanism.kinetic_energy(ca, t, qs, vs, p)
    potential = ca.SX(mechanism.potential_energy(ca, t, qs, p))
    force = _vector(ca, mechanism.force(ca, t, qs, vs, p))
    phi = _vector(ca, mechanism.position_constraints(ca, t, qs, p))
    given = _vector(ca, mechanism.velocity_constraints(ca, t, qs, vs, p))
    momentum = ca.gradient(kinetic, v)
    rate = lambda x: ca.jtimes(x, q, v) + ca.jacobian(x, t)  # noqa: E731
    phi_dot = ca.vertcat(rate(phi), given)
    a, lam = ca.SX.sym("a", n), ca.SX.sym("lam", phi_dot.numel())
    jac = ca.jacobian(phi_dot, v)
    motion = ca.jacobian(momentum, v) @ a + rate(momentum) - ca.gradient(kinetic - potential, q)
    motion += jac.T @ lam - force
    residual = ca.vertcat(motion, jac @ a + rate(phi_dot))
    return {
        "t": t, "x": ca.vertcat(q, v), "z": ca.vertcat(a, lam), "p": by,
        "ode": ca.vertcat(v, a), "alg": residual,
    }  # fmt: skip


def program(order: str) -> Callable[[Mechanism, Motion], Program]:
    """IDAS from tolerance to tolerance.

    Args:
        order: "motion"; "first" or "reverse", forward or adjoint sensitivities (adjoint ones of q
            and v at the end alone); "second", forward over forward.
    """

    def prepared(mechanism: Mechanism, wanted: Motion) -> Program:
        ca = package("casadi")
        if mechanism.restitution is not None:
            raise RefusedError("an impact that changes velocities is not modelled")
        if order == "second" and len(mechanism.coordinates) > 7:
            raise RefusedError("left out: many sensitivity equations")
        dae, n = _equations(ca, mechanism), 2 * len(mechanism.coordinates)
        base = np.array([mechanism.values[x] for x in mechanism.by])
        by = ca.MX.sym("p", len(base))
        # The start to second order, as the reference has it.
        begin, step = ca.MX(ca.DM(wanted.rows[0, :n])), by - base
        curve = [ca.bilin(ca.DM(x), step, step) / 2 for x in wanted.second[0, :n]]
        begin = begin + ca.DM(wanted.first[0, :n]) @ step + ca.vertcat(*curve)
        linear = ca.Function("linear", [dae["t"], dae["x"], dae["z"], dae["p"]],
                             [ca.jacobian(dae["alg"], dae["z"]), dae["alg"]])  # fmt: skip
        zero = np.zeros(dae["z"].numel())
        matrix, _ = linear(0, wanted.rows[0, :n], zero, base)
        if np.linalg.matrix_rank(np.array(matrix)) < len(zero):
            raise RefusedError("dependent constraints: IDAS' matrix is singular")
        guess = -ca.solve(*linear(0, begin, zero, by))

        def run(tolerance: float) -> Answer:
            options = {"reltol": tolerance, "abstol": tolerance, "max_num_steps": 10**6}
            options["calc_ic"] = order != "second"  # whose equations it does not start
            solve = ca.integrator("run", "idas", dae, 0.0, wanted.t[1:], options)
            found = solve(x0=begin, z0=guess, p=by)
            shape = (len(wanted.t) - 1, -1)
            out = ca.vec(ca.vertcat(found["xf"], found["zf"][n // 2 :, :]))
            outputs = [out]
            if order in ("first", "second"):
                outputs.append(ca.jacobian(out, by))
            if order == "second":
                outputs.append(ca.jacobian(ca.vec(outputs[1]), by))
            if order == "reverse":
                end = found["xf"][:, -1]
                outputs.append(ca.jtimes(end, by, ca.MX(ca.DM.eye(n)), True).T)
            try:
                values = [np.array(x) for x in ca.Function("all", [by], outputs).call([base])]
            except RuntimeError as error:
                raise RefusedError(_short(error)) from error
            rows = np.vstack([wanted.rows[:1], values[0].reshape(shape)])
            p, columns = len(base), rows.shape[1]
            if order == "motion":
                return Answer(rows)
            if order == "reverse":
                first = np.full((len(rows), n, p), np.nan)
                first[:-1], first[-1] = wanted.first[:-1, :n], values[1]
                return Answer(rows, first)
            first = np.concatenate([wanted.first[:1], values[1].reshape(-1, columns, p)])
            if order == "first":
                return Answer(rows, first)
            # Entries of a Jacobian by columns: parameter, time, column.
            twice = values[2].reshape(p, -1, columns, p).transpose(1, 2, 0, 3)
            return Answer(rows, first, np.concatenate([wanted.second[:1], twice]))

        return Program(run, TOLERANCES[:4])

    return prepared


def _short(error: Exception) -> str:
    lines = [x.strip() for x in str(error).splitlines() if "IDA" in x or "CV" in x]
    return (lines or [type(error).__name__])[0].rpartition("cpp:")[2][:200]


CODES: dict[str, Any] = {
    "CasADi, IDAS": program("motion"),
    "CasADi, IDAS, forward": program("first"),
    "CasADi, IDAS, adjoint": program("reverse"),
    "CasADi, IDAS, second derivatives": program("second"),
}
