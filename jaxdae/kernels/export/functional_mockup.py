"""Functional Mock-up Units (FMI 2.0 and 3.0): archives of description, C sources and a library."""

import hashlib
import importlib.util
import io
import itertools
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from importlib.resources import files as package_files
from pathlib import Path
from typing import NamedTuple
from xml.sax.saxutils import escape, quoteattr

import numpy as np

from jaxdae.kernels.emission.array_functions import library
from jaxdae.kernels.export.c_source import c_source, pointer_of, PRELUDE
from jaxdae.kernels.export.units import BASE, unit_of
from jaxdae.kernels.llvm.machine_code import MachineCodeError
from jaxdae.kernels.llvm.module import Definition, LlvmModule
from jaxdae.kernels.tracing.subprograms import Subprogram

# Kinds of variables, by what may set them.
CALCULATED, EXACT_STATE, INPUT, TUNABLE, START = range(5)
_KINDS = ("IS_CALCULATED", "IS_EXACT_STATE", "IS_INPUT", "IS_TUNABLE", "IS_START")
_PREFIX = "kernel_"


class MockupVariable(NamedTuple):
    """A number of the model.

    Args:
        name: by the structured naming convention.
        about: in words.
        unit: empty for none.
        kind: what may set it.
        start: its value before the start.
    """

    name: str
    about: str
    unit: str
    kind: int
    start: float = 0.0


class MockupModel(NamedTuple):
    """What a Functional Mock-up Unit is made of.

    Args:
        name: identifier of C.
        about: description.
        states: variables of the states.
        outputs: of the outputs that are no states.
        parameters: of parameters and inputs.
        starts: of start values from which states are calculated.
        start_places: value references of what the start is made of, in its order.
        programs: functions by the names in `SIGNATURES`.
        packed: sizes of the parameters of the step.
        step: functions of the step, `run` among them.
        depends: for each derivative and each output the states, parameters and inputs that it
            depends on, as value references, and 0 for time.
        constraints: names of the residuals.
        positions: how many of them are of positions.
        sized: states that come first, by which residuals are measured.
        tolerance: largest residual of a start; 0 for none.
        step_size: of the steps in co-simulation [s].
        ends: first and last time [s].
        arrays: whether numbers with indices are entries of arrays, of FMI 3.0.
    """

    name: str
    about: str
    states: list[MockupVariable]
    outputs: list[MockupVariable]
    parameters: list[MockupVariable]
    starts: list[MockupVariable]
    start_places: list[int]
    programs: dict[str, Subprogram]
    packed: list[int]
    step: list[Definition]
    depends: list[list[int]]
    constraints: list[str]
    positions: int
    sized: int
    tolerance: float
    step_size: float
    ends: tuple[float, float]
    arrays: bool = False

    @property
    def derivatives(self) -> list[MockupVariable]:
        """Of the states."""
        return [
            MockupVariable(f"der({x.name})", f"derivative of {x.name}", _rate(x.unit), CALCULATED)
            for x in self.states
        ]

    @property
    def variables(self) -> list[MockupVariable]:
        """All of them, by their value references."""
        time = MockupVariable("time", "time", "s", CALCULATED)
        return [time, *self.states, *self.derivatives, *self.outputs, *self.parameters,
                *self.starts]  # fmt: skip


class ListedVariable(NamedTuple):
    """A variable as a description of FMI 3.0 lists it, of one number or of an array of them.

    Args:
        place: its value reference, the place of its first number.
        shape: of an array; `None` for one number.
        numbers: its numbers, in the order of C.
    """

    place: int
    shape: tuple[int, ...] | None
    numbers: list[MockupVariable]

    @property
    def name(self) -> str:
        """That of the number, or of the array, without indices."""
        name = self.numbers[0].name
        return name if self.shape is None else "".join(_parts(name)[::2])

    @property
    def about(self) -> str:
        """Its description, without the numbers of entries."""
        words = [x.about for x in self.numbers]
        if self.shape is None:
            return words[0]
        without_numbers = dict.fromkeys(_NUMBER.sub("", x) for x in words)
        return without_numbers.popitem()[0] if len(without_numbers) == 1 else "; ".join(words)


