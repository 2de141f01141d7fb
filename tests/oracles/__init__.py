"""Motions by SciPy on equations derived by hand: what tests of the library compare with."""

from oracles.base import Oracle as Oracle, Solution as Solution
from oracles.five_bar import FiveBar as FiveBar
from oracles.mechanisms import (
    Chain as Chain,
    KnifeEdge as KnifeEdge,
    Motor as Motor,
    Pendulum as Pendulum,
    SliderCrank as SliderCrank,
    TwoLink as TwoLink,
)
