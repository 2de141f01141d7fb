"""Machine code on disk: found again by the same kernel, processor and LLVM, and by no others."""

import builtins
import itertools
import subprocess
import sys
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxdae.derivatives.primitives import Axes
from jaxdae.kernels import native, scalarize
from jaxdae.kernels.launch.kernel import definitions
from jaxdae.kernels.launch.platforms import assembled, HOST
from jaxdae.kernels.llvm import machine_code, storage
from jaxdae.kernels.llvm.batch_loops import Lanes
from jaxdae.kernels.llvm.machine_code import Host, MachineCodeError
from jaxdae.kernels.llvm.module import Definition, LlvmModule

# Kernels of their own for every test: what a process has registered it does not compile again.
ALONE = Axes((), (False,))
_NUMBERS = itertools.count(1)
# For tests of kernels it is replaced.
LEVELS = machine_code._levels


def module(function, axes=ALONE):
    """A module with the kernel of a function of one number."""
    lanes = Lanes(HOST.width(np.float64, axes), np.float64)
    program = scalarize(function, jnp.zeros(()))
    return assembled(definitions(program, lanes, axes), axes.rank, 1, 8 * lanes.width)


def text(number=None):
    """A module whose `@handler` multiplies by a number."""
    number = next(_NUMBERS) if number is None else number
    return module(lambda x: number * x)


def key(made):
    return machine_code._key(made.text)


@pytest.fixture
def folder(tmp_path):
    """A cache that keeps everything, however fast it was compiled."""
    names = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")
    before = {name: jax.config.values[name] for name in names}
    jax.config.update(names[0], str(tmp_path))
    jax.config.update(names[1], 0.0)
    yield tmp_path / "jaxdae-machine-code"
    for name, value in before.items():
        jax.config.update(name, value)


@pytest.fixture
def compiled(monkeypatch):
    """Keys of the modules that were compiled, and not found on disk."""
    found, compile_ = [], machine_code._compiled
    monkeypatch.setattr(
        machine_code, "_compiled", lambda x: (found.append(machine_code._key(x)), compile_(x))[1]
    )
    return found


@pytest.fixture
def forget(monkeypatch):
    """Makes this process like a new one, which has registered nothing."""

    def names():
        # JAX refuses another function under a known name.
        monkeypatch.setattr(machine_code, "_REGISTERED", set())
        monkeypatch.setattr(jax.ffi, "register_ffi_target", lambda *_, **__: None)

    return names


def test_the_second_process_compiles_nothing(folder, compiled, forget):
    made = text()
    machine_code.register(made)
    assert compiled == [key(made)]
    assert [x.name for x in folder.iterdir()] == [key(made)]
    forget()
    machine_code.register(made)
    assert len(compiled) == 1


def test_long_modules_of_single_members_go_through_few_passes(monkeypatch):
    """Short ones and vectors of members go through all of them."""
    monkeypatch.setattr(machine_code, "quickly", lambda: False)
    llvm, few = machine_code._llvm(), []
    make = llvm.create_new_module_pass_manager
    monkeypatch.setattr(
        llvm, "create_new_module_pass_manager", lambda: few.append(make()) or few[-1]
    )
    alone = text().text
    wide = module(lambda x: 3.0 * x, Axes((64,), (True,))).text
    for lines in (0, 10**6):
        monkeypatch.setattr(machine_code, "_MOST_LINES", lines)
        for one in (alone, wide):
            few.clear()
            assert machine_code._compiled(one)
            assert len(few) == (one is alone and lines == 0)


