"""What all tests share: double precision, a cache of compiled programs, small systems."""

import gc
import os
import subprocess
import sys
from collections import Counter
from importlib.metadata import version
from pathlib import Path

import equinox as eqx
import jax
import llvmlite.binding as llvm
import numpy as np
import pytest
from llvmlite.binding.targets import FeatureMap
from xdist.scheduler import LoadScopeScheduling

from helpers.lowering import share_contexts
from helpers.systems import DoublePendulum, Everything, LedPoint, Massless, RepeatedRod
from jaxdae.storage.files import replace_file

jax.config.update("jax_enable_x64", True)

# Compile time dominates these tests; programs compiled once are read back by the next run.
_CACHE = os.environ.get("JAX_COMPILATION_CACHE_DIR", str(Path(__file__).parents[1] / ".jax_cache"))
jax.config.update("jax_compilation_cache_dir", _CACHE)
# However small: each file begins without programs in memory, and most of those that single
# operations need are the same in all files. Processes that tests start read them, too.
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
# Most programs here run once, for milliseconds. What runs longer, or is compared to the last bit,
# compiles as users do: the files of tests marked `optimized`.
jax.config.update("jax_disable_most_optimizations", True)
# Tracing makes many objects and little garbage; looking for it less often saves a sixth of the time
# of that. Each file's is collected at its end.
gc.set_threshold(200_000, 20, 100)
_CONTEXTS = share_contexts()


def _known_to_xla(option: str, value: str) -> bool:
    """Whether the installed release has an option; one that it does not know ends a process.

    A process of its own tries it, once for each release: the answer is kept with the programs.
    """
    answer = Path(_CACHE) / f"{option}-in-{version('jaxlib')}"
    if not answer.exists():
        environment = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": f"--{option}={value}"}
        script = "import jax; jax.devices()"
        trial = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True)
        answer.parent.mkdir(parents=True, exist_ok=True)
        replace_file(answer, b"no" if trial.returncode else b"yes")
    return answer.read_bytes() == b"yes"


# XLA's older generators of loops compile unoptimized programs in half the time, and one module of
# machine code takes less than one for each loop. Read when the first device starts.
for _option, _value in (
    ("xla_cpu_use_fusion_emitters", "false"),
    ("xla_cpu_parallel_codegen_split_count", "1"),
):
    if _known_to_xla(_option, _value):
        _FLAGS = f"{os.environ.get('XLA_FLAGS', '')} --{_option}={_value}"
        os.environ["XLA_FLAGS"] = _FLAGS.strip()


if "xla_cpu_max_isa=SSE4_2" in os.environ.get("XLA_FLAGS", ""):
    # Kernels for the same old processor: half as many numbers in a register, no fused operations.
    _OLD = {"64bit", "cmov", "cx16", "cx8", "fxsr", "mmx", "popcnt", "sahf", "ssse3"}
    _OLD |= {"sse", "sse2", "sse3", "sse4.1", "sse4.2"}
    _HERE = dict(llvm.get_host_cpu_features())
    llvm.get_host_cpu_features = lambda: FeatureMap(
        {x: has and x in _OLD for x, has in _HERE.items()}
    )


def pytest_collection_modifyitems(items):
    """Files with slow tests first: begun last, they would leave a processor without work.

    The code of all pages is one test, the longest of all.
    """
    slow = Counter(x.path for x in items if x.get_closest_marker("slow"))
    items.sort(key=lambda x: (x.path.name != "test_pages.py", -slow[x.path]))


class _Scheduling(LoadScopeScheduling):
    """What shares programs runs in one process: a file, or a system of the matrix of agreement."""

    def _split_scope(self, nodeid: str) -> str:
        file, _, test = nodeid.partition("::")
        if not file.endswith("formulations/test_agreement.py"):
            return file
        system = test.partition("[")[2].rstrip("]").partition("-")[0]
        return f"{file} {system}"


def pytest_xdist_make_scheduler(config, log):
    return _Scheduling(config, log)


@pytest.fixture(autouse=True, scope="module")
def _free_compiled_programs():
    """A whole run compiles thousands of programs; kept to its end they would fill the memory."""
    yield
    eqx.clear_caches()
    jax.clear_caches()
    _CONTEXTS.forget()
    gc.collect()
    gc.freeze()  # What is left stays, libraries above all: the next time, nobody looks at it.


@pytest.fixture(autouse=True, scope="module")
def _optimization(request):
    """Full optimization for a file whose programs run long, or are what it looks at."""
    quick = request.node.get_closest_marker("optimized") is None
    jax.config.update("jax_disable_most_optimizations", quick)


@pytest.fixture(scope="session")
def double_pendulum():
    return DoublePendulum()


@pytest.fixture(scope="session")
def everything():
    return Everything()


@pytest.fixture(scope="session")
def led_point():
    """The class: `led_point(speed)`."""
    return LedPoint


@pytest.fixture(scope="session")
def repeated_rod():
    """The class: `repeated_rod(weights)`."""
    return RepeatedRod


@pytest.fixture(scope="session")
def massless():
    return Massless()


@pytest.fixture
def rng():
    """Random numbers, the same in every run."""
    return np.random.default_rng(20140613)
