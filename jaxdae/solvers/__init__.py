"""Solvers: Runge–Kutta methods for the ODE route that diffrax does not ship."""

from jaxdae.solvers.runge_kutta import RK4 as RK4
