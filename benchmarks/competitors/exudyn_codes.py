"""Exudyn: bodies and joints in redundant Cartesian coordinates, fixed steps of its DAE solvers.

The constraints are enforced exactly, without stabilization, so that the start must fulfil them.
Andrews' mechanism is not built here: its bodies' joints would need a model of its own.
"""

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from .base import MissingCodeError, package, Problem, Run

_GRAVITY = 9.81


def trapezoidal(problem: Problem, steps: int, newton: float = 1e-10) -> Run:
    """The implicit trapezoidal rule on the index-2 form.

    Args:
        problem: what to solve.
        steps: number of steps; Exudyn halves those whose equations it cannot solve.
        newton: relative tolerance of Newton's method.
    """
    return _run(problem, steps, newton, "TrapezoidalIndex2")


def generalized_alpha(problem: Problem, steps: int, newton: float = 1e-10) -> Run:
    """Generalized-alpha on the index-3 form, spectral radius 0.9; else as `trapezoidal`."""
    return _run(problem, steps, newton, "GeneralizedAlpha")


def _run(problem: Problem, steps: int, newton: float, solver: str) -> Run:
    began = time.perf_counter()
    exu = package("exudyn")
    container = exu.SystemContainer()
    system = container.AddSystem()
    build = {"two-link": _two_link, "chain": _chain}.get(problem.mechanism)
    if build is None:
        raise MissingCodeError(f"{problem.mechanism} is not modelled in Exudyn here")
    recover = build(system, package("exudyn.itemInterface", "exudyn"), problem)
    system.Assemble()
    settings = _settings(exu, problem, steps, newton)
    kind = getattr(exu.DynamicSolverType, solver)

    def solve(owner=container) -> np.ndarray:
        del owner  # it must live as long as its system
        if not system.SolveDynamic(settings, solverType=kind):
            raise RuntimeError("Exudyn's solver did not converge")
        q = system.systemData.GetODE2Coordinates()
        return recover(np.array(q), np.array(system.systemData.GetODE2Coordinates_t()))

    return Run(solve, time.perf_counter() - began)


def _settings(exu: Any, problem: Problem, steps: int, newton: float) -> Any:
    """Fixed steps, nothing written, and the sparse solver where it is the faster one."""
    settings = exu.SimulationSettings()
    integration = settings.timeIntegration
    integration.numberOfSteps, integration.endTime = steps, problem.t1
    integration.generalizedAlpha.spectralRadius = 0.9
    integration.newton.useModifiedNewton = True  # faster here than its full form
    integration.newton.relativeTolerance = newton
    integration.newton.absoluteTolerance = newton / 100
    integration.verboseMode = 0
    settings.solutionSettings.writeSolutionToFile = False
    settings.solutionSettings.solutionWritePeriod = problem.t1
    settings.solutionSettings.sensorsWritePeriod = problem.t1
    settings.displayStatistics = False
    if len(problem.q) > 20:
        settings.linearSolver.solverType = exu.LinearSolverType.EigenSparse
        settings.linearSolver.reuseAnalyzedPattern = True
    return settings


def _chain(system: Any, items: Any, problem: Problem) -> Callable:
    """Point masses in the plane, held at constant distances."""
    points, speeds = problem.q.reshape(-1, 2), problem.v.reshape(-1, 2)
    links = len(points)
    mass, length = 1.0 / links, 1.0 / links
    ground = system.AddObject(items.ObjectGround())
    previous = system.AddMarker(items.MarkerBodyPosition(bodyNumber=ground))
    for place, speed in zip(points, speeds, strict=True):
        start = {"referenceCoordinates": list(place), "initialVelocities": list(speed)}
        node = system.AddNode(items.NodePoint2D(**start))
        system.AddObject(items.ObjectMassPoint2D(physicsMass=mass, nodeNumber=node))
        marker = system.AddMarker(items.MarkerNodePosition(nodeNumber=node))
        weight = [0.0, -mass * _GRAVITY, 0.0]
        system.AddLoad(items.LoadForceVector(markerNumber=marker, loadVector=weight))
        ends = [previous, marker]
        system.AddObject(items.ObjectConnectorDistance(markerNumbers=ends, distance=length))
        previous = marker
    return lambda q, v: np.concatenate([problem.q + q, v])


