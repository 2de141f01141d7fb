"""What the command refuses: one line that says why, status 2, and nothing in the folder."""

import pytest

from jaxdae.cli import main

# Words of a command, and a part of what it answers.
REFUSED = [
    ("simulate pendlum", "No model is named 'pendlum'. Did you mean 'pendulum'?"),
    ("tune nothing-like-it", "Available: pendulum, chain"),
    ("simulate pendulum --solver rk4", "RK4 has no error estimate"),
    ("simulate pendulum --solver dorpi5", "'dorpi5'. Did you mean 'dopri5'?"),
    ("tune pendulum --formulation penality", "Did you mean 'penalty'?"),
    ("simulate pendulum --solve minimal-norm", "Did you mean 'minimum-norm'?"),
    ("simulate pendulum --t1 1 --dt 1e-7", "give a larger max_steps"),
    # Gains and parts that have nothing to act on.
    ("simulate pendulum --decay 1", "--decay is for the velocity-elimination form, not for Mult"),
    ("analyze pendulum --alpha 5", "--alpha is for the penalty and augmented forms, not for M"),
    ("analyze pendulum --Gamma 5", "--Gamma is for velocity constraints, which the model 'pen"),
    ("analyze robot --K_P 5", "--K_P is for position constraints, which the model 'robot' d"),
    ("analyze andrews --K_D 5", "Baumgarte lacks a gain for them; give K_D=… and K_P=…"),
    ("simulate pendulum --unstabilized --K_D 1", "leave out --K_D, or it."),
    ("simulate arm --uncontrolled", "models with a controller, which 'arm' does not"),
    # What models lack.
    (
        "analyze two-link",
        "no state of rest to analyze: its constraints lead the tip after",
    ),
    ("analyze sleigh", "relative equilibria, which move in these coordinates. Models that have"),
    ("tune kepler", "'kepler' has no tuning study: it has no constraints, hence no gains that"),
    ("tune ball-beam-simplified", "has no tuning study: its coordinates are independent"),
    ("tune car-axis", "'car-axis' has no tuning study: its road moves"),
    ("tune flexible-slider-crank", "has no tuning study: the vibrations of its rod"),
    ("tune mirror --formulation penalty", "its study tunes the servo-constraint"),
    # Equilibria and starts.
    ("analyze pendulum --at z=1", "no coordinate is called 'z'; there are: x, y"),
    (
        "analyze knife-edge --at theta=0,x=0.5",  # down the slope it cannot carry its weight
        "The guess was x = 0.5, y = 0, theta = 0; give one nearer to a rest with --at NAME=VALUE,…",
    ),
    (
        "simulate pendulum --start height=1",
        "nothing is named 'height'. Give a coordinate: x, y; the velocity of one, such as "
        "'d(x)/dt'.",
    ),
    ("simulate pendulum --start d(x)=1", "nothing is named 'd(x)'. Did you mean 'd(x)/dt'? Give"),
    (
        "simulate mirror --start torqe=1",
        "Did you mean 'torque'? Give a coordinate: phi; the velocity of one, such as 'd(phi)/dt'; "
        "or an actuator state: torque, rate of the torque.",
    ),
    (
        "simulate pendulum --start x=2",
        "the values x = 2 do not fit the constraints near the model's start: constraint 'rod' "
        "fails at position level by at least 3 (allowed ",
    ),
    ("simulate pendulum --start y=-1,d(y)/dt=0.1", "'rod' fails at velocity level by at least 0.2"),
    # Kernels.
    ("kernel pendulum --solver implicit-euler", "ImplicitEuler is no explicit or diagonally impl"),
    ("kernel pendulum --arch sm_1", "does not know 'sm_1'; it knows sm_"),
    ("kernel pendulum --arch sm_60", "for GPUs from sm_70 on, and sm_60 is older"),
]
# Words that the parser itself refuses.
UNREAD = [
    ("fly pendulum", "invalid choice: 'fly'"),
    ("tune pendulum --optimizer newton", "invalid choice: 'newton'"),
    ("simulate pendulum --dtype float16", "invalid choice: 'float16'"),
    ("tune pendulum --steps 0", "argument --steps: 0 is not a positive integer"),
    ("simulate pendulum --dt -1", "argument --dt: -1 is not a positive finite number"),
    ("simulate pendulum --t1 ten", "argument --t1: ten is not a positive finite number"),
    ("simulate pendulum --alpha nan", "argument --alpha: nan is not a positive finite number"),
    ("analyze pendulum --at y", "'y' does not say NAME=VALUE"),
    ("analyze pendulum --at x=1,,y=2", "'x=1,,y=2' does not say NAME=VALUE"),
    ("simulate pendulum --start y=-inf", "with finite numbers in SI units and rad"),
    ("simulate pendulum --start y=30deg", "without the units"),
    ("simulate pendulum --start x=1,y=0,x=0", "gives 'x' twice; give it once"),
]


@pytest.mark.parametrize(("words", "message"), REFUSED)
def test_what_cannot_be_done_is_refused_in_one_line(words, message, tmp_path, capsys):
    assert main([*words.split(), "--out", str(tmp_path / "out")]) == 2
    errors = capsys.readouterr().err
    assert message in errors
    assert len(errors.strip().splitlines()) == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("words", "message"), UNREAD)
def test_what_cannot_be_read_is_named(words, message, capsys):
    with pytest.raises(SystemExit) as stop:
        main(words.split())
    assert stop.value.code == 2
    assert message in " ".join(capsys.readouterr().err.split())
