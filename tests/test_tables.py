"""Text of numbers."""

import numpy as np
import pytest

from jaxdae.tables import root_text


@pytest.mark.parametrize(
    ("root", "text"),
    # Releases of NumPy differ in whether real eigenvalues come as complex numbers.
    [
        (np.float64(-400.0), "-400"),
        (np.complex128(-400.0), "-400"),
        (complex(-400.0, -0.0), "-400"),
        (complex(-1.5, -2.25), "-1.5 ± 2.25i"),
        (complex(-1.5, 2.25), "-1.5 ± 2.25i"),
        (complex(0.0, 2.25), "±2.25i"),
    ],
)
def test_a_real_root_is_one_number_and_a_complex_pair_another(root, text):
    assert root_text(root) == text
