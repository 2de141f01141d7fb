"""Codes on the suite of mechanisms: error against time, of motions, multipliers and derivatives.

    python benchmarks/suite_runs.py --codes jaxdae casadi --out docs/data/suite.json
    python benchmarks/suite_runs.py --problems pendulum four-bar --codes jaxdae

References are in `docs/data/suite/`. What a file of results has of other mechanisms or codes is
kept, also where a package is not installed. Times are the least of up to three calls, a program's
first call apart.
"""

import importlib
import json
import os
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import harness
from competitors.base import MissingCodeError

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
MODULES = {
    "jaxdae": "suite.ours",
    "diffrax": "suite.hand_reduced",
    "casadi": "suite.casadi_code",
    "exudyn": "suite.exudyn_code",
    "mujoco": "suite.mujoco_code",
    "pinocchio": "suite.pinocchio_code",
}
LONGEST = 20.0  # [s]: a code whose run takes longer is not asked for a finer one


def measured(name: str, code: str, prepare: Any, calls: int) -> dict[str, Any]:
    """The record of a code on a mechanism: a row for each setting, or why there is none."""
    from suite.answers import errors
    from suite.catalogue import MECHANISMS, reference

    mechanism, wanted = MECHANISMS[name], reference(name)
    record: dict[str, Any] = {"mechanism": name, "code": code, "rows": []}
    try:
        made = prepare(mechanism, wanted)
    except (ImportError, MissingCodeError) as missing:
        return record | {"missing": str(missing)}
    except Exception as error:  # what another code says is its answer
        return record | {"refused": _short(error)}
    for setting in made.settings:
        try:
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")
                times = list(_times(calls, lambda setting=setting: made.run(setting)))
            answer, took = times[0][1], [seconds for seconds, _ in times]
            row = {"setting": setting, "seconds": min(took), "first_call": took[0]}
            row |= errors(answer, wanted, mechanism)
            if said:
                row["said"] = str(said[0].message)[:200]
            record["rows"].append(row)
        except Exception as error:
            record["refused"] = f"{setting:g}: {_short(error)}"
            continue
        if min(took) > LONGEST:
            record["slow"] = True
            break
    return record


def _times(calls: int, call: Callable[[], Any]) -> Iterator[tuple[float, Any]]:
    """Times of calls, fewer of those that take long, and what they return."""
    for i in range(calls):
        began = time.perf_counter()
        found = call()
        took = time.perf_counter() - began
        yield took, found
        if i and took > LONGEST / 4:
            return


def _short(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".replace("RefusedError: ", "").split())[:200]


def main() -> None:
    """As the first lines say."""
    from suite.catalogue import MECHANISMS

    def more(parser):
        parser.add_argument("--codes", nargs="*", default=[*MODULES], choices=[*MODULES])
        parser.add_argument("--only", default="", help="part of the names of a code's programs")

    quick = ("pendulum", "rolling-disk", "parallelogram")
    words = harness.arguments(__doc__, 4, MECHANISMS, quick, more)
    out = words.out or Path(__file__).parent / "results" / "suite.json"
    for code in words.codes:
        programs = importlib.import_module(MODULES[code]).CODES
        for label, prepare in programs.items():
            for name in words.problems if words.only in label else ():
                record = measured(name, label, prepare, words.repetitions)
                if "missing" not in record:
                    kept(out, record)
                last = (record["rows"] or [{}])[-1]
                print(label, name, last, record.get("refused", record.get("missing", ""))[:100])


def kept(file: Path, record: dict[str, Any]) -> None:
    """Put a record into a file in the place of an older one."""
    data: dict[str, Any] = {"records": []}
    if file.exists():
        data = json.loads(file.read_text())
    key = lambda x: (x["mechanism"], x["code"])  # noqa: E731
    rest = [x for x in data["records"] if key(x) != key(record)]
    record["load"] = harness.load()
    records = sorted([*rest, record], key=key)
    lines = ",\n  ".join(json.dumps(x) for x in records)
    head: dict[str, Any] = {
        "benchmark": "suite",
        "machine": {"processor": harness.processor(), "cores": harness.cores()},
        # Packages of other codes may be in another environment.
        "versions": data.get("versions", {})
        | {name: x for name, x in harness.versions().items() if x != "not installed"},
    }
    text = "".join(f" {json.dumps(k)}: {json.dumps(v)},\n" for k, v in head.items())
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("{\n" + text + f' "records": [\n  {lines}\n ]\n}}\n')


if __name__ == "__main__":
    main()