@pytest.mark.parametrize("change", ["cpu", "features", "LLVM", "passes"])
def test_code_for_another_machine_is_not_loaded(change, folder, compiled, forget, monkeypatch):
    made = text()
    machine_code.register(made)
    own = machine_code.host()
    if change == "cpu":
        monkeypatch.setattr(machine_code, "host", lambda: Host("generic", own.features))
    elif change == "features":
        monkeypatch.setattr(machine_code, "host", lambda: Host(own.cpu, ""))
    elif change == "LLVM":
        monkeypatch.setattr(machine_code._llvm(), "llvm_version_info", (1, 0, 0))
    else:
        monkeypatch.setattr(machine_code, "_levels", lambda: (3, 3))
    forget()
    machine_code.register(made)
    assert len(set(compiled)) == 2
    assert len(list(folder.iterdir())) == 2


def test_code_is_made_quickly_where_jax_is_told_so(monkeypatch):
    monkeypatch.setattr(machine_code, "_levels", LEVELS)
    made, codes, keys = text(), [], []
    quickly = jax.config.values["jax_disable_most_optimizations"]
    for disabled in (True, False):
        jax.config.update("jax_disable_most_optimizations", disabled)
        codes.append(machine_code._compiled(made.text))
        keys.append(key(made))
    jax.config.update("jax_disable_most_optimizations", quickly)
    assert codes[0] != codes[1]
    assert keys[0] != keys[1]
    monkeypatch.setattr(machine_code, "_levels", lambda: (3, 2))
    assert keys[1] == key(made)


def test_a_damaged_file_is_said_and_made_anew(folder, compiled, forget):
    made = text()
    machine_code.register(made)
    (path,) = folder.iterdir()
    good = path.read_bytes()
    path.write_bytes(good[:-50] + bytes([good[-50] ^ 1]) + good[-49:])
    forget()
    with pytest.warns(RuntimeWarning, match=r"is not what was written there .* compiled again"):
        machine_code.register(made)
    assert len(compiled) == 2
    assert path.read_bytes() == good


def test_code_of_another_kernel_under_this_name_is_not_loaded(folder, forget):
    """As after a copy by hand: the content is whole, but of something else."""
    one, other = text(), text()
    machine_code.register(one)
    (folder / key(one)).rename(folder / key(other))
    forget()
    with pytest.warns(RuntimeWarning, match="is not what was written there"):
        machine_code.register(other)


def test_a_file_in_place_of_the_folder_is_said(folder):
    """Also for those whom no permission stops."""
    folder.write_text("")
    # Reading says so first, since there is something, and it is not a folder.
    with (
        pytest.warns(RuntimeWarning, match="cannot be read"),
        pytest.warns(RuntimeWarning, match="machine code is not kept"),
    ):
        machine_code.register(text())


def test_code_that_others_may_have_written_is_not_loaded(folder, compiled, forget):
    """A checksum is no signature: who may write the file, may write the checksum too."""
    made = text()
    machine_code.register(made)
    assert folder.stat().st_mode & 0o777 == 0o700
    (path,) = folder.iterdir()
    path.chmod(0o620)
    forget()
    with pytest.warns(RuntimeWarning, match=rf"{path.name} is not used.*mode is 620.*chmod go-w"):
        machine_code.register(made)
    # In its place is now what was compiled here.
    assert len(compiled) == 2
    assert path.stat().st_mode & 0o777 == 0o600
    forget()
    machine_code.register(made)
    assert len(compiled) == 2


@pytest.mark.parametrize("mode", [0o770, 0o1777])
def test_a_folder_that_others_may_write_is_not_used(mode, folder, compiled, forget):
    """And said once, not with every kernel."""
    made = text()
    machine_code.register(made)
    folder.chmod(mode)
    forget()
    with pytest.warns(RuntimeWarning, match=rf"not used, and none is kept.*mode is {mode:o}\)"):
        machine_code.register(made)
    machine_code.register(text())
    assert len(compiled) == 3
    assert len(list(folder.iterdir())) == 1


def test_what_compiles_quickly_is_not_kept(folder):
    """The rule of JAX for its own programs."""
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 60.0)
    machine_code.register(text())
    assert not folder.exists()


