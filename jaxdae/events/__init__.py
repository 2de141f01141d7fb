"""Events: what happens where a function of the state crosses zero, impacts among it."""
