"""Errors that rooms share."""


class BackendError(ValueError):
    """The native backend was asked for and cannot serve this simulation."""