# Numbers of entries in words.
_NUMBER = re.compile(r"\[[\d,]+\]\)?$|\s\d+$", re.ASCII)
# An entry of an array, or the derivative of one.
_ENTRY = re.compile(r"(.+)\[(\d+(?:,\d+)*)\](\)?)", re.ASCII)


def _parts(name: str) -> tuple[str, ...]:
    """Name before the indices, the indices, what is behind them; nothing where there are none."""
    found = _ENTRY.fullmatch(name)
    return () if found is None else found.groups("")


def listed(model: MockupModel) -> list[ListedVariable]:
    """All variables, arrays in place of their entries if the model has arrays."""
    names, n, result = [x.name for x in model.variables], len(model.states), []
    first = 0
    while first < len(names):
        if n < first <= 2 * n:  # derivatives are of the shapes of the states
            state = next(x for x in result if x.place == first - n)
            shape, count = state.shape, len(state.numbers)
        else:
            shape, count = _array_at(model, names, first)
        result.append(ListedVariable(first, shape, model.variables[first : first + count]))
        first += count
    return result


def _array_at(model: MockupModel, names: list[str], first: int):
    """Shape and size of the array whose entries begin at a place; `None` and one where none do."""
    parts = _parts(names[first]) if model.arrays else ()
    if not parts:
        return None, 1
    # An array has all numbers of its name.
    same = [i for i, x in enumerate(names) if _parts(x)[::2] == parts[::2]]
    indices = [tuple(map(int, _parts(names[i])[1].split(","))) for i in same]
    ranks = {len(x) for x in indices}
    if same != [*range(first, first + len(same))] or len(ranks) != 1:
        return None, 1
    shape = tuple(1 + max(x) for x in zip(*indices, strict=True))
    kinds = {(x.kind, x.unit) for x in model.variables[first : first + len(same)]}
    taken = any(x == parts[0] or x.startswith(f"{parts[0]}.") for x in names)
    if indices != [*np.ndindex(*shape)] or len(kinds) != 1 or taken:
        return None, 1
    return shape, len(same)


def _rate(unit: str) -> str:
    return f"{unit}/s" if unit and unit_of(f"{unit}/s") is not None else ""


# Arguments and results of the programs: time, states `x`, parameters `p`, start `s`, derivatives
# `f`, outputs `y`, residuals `r`; with `d` directions, with `b` cotangents of them.
SIGNATURES = {
    "start": ("t s p", "x"),
    "rate": ("t x p", "f y"),
    "directional": ("t x p dt dx dp", "df dy"),
    "adjoint": ("t x p bf by", "bt bx bp"),
    "start_directional": ("t s p dt ds dp", "dx"),
    "start_adjoint": ("t s p bx", "bt bs bp"),
    "residual": ("t x p", "r"),
}


def archive(model: MockupModel, version: int) -> bytes:
    """The file `NAME.fmu`, with a library for this machine.

    FMI 2.0 has no adjoint derivatives, whose programs are left out of it.

    Raises:
        ImportError: where there is no C compiler.
        MachineCodeError: where it refuses the sources.
    """
    if version == 2:
        forward = {k: x for k, x in model.programs.items() if not k.endswith("adjoint")}
        model = model._replace(programs=forward)
    token = "{" + hashlib.sha256(_content(model).encode()).hexdigest()[:32] + "}"
    text = lambda name: package_files("jaxdae.kernels.export").joinpath("fmi", name).read_text()  # noqa: E731
    sources = {
        f"fmi{version}.c": text(f"fmi{version}.c"),
        "instance.c": text("instance.c"),
        "interface.c": text("interface.c"),
        "model.c": _model_source(model, token),
    }
    folder, ending = _platform(version)
    description = _description2 if version == 2 else _description3
    entries: dict[str, bytes] = {
        "modelDescription.xml": description(model, token).encode(),
        **{f"sources/{name}": x.encode() for name, x in sources.items()},
        f"binaries/{folder}/{model.name}{ending}": _compiled(sources, f"fmi{version}.c"),
    }
    if version == 3:
        entries["sources/buildDescription.xml"] = _build_description(model).encode()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in entries.items():
            # Equal models are equal files.
            file.writestr(zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), content)
    return buffer.getvalue()


# The compiler.


