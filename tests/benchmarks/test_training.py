"""The loop by hand and `tune` make the same updates of a policy."""

import jax
import numpy as np
import pytest


@pytest.mark.slow
def test_both_codes_make_the_same_updates(benchmark):
    training = benchmark("training")
    seconds, tuned, by_hand = training.in_turn(3, members=3)
    assert {len(x) for x in seconds.values()} == {2}
    pairs = zip(jax.tree.leaves(tuned), jax.tree.leaves(by_hand), strict=True)
    arrays = [x for x in pairs if hasattr(x[0], "shape")]
    assert len(arrays) == 6  # weights and biases
    for one, other in arrays:
        # The same operations in programs that are fused in other ways.
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-9)