def _two_link(system: Any, items: Any, problem: Problem) -> Callable:
    """Two bodies on hinges; the tip on a point whose coordinates are led."""
    first, second = problem.q[0], problem.q[0] + problem.q[1]
    spins = problem.v[0], problem.v[0] + problem.v[1]
    unit = lambda angle: np.array([np.cos(angle), np.sin(angle)])  # noqa: E731
    turned = lambda angle: np.array([-np.sin(angle), np.cos(angle)])  # noqa: E731
    elbow, elbow_speed = unit(first), spins[0] * turned(first)
    ground = system.AddObject(items.ObjectGround())
    base = system.AddMarker(items.MarkerBodyPosition(bodyNumber=ground))
    place, speed = elbow / 2, elbow_speed / 2
    link = _link(system, items, 2.0, 1.0, (*place, first), (*speed, spins[0]))
    _hinge(system, items, base, link[0])
    place, speed = elbow + unit(second) / 4, elbow_speed + spins[1] * turned(second) / 4
    forearm = _link(system, items, 1.0, 0.5, (*place, second), (*speed, spins[1]))
    _hinge(system, items, link[1], forearm[0])
    start = {"referenceCoordinates": [0.295953, 0.5], "initialVelocities": [-0.6, 0.0]}
    node = system.AddNode(items.NodePoint2D(**start))
    system.AddObject(items.ObjectMassPoint2D(physicsMass=1.0, nodeNumber=node))
    target = system.AddMarker(items.MarkerNodePosition(nodeNumber=node))
    _hinge(system, items, forearm[1], target)
    _lead(system, items, node, 0, -0.6)
    _lead(system, items, node, 1, 0.0)

    def recover(q: np.ndarray, v: np.ndarray) -> np.ndarray:
        angles, rates = (first + q[2], second + q[5]), (v[2], v[5])
        relative = [angles[0], angles[1] - angles[0], rates[0], rates[1] - rates[0]]
        return np.array(relative)

    return recover


def _lead(system: Any, items: Any, node: Any, coordinate: int, speed: float) -> None:
    """Let a coordinate of a node grow at a constant speed."""
    ground = system.AddNode(items.NodePointGround())
    fixed = system.AddMarker(items.MarkerNodeCoordinate(nodeNumber=ground, coordinate=0))
    led = system.AddMarker(items.MarkerNodeCoordinate(nodeNumber=node, coordinate=coordinate))
    options = {}
    if speed:
        options = {
            "offsetUserFunction": lambda mbs, t, item, offset: speed * t,  # noqa: ARG005
            "offsetUserFunction_t": lambda mbs, t, item, offset: speed,  # noqa: ARG005
        }
    system.AddObject(items.ObjectConnectorCoordinate(markerNumbers=[fixed, led], **options))


def _link(system: Any, items: Any, mass: float, length: float, place, speed) -> tuple[Any, Any]:
    """A uniform rod with its weight; markers at its two ends."""
    start = {"referenceCoordinates": list(place), "initialVelocities": list(speed)}
    node = system.AddNode(items.NodeRigidBody2D(**start))
    inertia = mass * length**2 / 12
    body = system.AddObject(
        items.ObjectRigidBody2D(physicsMass=mass, physicsInertia=inertia, nodeNumber=node)
    )
    at = lambda x: system.AddMarker(  # noqa: E731
        items.MarkerBodyPosition(bodyNumber=body, localPosition=[x, 0.0, 0.0])
    )
    weight = [0.0, -mass * _GRAVITY, 0.0]
    system.AddLoad(items.LoadForceVector(markerNumber=at(0.0), loadVector=weight))
    return at(-length / 2), at(length / 2)


def _hinge(system: Any, items: Any, one: Any, other: Any) -> None:
    system.AddObject(items.ObjectJointRevolute2D(markerNumbers=[one, other]))