def compiler() -> list[str] | None:
    """The C compiler of this machine, or of the package ziglang, as words of a command."""
    for name in ("cc", "gcc", "clang"):
        path = shutil.which(name)
        if path is not None:
            return [path]
    if importlib.util.find_spec("ziglang") is not None:
        return [sys.executable, "-m", "ziglang", "cc"]
    return None


def check_compiler() -> None:
    """That there is one.

    Raises:
        ImportError: where there is none.
    """
    if compiler() is None:
        raise ImportError(
            "an FMU holds a compiled library, and there is no C compiler (cc, gcc, clang); install "
            "one, or the package ziglang, which brings one along: pip install 'jaxdae[export]'."
        )


def _compiled(sources: dict[str, str], main: str) -> bytes:
    command = compiler()
    assert command is not None
    options = ["-shared", "-fPIC", "-O2", "-std=c99", "-fvisibility=hidden", "-ffp-contract=off"]
    with tempfile.TemporaryDirectory() as folder:
        for name, text in sources.items():
            Path(folder, name).write_text(text)
        words = [*command, *options, "-o", "model.so", main, "-lm"]
        done = subprocess.run(words, cwd=folder, capture_output=True, text=True)
        if done.returncode:
            raise MachineCodeError(
                f"the C compiler {command[0]} refuses the sources of the FMU: "
                f"{done.stderr.strip()[:2000]}. That is a mistake in jaxdae; please report it."
            )
        return Path(folder, "model.so").read_bytes()


def _platform(version: int) -> tuple[str, str]:
    """Folder of this machine's library, and the end of its name."""
    machine = {"AMD64": "x86_64", "x86_64": "x86_64", "arm64": "aarch64"}.get(
        platform.machine(), platform.machine()
    )
    system, ending = {"Darwin": ("darwin", ".dylib"), "Windows": ("windows", ".dll")}.get(
        platform.system(), ("linux", ".so")
    )
    if version == 2 and machine == "x86_64":
        return {"darwin": "darwin64", "windows": "win64", "linux": "linux64"}[system], ending
    return f"{machine}-{system}", ending


# C.


def _content(model: MockupModel) -> str:
    programs = "".join(x.program.content() for x in model.programs.values())
    return f"{model._replace(programs={}, step=[])}{programs}{LlvmModule(model.step).text}"


def _words(values, each: int = 6) -> str:
    parts = [str(x) for x in values] or ["0"]
    return ",\n  ".join(", ".join(parts[i : i + each]) for i in range(0, len(parts), each))


def _number(value: float) -> str:
    value = float(value)
    if np.isnan(value):
        return "NAN"
    return repr(value) if np.isfinite(value) else ("INFINITY" if value > 0 else "-INFINITY")


def _string(text: str) -> str:
    plain = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ").replace("?", "\\?")
    return f'"{plain}"'


def _model_source(model: MockupModel, token: str) -> str:
    """Tables and functions of the model."""
    variables, dtype = model.variables, np.dtype(np.float64)
    made = library(list(model.programs.values()), 1, dtype, 1)
    module = LlvmModule([*made, *model.step])
    sizes = {
        "VALUES": len(variables), "STATES": len(model.states), "OUTPUTS": len(model.outputs),
        "PARAMETERS": len(model.parameters), "STARTS": len(model.start_places),
        "RESIDUALS": len(model.constraints),
    }  # fmt: skip
    defined = [f"#define {key} {value}" for key, value in sizes.items()]
    defined += [
        f"#define MODEL_TOKEN {_string(token)}",
        f"#define START_TOLERANCE {_number(model.tolerance)}",
        f"#define STEP_SIZE {_number(model.step_size)}",
    ]
    tables = f"""enum {{ {", ".join(_KINDS)} }};

static const unsigned model_values = VALUES;
static const int model_parameters = PARAMETERS, model_starts = STARTS;
static const int model_positions = {model.positions}, model_sized = {model.sized};

/* By value references: first values, what may set them, names. */
static const double model_first[VALUES] = {{
  {_words(_number(x.start) for x in variables)}
}};
static const unsigned char model_kind[VALUES] = {{
  {_words((_KINDS[x.kind] for x in variables), 5)}
}};
static const char *const model_name[VALUES] = {{
  {_words((_string(x.name) for x in variables), 4)}
}};

/* What the start is made of, and names of the constraints. */
static const unsigned model_start_place[STARTS] = {{
  {_words(model.start_places)}
}};
static const char *const model_constraint[RESIDUALS + 1] = {{
  {_words((_string(repr(x)) for x in [*model.constraints, ""]), 4)}
}};"""
    head = f"/* The model {model.name}: its numbers and functions. */"
    third = "adjoint" in model.programs
    if third:
        counts = np.zeros(len(variables), int)
        for x in listed(model):
            counts[x.place] = len(x.numbers)
        tables += f"""

/* How many numbers each variable has, those behind the first of an array none. */
static const unsigned model_size[VALUES] = {{
  {_words(counts, 20)}
}};"""
    glue = [_glue(name, model) for name in SIGNATURES if third or not name.endswith("adjoint")]
    return "\n\n".join(
        [head, PRELUDE, "\n".join(defined), tables, c_source(module.definitions, _PREFIX), *glue,
         _step(model)]
    ) + "\n"  # fmt: skip


