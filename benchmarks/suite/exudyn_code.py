"""Exudyn on the suite: points at constant distances and rolling disks in redundant coordinates.

Generalized-alpha steps of the index-3 form, of second order. It has no derivatives of motions by
parameters; those given here are central differences of its runs.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from competitors.base import package

from .answers import Answer, Program, RefusedError
from .catalogue import Motion
from .mechanism import Mechanism, named

STEPS = (400, 1600, 6400)
DIFFERENCE = 1e-4  # of parameters, relative

# Masses, distances to constant lengths (point, or a fixed place), and springs, from parameters.
_Points = tuple[Sequence[float], list[tuple[Any, Any, float]]]


def _pendulum(p: Any) -> _Points:
    return [p.mass], [((0.0, 0.0), 0, p.length)]


def _double(p: Any) -> _Points:
    return [p.mass1, p.mass2], [((0.0, 0.0), 0, p.length1), (0, 1, p.length2)]


def _chain(p: Any) -> _Points:
    ties = [((0.0, 0.0) if i == 0 else i - 1, i, p.length) for i in range(5)]
    return [p.mass] * 4 + [p.last], ties


_BUILD: dict[str, Callable[[Any], _Points]] = {
    "pendulum": _pendulum, "double-pendulum": _double, "chain": _chain,
}  # fmt: skip


def engine(*, differences: bool) -> Callable[[Mechanism, Motion], Program]:
    """Runs of Exudyn's implicit solver.

    Args:
        differences: with derivatives by central differences of runs.
    """

    def prepared(mechanism: Mechanism, wanted: Motion) -> Program:
        exudyn, items = package("exudyn"), package("exudyn.itemInterface", "exudyn")
        if mechanism.name not in _BUILD:
            raise RefusedError("not modelled in Exudyn here")
        n = len(mechanism.coordinates)
        base = np.array([mechanism.values[x] for x in mechanism.by])

        def rows(steps: int, by: np.ndarray) -> np.ndarray:
            values = mechanism.values | dict(zip(mechanism.by, map(float, by), strict=True))
            p = named([*values], [*values.values()])
            # The start to second order, as the reference has it.
            step = by - base
            start = wanted.rows[0, : 2 * n] + wanted.first[0, : 2 * n] @ step
            start = start + wanted.second[0, : 2 * n] @ step @ step / 2
            masses, ties = _BUILD[mechanism.name](p)
            container = exudyn.SystemContainer()
            system = container.AddSystem()
            _assembled(system, items, masses, ties, p.gravity, start)
            found = [start]
            for before, t in zip(wanted.t[:-1], wanted.t[1:], strict=True):
                settings = _settings(exudyn, steps // (len(wanted.t) - 1), before, t)
                kind = exudyn.DynamicSolverType.GeneralizedAlpha
                if not system.SolveDynamic(settings, solverType=kind):
                    raise RefusedError("Exudyn's solver did not converge")
                state = system.systemData
                q, v = np.array(state.GetODE2Coordinates()), np.array(state.GetODE2Coordinates_t())
                found.append(np.concatenate([start[:n] + q, v]))
                state.SetSystemState(
                    state.GetSystemState(exudyn.ConfigurationType.Current),
                    exudyn.ConfigurationType.Initial,
                )
            return np.array(found)

        def run(steps: int) -> Answer:
            middle = rows(steps, base)
            if not differences:
                return Answer(middle)
            columns = []
            for i in range(len(base)):
                h = DIFFERENCE * (abs(base[i]) or 1.0) * np.eye(len(base))[i]
                columns.append((rows(steps, base + h) - rows(steps, base - h)) / (2 * h[i]))
            return Answer(middle, np.stack(columns, axis=-1))

        return Program(run, STEPS)

    return prepared


def _assembled(
    system: Any, items: Any, masses: Sequence[float], ties: Any, gravity: float, start: np.ndarray
) -> None:
    """Points in the plane with their weights, and their distances."""
    places, speeds = start.reshape(2, -1, 2)
    ground = system.AddObject(items.ObjectGround())
    markers: list[Any] = []
    for mass, place, speed in zip(masses, places, speeds, strict=True):
        given = {"referenceCoordinates": list(place), "initialVelocities": list(speed)}
        node = system.AddNode(items.NodePoint2D(**given))
        system.AddObject(items.ObjectMassPoint2D(physicsMass=mass, nodeNumber=node))
        markers.append(system.AddMarker(items.MarkerNodePosition(nodeNumber=node)))
        weight = [0.0, -mass * gravity, 0.0]
        system.AddLoad(items.LoadForceVector(markerNumber=markers[-1], loadVector=weight))
    for one, other, length in ties:
        fixed = one
        if isinstance(one, tuple):
            at = items.MarkerBodyPosition(bodyNumber=ground, localPosition=[*one, 0.0])
            fixed = system.AddMarker(at)
        ends = [fixed if isinstance(one, tuple) else markers[one], markers[other]]
        system.AddObject(items.ObjectConnectorDistance(markerNumbers=ends, distance=length))
    system.Assemble()


def _settings(exudyn: Any, steps: int, t0: float, t1: float) -> Any:
    settings = exudyn.SimulationSettings()
    integration = settings.timeIntegration
    integration.numberOfSteps, integration.startTime, integration.endTime = steps, t0, t1
    integration.generalizedAlpha.spectralRadius = 0.9
    integration.newton.relativeTolerance = 1e-11
    integration.newton.absoluteTolerance = 1e-13
    integration.verboseMode = 0
    settings.solutionSettings.writeSolutionToFile = False
    settings.displayStatistics = False
    return settings


CODES: dict[str, Any] = {
    "Exudyn": engine(differences=False),
    "Exudyn, differences": engine(differences=True),
}
