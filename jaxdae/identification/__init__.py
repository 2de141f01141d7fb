"""Identification: parameters, their errors, and unknown starts from measured motions."""

from jaxdae import names as _names
from jaxdae.identification.data import (
    Channel as Channel,
    Experiment as Experiment,
    Measurement as Measurement,
    Prior as Prior,
    UnknownStart as UnknownStart,
)
from jaxdae.identification.identify import identify as identify
from jaxdae.identification.posterior import (
    Posterior as Posterior,
    posterior as posterior,
    Repetitions as Repetitions,
    repetitions as repetitions,
)
from jaxdae.identification.records import read_record as read_record, Record as Record
from jaxdae.identification.report import (
    FittedChannel as FittedChannel,
    Identification as Identification,
    SensorLine as SensorLine,
)
from jaxdae.identification.sensors import Calibration as Calibration
from jaxdae.identification.validation import (
    PredictedChannel as PredictedChannel,
    validate as validate,
    Validation as Validation,
)

__all__ = _names.public(globals())
