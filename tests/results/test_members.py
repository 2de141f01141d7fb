"""Members of batches: chosen by index, and what was varied to make them."""

import contextlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from helpers.stored_runs import released, stored
from jaxdae import Trajectory
from jaxdae.results.naming import axis_labels


def _release(length, angle):
    return released(length, angle, throw=False, work=True)


LENGTHS, ANGLES = np.array([0.5, 1.5]), np.array([0.3, 1.0, 2.0])


@pytest.fixture(scope="module")
def live():
    """Two lengths by three angles."""
    batch = jax.vmap(jax.vmap(_release, (None, 0)), (0, None))(LENGTHS, ANGLES)
    return batch.varying(("length", "angle"), length=LENGTHS, angle=ANGLES)


@pytest.fixture(params=["live", "stored"])
def batch(request, live):
    return live if request.param == "live" else live.stored()


def test_indices_choose_members_as_numpy_does(batch):
    q = np.asarray(batch.q)
    mask = np.array([False, True])
    for index in (
        0,
        -1,
        np.int64(1),
        (1, 2),
        (-1, -3),
        slice(1, None),
        [1, 0, 1],
        mask,
        jnp.array(0),
    ):
        chosen = batch[index]
        np.testing.assert_array_equal(chosen.q, q[index])
        np.testing.assert_array_equal(chosen.final_time, np.asarray(batch.final_time)[index])
        assert chosen.batch_shape == q[index].shape[:-2]
    assert [x.batch_shape for x in batch] == [(3,), (3,)]  # and ends


def test_what_was_varied_goes_with_the_members(batch):
    """With the names of the axes that are left."""
    assert batch.varied.axes == ("length", "angle")
    np.testing.assert_array_equal(batch.varied.values["angle"], [ANGLES, ANGLES])
    lengths, angles = axis_labels(batch.stored())
    np.testing.assert_array_equal(lengths, LENGTHS)
    np.testing.assert_array_equal(angles, ANGLES)
    one = batch[1]
    assert one.varied.axes == ("angle",)
    np.testing.assert_array_equal(one.varied.values["length"], [1.5] * 3)
    last = one[-1].varied
    assert (last.axes, float(last.values["angle"]), float(last.values["length"])) == ((), 2.0, 1.5)
    assert batch[:1].varied.axes == ("length", "angle")


@contextlib.contextmanager
def programs():
    """Names of JAX's events of tracing and compiling, as they come."""
    events = []

    def listen(event, duration_secs, **about):
        del duration_secs, about
        events.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield events
    jax.monitoring.unregister_event_duration_listener(listen)


def test_names_of_a_batch_compile_nothing_anew(live):
    """They are no part of what is read."""
    _ = live.energy
    other = live.varying(colour=[["red", "green", "blue"]] * 2)
    with programs() as events:
        _ = other.energy
    assert [x for x in events if "compile" in x] == []


def test_texts_name_members_and_are_stored(tmp_path):
    run = stored((3,)).varying("gains", gains=["paper", "tuned", "none"])
    loaded = Trajectory.load(run.save(tmp_path / "run"))
    assert loaded.about.axes == ("gains",)
    assert str(loaded[1].known["varied.gains"]) == "tuned"


def test_values_under_a_transformation_are_carried_along():
    """Abstract ones too: the names are put on inside."""
    names = jax.eval_shape(
        lambda x: jax.vmap(_release, (None, 0))(1.0, x).varying("angle", angle=x), jnp.ones(3)
    ).varied
    assert (names.axes, names.values["angle"].shape) == (("angle",), (3,))


@pytest.mark.parametrize(
    ("index", "error", "words"),
    [
        (3, IndexError, r"index 3 is out of bounds .* the batch has shape \(3,\), counted from 0"),
        ([0, -4], IndexError, "index -4 is out of bounds"),
        ((0, 0), IndexError, r"too many indices .* the batch has shape \(3,\)"),
        (np.ones(2, bool), IndexError, r"boolean index .* the batch has shape \(3,\)"),
        (True, TypeError, r"shape \(3,\) are chosen by integers, a slice, .*; got True"),
        ((0.5,), TypeError, r"got \(0\.5,\)"),
    ],
)
def test_members_that_there_are_not(index, error, words):
    with pytest.raises(error, match=words):
        _ = stored((3,))[index]


def test_a_single_run_has_no_members():
    with pytest.raises(TypeError, match="this is one run, not a batch: it has no members"):
        _ = stored()[0]
    with pytest.raises(ValueError, match="this is one run, not a batch: nothing varies"):
        stored().varying(length=1.0)


@pytest.mark.parametrize(
    ("axes", "values", "words"),
    [
        (
            ("a",),
            {},
            r"has 2 axes, of lengths \(2, 3\), and the names given are \('a',\)",
        ),
        (("a", "a"), {}, "all different"),
        (None, {"a": np.ones(2)}, r"a has shape \(2,\), and the batch \(2, 3\)"),
        (("a", "b"), {"b": np.ones(2)}, "or that of the axis it names alone"),
        (None, {"a": 1.0}, r"a has shape \(\)"),
        (None, {"a": [[object()] * 3] * 2}, "a holds object; give numbers or texts"),
    ],
)
def test_names_that_do_not_fit_are_refused(axes, values, words):
    with pytest.raises(ValueError, match=words):
        stored((2, 3)).varying(axes, **values)
