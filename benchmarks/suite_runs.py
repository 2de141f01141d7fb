"""Codes on the suite of mechanisms: error against time, of motions, multipliers and derivatives.

    python benchmarks/suite_runs.py --codes jaxdae casadi --out docs/data/suite.json
    python benchmarks/suite_runs.py --mechanisms pendulum four-bar --codes jaxdae

References are in `docs/data/suite/`. What a file of results has of other mechanisms or codes is
kept. Times are the least of three calls, a program's first call apart.
"""

import argparse
import importlib
import json
import os
import time
import warnings
from pathlib import Path
from typing import Any

import harness

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


def measured(name: str, code: str, prepare: Any) -> dict[str, Any]:
    """The record of a code on a mechanism: a row for each setting, or why there is none."""
    from suite.answers import errors, RefusedError
    from suite.catalogue import MECHANISMS, reference

    mechanism, wanted = MECHANISMS[name], reference(name)
    record: dict[str, Any] = {"mechanism": name, "code": code, "rows": []}
    try:
        made = prepare(mechanism, wanted)
        for setting in made.settings:
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")
                began = time.perf_counter()
                answer = made.run(setting)
                took = [time.perf_counter() - began]
                for _ in range(2 if took[0] < LONGEST / 10 or not record["rows"] else 0):
                    if took[-1] < LONGEST:
                        began = time.perf_counter()
                        made.run(setting)
                        took.append(time.perf_counter() - began)
            row = {"setting": setting, "seconds": min(took), "first_call": took[0]}
            row |= errors(answer, wanted, mechanism)
            if said:
                row["said"] = str(said[0].message)[:200]
            record["rows"].append(row)
            if min(took) > LONGEST:
                break
    except RefusedError as refusal:
        record["refused"] = str(refusal)
    except ImportError as missing:
        record["missing"] = str(missing)
    except Exception as error:
        text = " ".join(f"{type(error).__name__}: {error}".split())
        record["refused"] = text[:300]
    return record


def main() -> None:
    """As the first lines say."""
    import jax
    from suite.catalogue import MECHANISMS

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mechanisms", nargs="*", default=[*MECHANISMS])
    parser.add_argument("--codes", nargs="*", default=[*MODULES], choices=[*MODULES])
    parser.add_argument("--only", default="", help="part of the names of a code's programs")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/suite.json"))
    words = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    for code in words.codes:
        programs = importlib.import_module(MODULES[code]).CODES
        for label, prepare in programs.items():
            for name in words.mechanisms if words.only in label else ():
                record = measured(name, label, prepare)
                kept(words.out, record)
                last = (record["rows"] or [{}])[-1]
                print(label, name, last, record.get("refused", "")[:100], flush=True)


def kept(file: Path, record: dict[str, Any]) -> None:
    """Put a record into a file in the place of an older one."""
    data = json.loads(file.read_text()) if file.exists() else {"records": []}
    key = lambda x: (x["mechanism"], x["code"])  # noqa: E731
    rest = [x for x in data["records"] if key(x) != key(record)]
    record["load"] = harness.load()
    records = sorted([*rest, record], key=key)
    lines = ",\n  ".join(json.dumps(x) for x in records)
    head = {
        "benchmark": "suite",
        "machine": {"processor": harness.processor(), "cores": harness.cores()},
        "versions": data.get("versions", {}) | harness.versions(),
    }
    text = "".join(f" {json.dumps(k)}: {json.dumps(v)},\n" for k, v in head.items())
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("{\n" + text + f' "records": [\n  {lines}\n ]\n}}\n')


if __name__ == "__main__":
    main()