def _glue(name: str, model: MockupModel) -> str:
    """The function of a program; without the program, one that gives zeros or what it is given."""
    sizes = {
        "t": 1, "x": len(model.states), "p": len(model.parameters), "s": len(model.start_places),
        "f": len(model.states), "y": len(model.outputs), "r": len(model.constraints),
    }  # fmt: skip
    given, results = (x.split() for x in SIGNATURES[name])
    by_value = {"t", "dt"} & set(given)
    parameters = [f"double {x}" if x in by_value else f"const double *{x}" for x in given]
    parameters += [f"double *{x}" for x in results]
    used = [x for x in (*given, *results) if sizes[x[-1]]]
    unused = [x for x in (*given, *results) if not sizes[x[-1]]]
    words = ", ".join(f"(char *){'&' * (x in by_value)}{x}" for x in used)
    body = "".join(f"(void){x};\n  " for x in unused)
    if name in model.programs:
        body += f"{pointer_of(_PREFIX, model.programs[name].name)}({words});"
    else:
        body = "".join(f"(void){x};\n  " for x in (*given, *results))
    return f"static void model_{name}({', '.join(parameters)}) {{\n  {body.rstrip()}\n}}"


def _step(model: MockupModel) -> str:
    """The function of a step."""
    rooms = [f"double packed{i}[{max(n, 1)}];" for i, n in enumerate(model.packed)]
    packed = [f"(char *)packed{i}" for i in range(len(model.packed))]
    pack = "(void)p;"
    if "pack" in model.programs:
        called = pointer_of(_PREFIX, model.programs["pack"].name)
        pack = f"{called}({', '.join(['(char *)p', *packed])});"
    words = ["(char *)x", *packed, "(char *)ends", "(char *)unused", "(char *)following", "1"]
    lines = ["double ends[2] = {t0, t1}, unused[1];", *rooms, pack,
             f"{pointer_of(_PREFIX, 'run')}({', '.join(words)});"]  # fmt: skip
    head = (
        "static void model_step(double t0, double t1, const double *x, const double *p, "
        "double *following) {"
    )
    return "\n  ".join([head, *lines]) + "\n}"


# Descriptions.


def _attributes(**given) -> str:
    names = {k.rstrip("_"): v for k, v in given.items() if v not in (None, "")}
    return "".join(f" {k}={quoteattr(_clean(str(v)))}" for k, v in names.items())


def _clean(text: str) -> str:
    """Without characters that no document may have."""
    return "".join(x if x in "\t\n" or ord(x) >= 32 else " " for x in text)


def _start(x: MockupVariable) -> str | None:
    if x.kind == CALCULATED:
        return None
    value = float(x.start)
    if np.isnan(value):
        return "NaN"
    return repr(value) if np.isfinite(value) else ("INF" if value > 0 else "-INF")


_ROLES = {
    EXACT_STATE: {"causality": "output", "variability": "continuous", "initial": "exact"},
    INPUT: {"causality": "input", "variability": "continuous"},
    TUNABLE: {"causality": "parameter", "variability": "tunable"},
    START: {"causality": "parameter", "variability": "fixed"},
}


