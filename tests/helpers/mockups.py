"""Functional Mock-up Units as importers run them, by fmpy."""

from typing import Any

import fmpy
import numpy as np
from fmpy.fmi2 import (
    fmi2CallbackFunctions,
    fmi2CallbackLoggerTYPE,
    FMU2Model,
    FMU2Slave,
)
from fmpy.fmi3 import FMU3Model, FMU3Slave
from fmpy.validation import validate_fmu

import jaxdae

_CLASSES = {
    ("2.0", "exchange"): FMU2Model, ("2.0", "steps"): FMU2Slave,
    ("3.0", "exchange"): FMU3Model, ("3.0", "steps"): FMU3Slave,
}  # fmt: skip


class Mockup:
    """An unpacked unit.

    Args:
        path: the file.
        folder: to unpack it in.
    """

    def __init__(self, path, folder):
        self.path = path
        self.problems = validate_fmu(str(path))
        self.description: Any = fmpy.read_model_description(str(path))
        self.folder = fmpy.extract(str(path), unzipdir=str(folder))
        self.places = {x.name: x.valueReference for x in self.description.modelVariables}
        self.variables = {x.name: x for x in self.description.modelVariables}

    def named(self, start: str) -> list[str]:
        """Names of variables that begin with something."""
        return [x for x in self.places if x.startswith(start)]

    @property
    def derivatives(self) -> list[str]:
        """Names of those of the states, in their order."""
        return [x.variable.name for x in self.description.derivatives]

    @property
    def states(self) -> list[str]:
        """Names of the states."""
        return [x.variable.derivative.name for x in self.description.derivatives]

    def instance(self, way: str, **values) -> "Instance":
        """A new one, whose values are set before its initialization."""
        return Instance(self, way, values)


class Instance:
    """An instance with its messages.

    Attributes:
        messages: those of its logger.
    """

    def __init__(self, mockup: Mockup, way: str, values):
        self.mockup, self.messages, self.way = mockup, [], way
        version = mockup.description.fmiVersion
        kind = mockup.description.modelExchange or mockup.description.coSimulation
        self.fmu: Any = _CLASSES[version, way](
            guid=mockup.description.guid, unzipDirectory=mockup.folder,
            modelIdentifier=kind.modelIdentifier, instanceName="one",
        )  # fmt: skip
        self.is_third = version == "3.0"
        if self.is_third:
            self.fmu.instantiate(logMessage=self._note)
        else:
            self.callbacks = fmi2CallbackFunctions()
            self.callbacks.logger = fmi2CallbackLoggerTYPE(self._note_words)
            self.fmu.instantiate(callbacks=self.callbacks)
        self.set(**values)

    def _note_words(self, environment, name, status, category, message):
        # The message itself is behind its format, "%s", where Python does not see it.
        self.messages.append(f"{name.decode()}: status {status}, {category.decode()}")

    def _note(self, environment, status, category, message):
        self.messages.append(message.decode())

    def initialize(self, start=0.0, stop=None, go_on=True) -> "Instance":
        """Through the initialization, and of model exchange to where time goes on."""
        if self.is_third:
            self.fmu.enterInitializationMode(startTime=start, stopTime=stop)
        else:
            self.fmu.setupExperiment(startTime=start, stopTime=stop)
            self.fmu.enterInitializationMode()
        self.fmu.exitInitializationMode()
        if self.way == "exchange" and go_on:
            self.fmu.enterContinuousTimeMode()
        return self

    def set(self, **values) -> None:
        """Change variables."""
        places = [self.mockup.places[x] for x in values]
        if places:
            function = self.fmu.setFloat64 if self.is_third else self.fmu.setReal
            function(places, [float(x) for x in values.values()])

    def get(self, *names) -> np.ndarray:
        """Values of variables."""
        places = [self.mockup.places[x] for x in names]
        return np.array((self.fmu.getFloat64 if self.is_third else self.fmu.getReal)(places))

    def steps(self, size: float, count: int, start=0.0) -> np.ndarray:
        """States after communication steps of one size."""
        rows = []
        for i in range(count):
            self.fmu.doStep(start + i * size, size)
            rows.append(self.get(*self.mockup.states))
        return np.array(rows)

    def rates(self, t: float, x) -> np.ndarray:
        """Derivatives of the states in model exchange."""
        n = len(self.mockup.states)
        self.fmu.setTime(t)
        given, rates = (np.ctypeslib.as_ctypes(np.array(z, float)) for z in (x, [0.0] * n))
        self.fmu.setContinuousStates(given, len(x))
        if self.is_third:
            self.fmu.getContinuousStateDerivatives(rates, n)
        else:
            self.fmu.getDerivatives(rates, n)
        return np.array(rates)

    def along(self, unknowns, knowns, seed) -> np.ndarray:
        """Directional derivative."""
        of, by = ([self.mockup.places[x] for x in names] for names in (unknowns, knowns))
        return np.array(self.fmu.getDirectionalDerivative(of, by, list(seed)))

    def back(self, unknowns, knowns, seed) -> np.ndarray:
        """Adjoint derivative."""
        of, by = ([self.mockup.places[x] for x in names] for names in (unknowns, knowns))
        return np.array(self.fmu.getAdjointDerivative(of, by, list(seed), len(by)))

    def close(self) -> None:
        """Free it."""
        self.fmu.fmi3FreeInstance(self.fmu.component) if self.is_third else (
            self.fmu.fmi2FreeInstance(self.fmu.component)
        )


def states_of(run: jaxdae.Trajectory) -> np.ndarray:
    """Coordinates, velocities and actuator states of all rows of a run."""
    return np.concatenate([run.q, run.v, run.w], axis=1)