@pytest.mark.parametrize("place", [None, "gs://bucket/cache"])
def test_without_a_folder_on_this_machine_nothing_is_kept(place, folder):
    jax.config.update("jax_compilation_cache_dir", place)
    assert storage.folder() is None
    jax.config.update("jax_compilation_cache_dir", str(folder.parent))
    jax.config.update("jax_enable_compilation_cache", False)
    try:
        assert storage.folder() is None
    finally:
        jax.config.update("jax_enable_compilation_cache", True)
    assert storage.folder() == folder


@pytest.mark.slow
def test_processes_that_write_the_same_do_not_disturb_each_other(folder):
    """Both write every file; each is complete, whoever was last."""
    code = """
import sys
from pathlib import Path
from jaxdae.kernels.llvm import storage
folder, own = Path(sys.argv[1]), []
for i in range(100):
    key, code = f"{i:064}", bytes([i % 251]) * 20_000
    storage.write(folder, key, code)
    for k in range(max(0, i - 3), i + 1):
        found = storage.read(folder, f"{k:064}")
        assert found == bytes([k % 251]) * 20_000
"""
    command = [sys.executable, "-W", "error", "-c", code, str(folder)]
    processes = [subprocess.Popen(command) for _ in range(2)]
    assert [x.wait() for x in processes] == [0, 0]
    assert sorted(x.name for x in folder.iterdir()) == [f"{i:064}" for i in range(100)]


def test_threads_that_ask_for_the_same_kernel_compile_it_once(folder, compiled):
    """In a folder with nothing in it: what an earlier run kept would not be compiled."""
    made = text()
    threads = [threading.Thread(target=machine_code.register, args=(made,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(compiled) == len(list(folder.iterdir())) == 1


def test_a_module_that_llvm_refuses_is_said():
    with pytest.raises(MachineCodeError, match=r"(?s)a mistake in jaxdae.*expected.*Please report"):
        machine_code.register(LlvmModule([Definition("handler", "define nonsense")]))
    unverified = (
        "define i32 @handler(i1 %x) {\n  br label %a\na:\n  %y = phi i32 [0, %a]\n  ret i32 %y\n}"
    )
    with pytest.raises(MachineCodeError, match=r"(?s)a mistake in jaxdae.*PHI.*Please report"):
        machine_code.register(LlvmModule([Definition("handler", unverified)]))


def test_a_function_that_this_machine_lacks_is_refused_and_does_not_end_the_process():
    names = ("no_such_function", "llvm.sqrt.f64")
    declared = frozenset(f"declare double @{name}(double)" for name in names)
    lacking = LlvmModule([Definition("handler", "", declared)])
    with pytest.raises(MachineCodeError, match="calls no_such_function, which the C library"):
        machine_code.register(lacking)


def importing(error):
    original = builtins.__import__

    def replaced(name, *others):
        if name.startswith("llvmlite"):
            raise error
        return original(name, *others)

    return replaced


@pytest.mark.parametrize(
    ("error", "match"),
    [
        (ModuleNotFoundError("no llvmlite"), "need llvmlite: pip install llvmlite"),
        (OSError("libllvmlite.so: cannot open"), r"does not load: libllvmlite.so: .*anew"),
    ],
    ids=["missing", "broken"],
)
def test_llvmlite_that_is_missing_and_one_that_is_broken_are_told_apart(error, match, monkeypatch):
    machine_code._llvm.cache_clear()
    monkeypatch.setattr(builtins, "__import__", importing(error))
    with pytest.raises(ImportError, match=match):
        native(lambda x: x, jnp.zeros(()))(1.0)


@pytest.mark.parametrize(
    ("features", "width"),
    [({"avx512f": True, "avx": True}, 8), ({"avx": True, "avx512f": False}, 4), ({}, 2)],
)
def test_the_width_is_that_of_the_registers_and_128_bits_where_they_are_unknown(
    features, width, monkeypatch
):
    monkeypatch.setattr(machine_code, "_features", lambda: features)
    assert machine_code.host_width(64) == width
    assert machine_code.host_width(32) == 2 * width