class _Places(NamedTuple):
    """Where each kind of variables begins."""

    derivatives: int
    outputs: int
    parameters: int

    @classmethod
    def of(cls, model: MockupModel) -> "_Places":
        n = len(model.states)
        return cls(1 + n, 1 + 2 * n, 1 + 2 * n + len(model.outputs))

    def role(self, i: int, x: MockupVariable) -> dict[str, str]:
        """Causality, variability and kind of start of a variable."""
        if i == 0:
            return {"causality": "independent", "variability": "continuous"}
        if x.kind != CALCULATED:
            return _ROLES[x.kind]
        local = self.derivatives <= i < self.outputs
        role = {"causality": "local" if local else "output", "variability": "continuous"}
        return {**role, "initial": "calculated"}


def _units(model: MockupModel) -> str:
    """Definitions of all units."""
    names = dict.fromkeys(x.unit for x in model.variables if x.unit)
    lines = []
    for name in names:
        unit, inside = unit_of(name), ""
        if unit is not None:
            powers = {k: v for k, v in zip(BASE, unit.exponents, strict=True) if v}
            factor = None if unit.factor == 1.0 else repr(unit.factor)
            inside = f"<BaseUnit{_attributes(**powers, factor=factor)}/>"
        lines.append(f"    <Unit{_attributes(name=name)}>{inside}</Unit>")
    return "\n".join(["  <UnitDefinitions>", *lines, "  </UnitDefinitions>"])


def _experiment(model: MockupModel) -> str:
    start, stop = model.ends
    words = _attributes(startTime=repr(start), stopTime=repr(stop), stepSize=repr(model.step_size))
    return f"  <DefaultExperiment{words}/>"


def _head(model: MockupModel, version: str, **more) -> list[str]:
    """The first lines of a description."""
    words = _attributes(
        fmiVersion=version, modelName=model.name, description=model.about, generationTool="jaxdae",
        variableNamingConvention="structured", **more,
    )  # fmt: skip
    return ['<?xml version="1.0" encoding="UTF-8"?>', f"<fmiModelDescription{words}>"]


def _description3(model: MockupModel, token: str) -> str:
    """Of FMI 3.0."""
    places = _Places.of(model)
    able = _attributes(
        modelIdentifier=model.name, canGetAndSetFMUState="true", canSerializeFMUState="true",
        providesDirectionalDerivatives="true", providesAdjointDerivatives="true",
    )  # fmt: skip
    step = _attributes(canHandleVariableCommunicationStepSize="true",
                       fixedInternalStepSize=repr(model.step_size))  # fmt: skip
    lines = []
    for x in listed(model):
        i, one = x.place, x.numbers[0]
        of = i - places.derivatives + 1 if places.derivatives <= i < places.outputs else None
        starts = [_start(number) for number in x.numbers]
        words = _attributes(
            name=x.name, valueReference=i, description=x.about, **places.role(i, one),
            unit=one.unit, derivative=of, start=" ".join(filter(None, starts)),
        )  # fmt: skip
        inside = "".join(f'<Dimension start="{k}"/>' for k in x.shape or ())
        end = f">{inside}</Float64>" if inside else "/>"
        lines.append(f"    <Float64{words}{end}")
    structure = _structure3(model, places)
    return "\n".join([
        *_head(model, "3.0", instantiationToken=token),
        f"  <ModelExchange{able}/>", f"  <CoSimulation{able}{step}/>",
        _units(model), _categories("LogCategories"), _experiment(model),
        "  <ModelVariables>", *lines, "  </ModelVariables>", structure,
        "</fmiModelDescription>", "",
    ])  # fmt: skip


def _categories(name: str) -> str:
    each = ("logStatusWarning", "logStatusDiscard", "logStatusError")
    lines = [f'    <Category name="{x}"/>' for x in each]
    return "\n".join([f"  <{name}>", *lines, f"  </{name}>"])


def _known(model: MockupModel, row: int) -> list[int]:
    """What a derivative or output depends on while a run goes on: time, states and inputs."""
    n = len(model.states)
    first = _Places.of(model).parameters
    return [
        i
        for i in model.depends[row]
        if i <= n or (i >= first and model.parameters[i - first].kind == INPUT)
    ]


