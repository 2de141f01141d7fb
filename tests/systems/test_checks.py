"""Wrong declarations: the function at fault, the shape it returned, and what to do."""

import jax.numpy as jnp
import pytest

import jaxdae
from jaxdae.models.arm import PointMassArm
from jaxdae.models.mirror import AdaptiveMirror


class Free(jaxdae.System):
    """A particle in the plane, with one actuator."""

    def kinetic_energy(self, t, q, v):
        return 0.5 * v @ v


STATE = jaxdae.State(jnp.ones(2), jnp.zeros(2), jnp.zeros(1))

# function, what it returns, what the message must say
WRONG = [
    ("kinetic_energy", lambda t, q, v: v**2, r"returned shape \(2,\); expected shape \(\)"),
    ("potential_energy", lambda t, q: q, r"returned shape \(2,\); expected shape \(\)"),
    ("dissipation", lambda t, q, v: v, r"returned shape \(2,\); expected shape \(\)"),
    ("force", lambda t, q, v, w, u: w, r"returned shape \(1,\); expected shape \(2,\)"),
    ("position_constraints", lambda t, q: q @ q, r"returned shape \(\); expected a vector.*stack"),
    ("velocity_constraints", lambda t, q, v: v @ v, r"returned shape \(\); expected a vector"),
    ("actuator_rate", lambda t, q, v, w, u: q, r"returned shape \(2,\).*initial state: State\(q"),
    ("mass_matrix", lambda t, q: q, r"returned shape \(2,\); expected shape \(2, 2\)"),
    ("force", lambda t, q, v, w, u: None, r"returned nothing; expected shape \(2,\)"),
]


@pytest.mark.parametrize(("function", "wrong", "message"), WRONG)
def test_wrong_shape_names_function_shape_and_remedy(function, wrong, message):
    """Each function of a declaration is checked before anything is computed."""
    broken = type("Broken", (Free,), {function: lambda self, *args: wrong(*args)})()
    with pytest.raises(ValueError, match=rf"Broken\.{function} {message}"):
        jaxdae.check_system(broken, STATE)
    with pytest.raises(ValueError, match=rf"Broken\.{function} {message}"):
        jaxdae.simulate(broken, jaxdae.Multipliers(), STATE, t1=1.0)


def test_right_declarations_pass(everything, double_pendulum):
    """A declaration with all functions and one with the fewest pass in silence."""
    assert (
        jaxdae.check_system(everything, jaxdae.State(jnp.ones(3), jnp.ones(3), jnp.ones(1))) is None
    )
    assert jaxdae.check_system(double_pendulum, jaxdae.State(jnp.ones(2), jnp.ones(2))) is None
    assert jaxdae.check_system(Free(), STATE) is None


def test_q_and_v_of_different_lengths_are_refused():
    """A state with |q| != |v| cannot be one of a System."""
    with pytest.raises(ValueError, match=r"q and v .*shapes \(2,\) and \(3,\)"):
        jaxdae.check_system(Free(), jaxdae.State(jnp.ones(2), jnp.ones(3)))


def test_missing_actuator_state_is_refused_with_the_remedy(everything):
    """A force that reads w, simulated without w, is asked to give one."""
    message = r"Everything\.force failed with IndexError.*w: shape \(0,\).*need a State\(q, v, w"
    with pytest.raises(ValueError, match=message):
        jaxdae.check_system(everything, jaxdae.State(jnp.ones(3), jnp.ones(3)))


def test_missing_control_input_is_refused_with_the_remedy():
    """A force that reads u, simulated without a controller, is asked to give one."""
    driven = type("Driven", (Free,), {"force": lambda self, t, q, v, w, u: u[:2]})()
    with pytest.raises(ValueError, match=r"Driven\.force failed.*u: nothing.*a controller"):
        jaxdae.simulate(driven, jaxdae.Multipliers(), STATE, t1=1.0)
    # Its states can be made consistent all the same: no force is asked for.
    out = jaxdae.consistent_state(driven, STATE.q, STATE.v, w=STATE.w)
    assert (out.q == STATE.q).all()


# a misspelt function, and what is meant
MISSPELT = {
    "position_constraint": "position_constraints",
    "velocity_constrains": "velocity_constraints",
    "massmatrix": "mass_matrix",
}


@pytest.mark.parametrize("name", MISSPELT)
def test_misspelt_functions_are_refused_by_name(name):
    """They would count as not declared; inherited ones as well."""
    wrong = type("Wrong", (Free,), {name: lambda self, *args: args[1]})
    message = (
        rf"\.{name} is not a function of the declaration.*'{MISSPELT[name]}' is probably meant"
    )
    for system in (wrong(), type("Heir", (wrong,), {})()):
        with pytest.raises(ValueError, match=message):
            jaxdae.check_system(system, STATE)
    with pytest.raises(ValueError, match=message):
        jaxdae.simulate(wrong(), jaxdae.Multipliers(), STATE, t1=1.0)


def test_helpers_with_names_of_their_own_are_not_taken_for_misspellings():
    """Words of mechanics that a system may well use."""
    names = ("potential", "energy", "mass", "position", "constraint_force", "positions", "friction")
    helped = type("Helped", (Free,), dict.fromkeys(names, lambda self: 0.0))()
    assert jaxdae.check_system(helped, STATE) is None


THREE = jnp.ones(3)


@pytest.mark.parametrize(
    "use",
    [
        lambda mirror, state: jaxdae.simulate(
            mirror, jaxdae.Multipliers(), state, t1=1.0, controller=lambda *_: THREE
        ),
        lambda mirror, state: jaxdae.equilibrium(mirror, state.q, state.w, THREE),
        lambda mirror, state: jaxdae.ServoConstraint(
            mirror.program,
            jaxdae.control.HurwitzGains.repeated(5.0, 4),
            system=mirror,
            formulation=jaxdae.Multipliers(),
            sample=state,
            controls=3,
        ),
    ],
    ids=["simulate", "equilibrium", "servo-constraint"],
)
def test_wrong_number_of_controls_is_refused(use):
    """The mirror takes `u[0]`: two superfluous ones would be ignored in silence."""
    mirror = AdaptiveMirror()
    expected = r"AdaptiveMirror has 1 control input \(voltage\); .* has shape \(3,\)"
    with pytest.raises(ValueError, match=expected):
        use(mirror, mirror.program_state(0.0))


@pytest.mark.slow
def test_a_single_number_for_several_controls_is_refused():
    """It would be broadcast."""
    arm = PointMassArm()
    with pytest.raises(ValueError, match=r"has 4 control inputs \(F1, F2, F3, F4\); .* \(1,\)"):
        jaxdae.check_system(arm, jaxdae.State(*arm.start()), u=jnp.ones(1))
