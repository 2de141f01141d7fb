"""The command `jaxdae`: list, simulate, tune, analyze, kernel, doctor."""

import argparse
import contextlib
import gc
import os
import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from jaxdae.interruptions import beside, LINE, listening

LISTS = ("models", "formulations", "solves", "solvers")
# Those of `jaxdae.tuning.optimizers`, and others of optax.
OPTIMIZERS = (
    *("lm", "gauss-newton", "l-bfgs", "slsqp", "trust-constr"),
    *("adam", "adamw", "nadam", "rmsprop", "sgd"),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command.

    Args:
        arguments: words after `jaxdae`; those of the process when not given.

    Returns:
        Exit status: 0 for success, 1 when a run failed, 2 for bad input; 130 when interrupted, 141
        when nobody reads on (`jaxdae list | head`), as shells number them.
    """
    # Called by another program, which has its own way with interruptions.
    if arguments is not None or not listening():
        return _run(arguments)
    return beside(lambda: _run(None))


def _run(arguments: Sequence[str] | None) -> int:
    options = _parser().parse_args(arguments)
    # Tracing makes many objects and little garbage; looking for it takes a sixth of the time.
    gc.set_threshold(200_000, 20, 100)
    # A bar redraws its line; in a file or a pipe it would only pile up.
    options.progress = getattr(options, "progress", False) and sys.stderr.isatty()
    try:
        if options.command != "listing":  # which runs nothing
            _configure(options)
        command = import_module(f"jaxdae.commands.{options.command}")
        with _warnings_in_words():
            status = command.run(options)
        sys.stdout.flush()
        return status
    except BrokenPipeError:
        # What is left of the output is written when Python ends: to nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except (ValueError, OSError) as error:
        print(f"jaxdae: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"\n{LINE}", file=sys.stderr)
        return 130


@contextlib.contextmanager
def _warnings_in_words():
    """What the library warns of as a line of its own, without the place in the code."""
    show_others = warnings.showwarning

    def show(message, category, *place):
        if issubclass(category, RuntimeWarning):
            print(f"jaxdae: warning: {message}", file=sys.stderr)
        else:
            show_others(message, category, *place)

    with warnings.catch_warnings():
        warnings.simplefilter("always", RuntimeWarning)
        warnings.showwarning = show
        yield


def _configure(options) -> None:
    """Precision, and a cache for compiled programs. Only the command does this, never an import."""
    _set_flags(options)
    import jax

    from jaxdae.storage.files import private_folder

    if jax.config.values["jax_compilation_cache_dir"] is None:
        cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "jaxdae"
        # Programs in it are run: nobody else may write there.
        with contextlib.suppress(OSError):  # where it cannot be made, JAX says so
            private_folder(cache)
        jax.config.update("jax_compilation_cache_dir", str(cache))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)
    jax.config.update("jax_enable_x64", getattr(options, "dtype", "float64") == "float64")
    if options.command in ("analyze", "doctor"):  # each program runs once, for milliseconds
        jax.config.update("jax_disable_most_optimizations", True)


def _set_flags(options) -> None:
    """Options of XLA, read when the first device starts: they may be set after JAX is imported."""
    # Loaded here: it takes longer than all that lists and helps.
    from importlib.metadata import version

    # A small loop as one function instead of a list of kernels: two to three times faster here.
    wanted = ["xla_backend_extra_options=xla_cpu_small_while_loop_byte_threshold=1000000000"]
    quick = options.command == "analyze" or options.backend != "plain"
    # Older generators of loops, which compile in half the time what kernels leave to do, and what
    # runs once. A process ends at an option that its release does not know, and only these are
    # known to have it.
    if quick and version("jaxlib").startswith("0.10."):
        wanted.append("xla_cpu_use_fusion_emitters=false")
    flags = os.environ.get("XLA_FLAGS", "")
    for option in wanted:
        if option.partition("=")[0] not in flags:
            flags = f"{flags} --{option}".strip()
    os.environ["XLA_FLAGS"] = flags


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="jaxdae", description="Differentiable simulation of constrained mechanical systems."
    )
    parser.add_argument(
        "--version", action=_Late, nargs=0, help="versions of jaxdae, JAX and Python, and exit"
    )
    parser.add_argument(
        "--print-completion",
        action=_Late,
        choices=("bash", "zsh", "tcsh"),
        help="script that completes words in this shell, and exit; for example "
        "jaxdae --print-completion bash > ~/.local/share/bash-completion/completions/jaxdae",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    listing = commands.add_parser("list", help="the ready systems")
    listing.set_defaults(command="listing")
    listing.add_argument("what", nargs="?", choices=LISTS, default="models", help="what to list")
    _add_simulate(commands.add_parser("simulate", help="run a ready system", formatter_class=_Help))
    _add_tune(
        commands.add_parser(
            "tune", help="tune stabilization gains by gradient", formatter_class=_Help
        )
    )
    _add_analyze(
        commands.add_parser(
            "analyze",
            help="equilibrium, stability, certificates and step limits",
            formatter_class=_Help,
        )
    )
    _add_kernel(
        commands.add_parser(
            "kernel",
            help="the kernel of a batch of runs on a GPU, and what it would do there; needs no GPU",
            formatter_class=_Help,
        )
    )
    _add_doctor(
        commands.add_parser(
            "doctor",
            help="loops of a file for MuJoCo: their drift, and soft constraints that drift less",
            formatter_class=_Help,
        )
    )
    return parser


class _Late(argparse.Action):
    """What `jaxdae.commands.about` prints; loaded only then."""

    def __call__(self, parser, namespace, values, option_string=None):
        del namespace
        about = import_module("jaxdae.commands.about")
        asked = option_string == "--version"
        print(about.versions() if asked else about.completion(parser, values))
        parser.exit()


class _Help(argparse.ArgumentDefaultsHelpFormatter):
    """Help that shows defaults where there are any; otherwise the text says what is taken."""

    def _get_help_string(self, action):
        shown = action.default is not None and not isinstance(action.default, bool)
        return super()._get_help_string(action) if shown else action.help


def _add_model(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", help="name of a ready system; see `jaxdae list`")
    parser.add_argument(
        "--formulation",
        metavar="NAME",
        help="multipliers, penalty, augmented or another; see `jaxdae list formulations`; default: "
        "what the model suggests",
    )
    parser.add_argument(
        "--dtype", choices=("float64", "float32"), default="float64", help="precision"
    )
    parser.add_argument("--out", help="output folder; default: results/MODEL")


def _add_gains(parser: argparse.ArgumentParser) -> None:
    gains = (
        ("--K_D", "velocity gain of the stabilization [1/s]"),
        ("--K_P", "position gain of the stabilization [1/s^2]"),
        ("--Gamma", "gain of the velocity constraints [1/s]"),
        ("--alpha", "constraint mass of the penalty and augmented forms"),
        ("--decay", "rate at which velocity elimination lets position residuals decay [1/s]"),
        ("--k", "coefficient of linear realizing forces"),
    )
    for name, meaning in gains:
        parser.add_argument(name, type=_positive, help=f"{meaning}; default: the formulation's")
    parser.add_argument(
        "--solve",
        metavar="NAME",
        help="how the formulation solves its linear equations; see `jaxdae list solves`; default: "
        "the formulation's",
    )
    parser.add_argument(
        "--unstabilized", action="store_true", help="without the stabilization of the constraints"
    )


def _add_common(parser: argparse.ArgumentParser) -> None:
    _add_model(parser)
    parser.add_argument("--t1", type=_positive, help="end time [s]; default: the model's")
    parser.add_argument(
        "--no-progress", dest="progress", action="store_false", help="show no progress bar"
    )
    parser.add_argument(
        "--backend",
        choices=("auto", "plain", "native"),
        default="auto",
        help="what makes the runs: machine code of their own, or XLA",
    )


def _add_simulate(parser: argparse.ArgumentParser) -> None:
    _add_common(parser)
    parser.add_argument("--dt", type=_positive, help="fixed step [s]; default: adaptive steps")
    parser.add_argument(
        "--solver",
        metavar="NAME",
        default="dopri8",
        help="one of `jaxdae list solvers`, such as a Runge-Kutta method, or auto, which takes one "
        "for stiff equations where that costs less; with --dt an implicit "
        "one solves for its stages to 1e-8, in single precision to 1e-5",
    )
    parser.add_argument(
        "--uncontrolled", action="store_true", help="without the controller that the model has"
    )
    parser.add_argument(
        "--page",
        action="store_true",
        help="write page.html, on which the mechanism moves beside its plots; needs plotly",
    )
    parser.add_argument("--open", action="store_true", help="write it and show it in the browser")
    parser.add_argument(
        "--start",
        type=_assignments,
        metavar="NAME=VALUE,…",
        help="coordinates, velocities or actuator states of the start, for example "
        "'r=0.25,d(r)/dt=0.1'; the others are made consistent; default: the model's",
    )
    _add_gains(parser)


def _add_tune(parser: argparse.ArgumentParser) -> None:
    _add_common(parser)
    parser.add_argument("--dt", type=_positive, help="fixed step [s]; default: the study's")
    parser.add_argument(
        "--optimizer", choices=OPTIMIZERS, help="default: what suits the objective, least squares"
    )
    parser.add_argument(
        "--learning-rate", type=_positive, default=0.1, help="of optax, for logarithms of gains"
    )
    parser.add_argument(
        "--steps", type=_count, help="optimizer steps; default: 38 of least squares, else 300"
    )
    parser.add_argument("--batch", type=_count, default=16, help="number of perturbed starts")
    parser.add_argument("--seed", type=int, default=0, help="of the perturbed starts")
    parser.add_argument("--resume", action="store_true", help="continue an interrupted run")


def _add_analyze(parser: argparse.ArgumentParser) -> None:
    _add_model(parser)
    parser.add_argument("--dt", type=_positive, help="a step to compare with the limits [s]")
    parser.add_argument(
        "--solver",
        metavar="NAME",
        action="append",
        help="one more method whose step limits are shown; see `jaxdae list solvers`",
    )
    parser.add_argument(
        "--at",
        type=_assignments,
        metavar="NAME=VALUE,…",
        help="coordinates near another equilibrium, for example x=0,y=1; default: the model's",
    )
    _add_gains(parser)


def _add_kernel(parser: argparse.ArgumentParser) -> None:
    _add_model(parser)
    parser.set_defaults(backend="native")
    parser.add_argument(
        "--arch", default="sm_90", help="architecture that registers are counted for"
    )
    parser.add_argument("--t1", type=_positive, help="end time [s]; default: the model's")
    parser.add_argument(
        "--dt", type=_positive, help="fixed step [s]; default: the study's, or 1/1000 of the time"
    )
    parser.add_argument(
        "--solver", metavar="NAME", default="rk4", help="one of `jaxdae list solvers`"
    )
    parser.add_argument("--members", type=_count, default=65536, help="of the batch")
    parser.add_argument(
        "--uncontrolled", action="store_true", help="without the controller that the model has"
    )
    _add_gains(parser)


def _add_doctor(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(backend="auto")
    parser.add_argument("file", metavar="FILE", help="MJCF file with equality constraints")
    parser.add_argument("--end", type=_positive, default=2.0, help="of the motion [s]")
    parser.add_argument(
        "--key",
        metavar="NAME",
        help="keyframe in which the motion starts; default: the file's position, at rest",
    )
    parser.add_argument(
        "--write", metavar="OUT.xml", help="write the same file with the suggested constraints"
    )


def _positive(text: str) -> float:
    value = _number(float, text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not a positive finite number")
    return value


def _count(text: str) -> int:
    value = _number(int, text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a positive integer")
    return value


def _number(kind: type, text: str):
    """Zero for what is no number, which is then refused as well."""
    try:
        return kind(text)
    except ValueError:
        return kind(0)


def _assignments(text: str) -> dict[str, float]:
    pairs = [part.partition("=") for part in text.split(",")]
    try:
        given = [(name.strip(), _finite(value)) for name, _, value in pairs]
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} does not say NAME=VALUE,NAME=VALUE,… with finite numbers in SI units and "
            "rad, without the units"
        ) from None
    names = [name for name, _ in given]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise argparse.ArgumentTypeError(f"{text!r} gives {twice[0]!r} twice; give it once")
    return dict(given)


def _finite(text: str) -> float:
    value = float(text)
    if not abs(value) < float("inf"):
        raise ValueError
    return value


if __name__ == "__main__":
    sys.exit(main())