def _structure3(model: MockupModel, places: _Places) -> str:
    n, lines, each = len(model.states), [], listed(model)
    variable_of = {x.place + k: x.place for x in each for k in range(len(x.numbers))}
    between = lambda a, b: [x for x in each if a <= x.place < b]  # noqa: E731

    def line(name: str, x: ListedVariable, known: set[int]) -> None:
        words = " ".join(map(str, sorted({variable_of[i] for i in known})))
        lines.append(f'    <{name} valueReference="{x.place}" dependencies="{words}"/>')

    def known(x: ListedVariable, first: int) -> set[int]:
        """What its numbers depend on, which are rows of `depends` from the `first` on."""
        rows = range(first, first + len(x.numbers))
        return {i for row in rows for i in _known(model, row)}

    states, derivatives, outputs = itertools.starmap(between, itertools.pairwise((1, *places)))
    for x in states:
        line("Output", x, {x.place})
    for x in outputs:
        line("Output", x, known(x, n + x.place - places.outputs))
    for x in derivatives:
        line("ContinuousStateDerivative", x, known(x, x.place - places.derivatives))
    calculated = [x for x in states if x.numbers[0].kind == CALCULATED]
    unknown = [*calculated, *derivatives, *outputs]
    lines += [f'    <InitialUnknown valueReference="{x.place}"/>' for x in unknown]
    return "\n".join(["  <ModelStructure>", *lines, "  </ModelStructure>"])


def _description2(model: MockupModel, token: str) -> str:
    """Of FMI 2.0."""
    places = _Places.of(model)
    able = _attributes(
        modelIdentifier=model.name, canGetAndSetFMUstate="true", canSerializeFMUstate="true",
        providesDirectionalDerivative="true",
    )  # fmt: skip
    lines = []
    for i, x in enumerate(model.variables):
        of = i - places.derivatives + 2 if places.derivatives <= i < places.outputs else None
        words = _attributes(name=x.name, valueReference=i, description=x.about, **places.role(i, x))
        real = _attributes(unit=x.unit, derivative=of, start=_start(x))
        lines.append(f"    <ScalarVariable{words}><Real{real}/></ScalarVariable>")
    structure = _structure2(model, places)
    return "\n".join([
        *_head(model, "2.0", guid=token, numberOfEventIndicators="0"),
        f"  <ModelExchange{able}/>",
        f'  <CoSimulation{able} canHandleVariableCommunicationStepSize="true"/>',
        _units(model), _categories("LogCategories"), _experiment(model),
        "  <ModelVariables>", *lines, "  </ModelVariables>", structure,
        "</fmiModelDescription>", "",
    ])  # fmt: skip


def _structure2(model: MockupModel, places: _Places) -> str:
    """Variables are numbered from 1 here."""
    n = len(model.states)

    def line(i: int, known: list[int]) -> str:
        numbers = " ".join(str(x + 1) for x in known)
        return f'      <Unknown index="{i + 1}" dependencies="{numbers}"/>'

    outputs = [line(i, [i]) for i in range(1, n + 1)]
    outputs += [line(places.outputs + k, _known(model, n + k)) for k in range(len(model.outputs))]
    derivatives = [line(places.derivatives + k, _known(model, k)) for k in range(n)]
    unknown = [i for i, x in enumerate(model.states, 1) if x.kind == CALCULATED]
    unknown += range(places.derivatives, places.parameters)
    initial = [f'      <Unknown index="{i + 1}"/>' for i in unknown]
    parts = {"Outputs": outputs, "Derivatives": derivatives, "InitialUnknowns": initial}
    inside = [x for name, each in parts.items() for x in (f"    <{name}>", *each, f"    </{name}>")]
    return "\n".join(["  <ModelStructure>", *inside, "  </ModelStructure>"])


def _build_description(model: MockupModel) -> str:
    name = escape(model.name)
    return f"""<?xml version="1.0" encoding="UTF-8"?>
<fmiBuildDescription fmiVersion="3.0">
  <BuildConfiguration modelIdentifier="{name}">
    <SourceFileSet language="C99" compilerOptions="-ffp-contract=off">
      <SourceFile name="fmi3.c"/>
    </SourceFileSet>
    <Library name="m" external="true"/>
  </BuildConfiguration>
</fmiBuildDescription>
"""
