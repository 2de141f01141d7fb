"""A gradient is examined: which evaluations are made, what is compared, what follows."""

import jax.numpy as jnp
import numpy as np

from jaxdae.certification import motions
from jaxdae.certification.certificate import GradientCertificate, GradientCheck
from jaxdae.certification.differences import differences, first_step, Line
from jaxdae.certification.evaluations import Evaluator
from jaxdae.diagnosis.observation import Observation, observing, SeenRun
from jaxdae.runs import integrated
from jaxdae.simulation.dae_problem import DAEProblem

MOST_EVALUATIONS = 12
# Decimal digits of a gradient that are asked for where nothing else is said.
DIGITS = 3.0
# Parts of a leaf's largest number below which another one says nothing of its own scale.
_NO_SCALE = 1e-8
# Part of a parameter by which it is changed where its influence is large, so that others show too.
_LEAST_CHANGE = {True: 1e-3, False: 0.1}  # in double precision, in single precision
# A mode, or a derivative, is wrong where it is off by so many times what is explained.
_TIMES = 10.0
# Distances, as parts of the parameters, to which a function that seems to be constant is asked.
_FAR = 0.25
# Noise above this part of the values is not what steps and round-off leave, but a rough function.
_ROUGH = 1e-6
# Leaves of parameters that are examined by themselves to say where a fault is.
_MOST_LEAVES = 64


class GradientExamination:
    """The examination at one point.

    Args:
        of: the function.
        x: the point.
        digits: decimal digits that are asked for.
        backends: whether the other backend is asked, too.
        seed: of the random directions.
    """

    def __init__(
        self, of: Evaluator, x: np.ndarray, digits: float, *, backends: bool, seed: int = 0
    ):
        self.of, self.x, self.digits, self.backends, self.seed = of, x, digits, backends, seed
        self.evaluations = 0
        self.checks: list[GradientCheck] = []
        self.faults: dict[str, str] = {}
        self.known_digits: dict[str, float] = {}
        self.growth = self.rank = self.residual = None
        self.events = motions.EventSequence((), ())
        self.gradient: np.ndarray | None = None
        self.along: np.ndarray | None = None
        self.value = np.zeros(0)
        self.mismatch, self.by_tolerance = False, 0.0
        self.plain: tuple[np.ndarray, np.ndarray] | None = None

    def certificate(self) -> GradientCertificate:
        """All of it."""
        self._examined()
        for fault in _ORDER:
            if fault in self.faults:
                return self._result(fault, self.faults[fault])
        digits = self._digits()
        limit = min(self.known_digits, key=lambda x: self.known_digits[x], default=None)
        words = "nothing could be compared" if limit is None else f"{limit} tells no more"
        return self._result("", f"{digits:.1f} digits hold; {words}")

    def _digits(self) -> float:
        most = -np.log10(self.epsilon)
        return float(np.clip(min(self.known_digits.values(), default=0.0), 0.0, most))

    def _result(self, fault: str, reason: str) -> GradientCertificate:
        gradient = None
        if self.value.size == 1 and self.gradient is not None:
            # Of the value itself, not of the weighted one.
            gradient = self.of.tree(self.gradient / float(self.w[0] * self.weights[0]))
        return GradientCertificate(
            not fault, fault, reason, 0.0 if fault in _WORTHLESS else self._digits(), self.value,
            gradient, tuple(self.checks), self.growth, self.rank, self.events.gap, self.residual,
            self.evaluations,
        )  # fmt: skip

    def _add(self, name, passed, value=np.nan, bound=np.nan, words="") -> None:
        self.checks.append(GradientCheck(name, passed, float(value), float(bound), words))

    # The evaluations in their order.

    def _examined(self) -> None:
        of, x = self.of, self.x
        self.value, dtype, seen = of.evaluate(x)
        self.evaluations += 1
        self.epsilon = max(of.epsilon, float(jnp.finfo(dtype).eps))
        if of.returns_integers:
            self.faults["integer"] = (
                "the function returns integers, which have no derivative; return floating-point "
                "numbers that change smoothly."
            )
            return
        self._read_runs(seen)
        if not np.isfinite(self.value).all():
            count, failure = int((~np.isfinite(self.value)).sum()), motions.first_failure(seen)
            why = "" if failure is None else f" A run behind it failed: {failure}"
            self.faults["not finite"] = (
                f"{count} of {self.value.size} values of the function are not finite.{why} Start "
                "from parameters at which it is finite."
            )
            return
        self._read_program()
        self.weights = 1 / _scales(self.value, [slice(0, self.value.size)])
        self._find_growth(seen)
        if self._differentiate():
            self._compare_modes()
            self._compare_differences()
            self._compare_backends(seen)
            self._compare_tolerances()
            self._conclude()

    def _read_program(self) -> None:
        unused = self.of.unused(self.x)
        words = "the function reads all parameters"
        if unused:
            words = f"the function never reads {_listed(unused)}"
            self.faults["unused"] = (
                f"{words}: the gradient by it is zero whatever its value. Compute from the "
                "argument of the function, not from a copy of it outside; or leave it out of the "
                "parameters, as a Python number for example."
            )
        self._add("parameters", not unused, len(unused), 0, words)

    def _read_runs(self, seen: list[SeenRun]) -> None:
        """What the runs at the point say."""
        self.tolerance = motions.tolerance_of(seen)
        self.native = any(x.trajectory.backend == "native" for x in seen)
        if not seen:
            self._add("runs", None, words="none were made, or none by jaxdae")
            return
        self.events = motions.events_of(seen)
        found = motions.findings(seen)
        for one in found:
            self.faults.setdefault(one.subject, f"{one.message[:1].upper()}{one.message[1:]}")
        self.residual, self.rank = motions.residual(seen), motions.rank_margin(seen)
        parts = [f"{len(seen)} run{'s' * (len(seen) > 1)}"]
        if self.residual is not None:
            parts.append(f"constraint residual {self.residual:.1e}")
        if self.rank is not None:
            margin = f"{self.rank.value:.2g} at t = {self.rank.time:.4g} s"
            parts.append(f"least singular value of the constraints {margin} of the largest")
        if any(self.events.names):
            parts.append(f"events at least {self.events.gap:.3g} s apart")
        parts += [f"{x.message[:60]}…" for x in found]
        failed = sum(not bool(x.trajectory.success) for x in seen)
        if failed:
            parts.append(f"{failed} failed")
        self._add("runs", not found, len(found), 0, "; ".join(parts))
        mechanical = [x for x in seen if not isinstance(x.problem, DAEProblem)]
        good = [x for x in mechanical if bool(x.trajectory.success)]
        if not good:
            return
        left = motions.acceleration_left(good[0])
        if left is None:
            return
        kept = left <= motions.LEFT
        words = f"{100 * left:.2g} % of the constraints' acceleration (gamma) is left over"
        self._add("constraints", kept, left, motions.LEFT, words)
        if not kept:
            self.faults.setdefault(
                "constraints",
                f"The equations of motion leave {100 * left:.3g} % of the acceleration that curved "
                "constraints need (gamma): the run is off the constraints however small its steps "
                "are. Check the derivatives of the constraints, if they have rules of their own, "
                "and the formulation.",
            )

    def _find_growth(self, seen: list[SeenRun]) -> None:
        known = [
            x for x in seen if not isinstance(x.problem, DAEProblem) and bool(x.trajectory.success)
        ]
        if not known:
            return
        duration = lambda x: abs(float(x.trajectory.final_time) - float(x.problem.times.start))  # noqa: E731
        longest = max(known, key=duration)
        with observing(Observation(sees=True, perturbed=True)):
            self.growth = motions.growth(longest, integrated)
        self.evaluations += 1
        if self.growth is None:
            self._add("growth", None, words="not known: rows of two runs are at different times")
            return
        lost, most = self.growth.digits_lost, self.growth.digits / 2
        words = f"perturbations cost {lost:.1f} of {self.growth.digits:.1f} digits"
        self._add("growth", lost <= most, lost, most, words)
        self.known_digits["the growth of perturbations"] = self.growth.digits - lost
        if lost > most:
            self.faults["growth"] = (
                f"Perturbations of the motion grow by 1e{lost:.0f} in {duration(longest):.4g} s, "
                f"{_rate(self.growth.rate)}: {lost:.1f} of {self.growth.digits:.1f} digits are "
                "lost. The gradient may be right and is of no use: it holds for changes of the "
                f"parameters by 1e-{lost:.0f} of them. It serves up to {self.growth.horizon:.3g} s "
                "(half of the digits): shorten the run to that, take several short runs, or "
                "stabilize the motion."
            )

    def _differentiate(self) -> bool:
        """Both modes; whether there is at least one, and finite."""
        of, x = self.of, self.x
        random = np.random.default_rng(self.seed)
        signs = random.choice([-1.0, 1.0], self.value.size)
        self.w = signs * random.uniform(0.5, 1.5, self.value.size) / np.sqrt(self.value.size)
        back = of.reverse(x, self.w * self.weights)
        self.evaluations += back.slope is not None
        self.gradient = back.slope
        self.v = self._direction(random)
        ahead = of.forward(x, self.v)
        self.evaluations += ahead.slope is not None
        self.along = None if ahead.slope is None else self.weights * ahead.slope
        for name, one in (("reverse mode", back), ("forward mode", ahead)):
            if one.slope is None:
                self._add(name, None, words=f"not available: {one.refusal}")
        if self.gradient is None and self.along is None:
            raise ValueError(
                f"certify: the function has no derivative in either mode. Reverse: {back.refusal} "
                f"Forward: {ahead.refusal}"
            )
        bad = self._not_finite()
        if bad:
            self.faults["not finite"] = (
                f"The derivative is not finite ({bad}), although the function is: a root or norm "
                "at zero, a division that jnp.where leaves out, or a kink at infinity. Compute "
                "both sides of a jnp.where from arguments that are safe."
            )
            self._add("derivative", False, words=f"not finite: {bad}")
        return not bad

    def _not_finite(self) -> str:
        """Where a derivative is not finite, in words; empty where it is."""
        if self.gradient is not None and not np.isfinite(self.gradient).all():
            places = [
                name
                for name, part in zip(self.of.names, self.of.slices(), strict=True)
                if not np.isfinite(self.gradient[part]).all()
            ]
            return f"reverse mode, by {_listed(places)}"
        if self.along is not None and not np.isfinite(self.along).all():
            return "forward mode"
        return ""

    def _direction(self, random) -> np.ndarray:
        """A direction in which every parameter changes, those of large influence by less."""
        scales = _scales(self.x, self.of.slices())
        gradient = np.zeros_like(self.x) if self.gradient is None else self.gradient
        gradient = np.where(np.isfinite(gradient), gradient, 0.0)
        # Of what is zero the scale is not known: no more than changes the function by its size.
        parts = [np.abs(self.x[part]) for part in self.of.slices()]
        largest = np.concatenate([np.full_like(x, x.max(initial=0.0)) for x in parts])
        small = np.abs(self.x) <= _NO_SCALE * largest
        with np.errstate(divide="ignore"):
            scales = np.where(small, np.minimum(scales, 1 / np.abs(gradient)), scales)
        self.scales = scales
        influence = np.abs(gradient) * scales
        least = _LEAST_CHANGE[self.of.epsilon < 1e-10]
        some = influence[influence > 0]
        balance = np.ones_like(influence)
        if some.size:
            with np.errstate(divide="ignore"):
                balance = np.clip(some.min() / influence, least, 1.0)
        signs = random.choice([-1.0, 1.0], self.x.size)
        return signs * random.uniform(0.5, 1.5, self.x.size) * scales * balance

    # What is compared.

    def _compare_modes(self) -> None:
        """The adjoint identity `<J v, w> = <v, J^T w>`."""
        if self.gradient is None or self.along is None:
            return
        ahead, back = float(self.w @ self.along), float(self.gradient @ self.v)
        size = max(
            abs(ahead), abs(back), float(np.abs(self.gradient * self.v).sum()),
            float(np.abs(self.w * self.along).sum()),
        )  # fmt: skip
        off = abs(ahead - back) / size if size > 0 else 0.0
        self.mismatch = abs(ahead - back) > 0 and off > self._identity_bound()
        words = f"<J v, w> = {ahead:.10g}, <v, J^T w> = {back:.10g}: off by {off:.1e}"
        self._add("modes", not self.mismatch, off, self._identity_bound(), words)
        self.known_digits["the adjoint identity"] = _digits(off)

    def _identity_bound(self) -> float:
        lost = 0.0 if self.growth is None else self.growth.digits_lost
        return max(self.epsilon**0.5, 10 * self.epsilon * 10**lost)

    def _compare_differences(self) -> None:
        """The derivative along the direction by values alone."""
        self.sequences: dict[float, motions.EventSequence] = {}
        along, gradient = self.along, self.gradient

        def weighted(value: np.ndarray) -> np.ndarray:
            value = self.weights * value
            return value if along is not None else np.array([self.w @ value])

        def at(distance: float) -> np.ndarray:
            value, _, seen = self.of.evaluate(self.x + distance * self.v)
            self.evaluations += 1
            self.sequences[distance] = motions.events_of(seen)
            return weighted(value)

        claimed = along
        if claimed is None:
            assert gradient is not None  # there is one mode at least
            claimed = np.array([gradient @ self.v])
        line = Line(at, weighted(self.value), self.epsilon)
        step = first_step(line, float(np.linalg.norm(claimed)), self.tolerance or 0.0)
        asked = None if self.mismatch else claimed
        self.found = differences(line, step, asked)
        self.claimed = claimed
        self.size = max(
            float(np.linalg.norm(claimed)), float(np.linalg.norm(self.found.estimates[0])),
            self.found.variation,
        )  # fmt: skip
        self.off = self.found.distance(claimed) / self.size if self.size > 0 else 0.0
        self.longest = max(map(abs, self.found.steps))
        # Changes of the values that do not stand out of their noise say nothing.
        quiet = self.found.noise <= _ROUGH * float(np.linalg.norm(line.zero))
        self.silent = quiet and self.size * self.longest <= 4 * self.found.noise
        if self.found.shape == "constant" and not self.size * self.longest > self.found.noise:
            self._look_far(at, line)

    def _look_far(self, at, line: Line) -> None:
        """Whether a function that is constant near the point changes farther away."""
        values = [at(x) for x in (_FAR, -_FAR)]
        changed = [not np.array_equal(x, line.zero) for x in values]
        if any(changed) and not self.faults.get("unused"):
            self.faults["steps"] = (
                f"The function is constant within {self.longest:.1g} of the parameters and "
                f"different at {_FAR:g} of them: it is made of steps (rounded, counted, compared), "
                "or saturated. Its gradient, zero, is right and shows no way: use a smooth measure."
            )

    def _compare_backends(self, seen: list[SeenRun]) -> None:
        name = "backends"
        if not self.backends or not self.native:
            given = [x.trajectory.why_not_native for x in seen if x.trajectory.why_not_native]
            words = f"one alone: {given[0]}" if given else "no native run"
            self._add(name, None, words=words if self.backends else "not asked for")
            return
        if self.evaluations >= MOST_EVALUATIONS - (self.tolerance is not None):
            self._add(name, None, words="no evaluation is left for it")
            return
        if self.along is not None:
            other = self.of.forward(self.x, self.v, backend="plain")
            slope = None if other.slope is None else self.weights * other.slope
        else:
            other = self.of.reverse(self.x, self.w * self.weights, backend="plain")
            slope = None if other.slope is None else np.array([other.slope @ self.v])
        if slope is None or other.value is None:
            self._add(name, None, words=f"the plain one refuses: {other.refusal}")
            return
        self.evaluations += 1
        self.plain = slope, other.value

    def _compare_tolerances(self) -> None:
        """The derivative by smaller tolerances."""
        if self.tolerance is None:
            return
        if self.gradient is not None:
            own, factor = self.gradient, self.scales
            tight = self.of.reverse(self.x, self.w * self.weights, tolerance=0.1).slope
        else:
            assert self.along is not None  # there is one mode at least
            own, factor = self.along / self.weights, self.weights
            tight = self.of.forward(self.x, self.v, tolerance=0.1).slope
        if tight is None:
            return
        self.evaluations += 1
        change = float(np.linalg.norm((tight - own) * factor))
        size = float(np.linalg.norm(own * factor))
        if not np.isfinite(change):
            self._add("tolerance", None, words="runs of a tenth of it fail")
            return
        self.by_tolerance = change / size if size > 0 else 0.0
        needed = 10.0**-self.digits
        holds = self.by_tolerance <= needed or change * self.longest <= self.epsilon
        words = (
            f"by a tenth of the tolerance {self.tolerance:.0e} the derivative changes by "
            f"{self.by_tolerance:.1e}"
        )
        self._add("tolerance", holds, self.by_tolerance, needed, words)
        self.known_digits["the tolerance of the steps"] = _digits(self.by_tolerance)
        if not holds:
            self.faults["tolerance"] = (
                f"The gradient changes by {100 * self.by_tolerance:.2g} % when the tolerance of "
                f"the steps, {self.tolerance:.1g}, is made a tenth of it.{self._of_held_steps()} "
                "Take fixed steps, dt=…, of which the gradient is exact, Rodas5P() where the "
                "equations are stiff, or a smaller tolerance, PIDController(rtol=…, atol=…)."
            )

    def _of_held_steps(self) -> str:
        """Whether perturbations of the motion need shorter steps than the motion itself."""
        if self.silent or not self.off > 10.0**-self.digits or self.found.error > self.off:
            return " It is one of the steps' errors more than of the motion."
        return (
            f" It is off differences of values by {self.off:.2g} of its size: steps are held fixed "
            "in the derivative, and change with the parameters in the values."
        )

    # What follows.

    def _conclude(self) -> None:
        found, needed = self.found, 10.0**-self.digits
        explained = _TIMES * (found.error / self.size if self.size > 0 else 0.0)
        explained += _TIMES * self.by_tolerance + self._held(self.size)
        if self.growth is not None:
            explained += self.epsilon * 10**self.growth.digits_lost
        bound = max(explained, self.epsilon**0.45)
        wrong = not self.silent and self.off > bound
        words = (
            f"AD and differences over {found.step:.1g} of the parameters are off by {self.off:.1e}"
            f"; noise {found.noise:.0e} of the values"
        )
        if self.silent:
            words = "the derivative is zero, or below the noise of the values: nothing to compare"
        self._add("differences", not wrong, self.off, bound, words)
        if not self.silent:
            self.known_digits["the comparison with differences"] = _digits(self.off)
        self._of_backends()
        if self.mismatch and self.silent:
            self.faults["noise"] = (
                f"The derivative changes the values by less than their noise, {found.noise:.1g} of "
                f"their size, within {self.longest:.1g} of the parameters, and the modes differ: "
                "it is one of round-off. Take a function that the parameters change."
            )
            return
        if self.mismatch:
            self._of_modes(bound)
            return
        if not self.silent:
            self._of_shape(wrong=wrong)
        rough = found.noise / found.step > needed * self.size
        if wrong and not rough:
            fault = "derivative"
            if self.gradient is None or self.along is None:
                fault = "adjoint" if self.along is None else "tangent"
            self.faults.setdefault(fault, self._of_derivative())
        elif not self.silent and (wrong or self.off > needed):
            self.faults.setdefault(
                "noise",
                f"The values are noisy by {found.noise:.1g} of their size, so that differences say "
                f"no more of the gradient than {self.off:.1g}: {self.digits:g} digits are asked "
                "for. Take smaller tolerances or fixed steps, or leave out what rounds or is drawn "
                "at random.",
            )
        if not self.faults and self._digits() < self.digits and self.known_digits:
            limit = min(self.known_digits, key=lambda x: self.known_digits[x])
            self.faults["noise"] = (
                f"{self._digits():.1f} digits hold, by {limit}, and {self.digits:g} are asked "
                "for: take smaller tolerances, double precision or a shorter run."
            )

    def _held(self, size: float) -> float:
        """What the tolerance of the steps explains of a derivative, as a part of its size.

        On the way a derivative may be larger than at its end: of the order of one.
        """
        return min(_TIMES * (self.tolerance or 0.0) / size, 1e-3) if size > 0 else 0.0

    def _of_backends(self) -> None:
        """Whether both backends give the same."""
        if self.plain is None:
            return
        slope, value = self.plain
        size = max(self.size, float(np.linalg.norm(slope)))
        off = float(np.linalg.norm(slope - self.claimed)) / size if size > 0 else 0.0
        values = float(np.linalg.norm(self.weights * (value - self.value)))
        lost = 0.0 if self.growth is None else 10 * self.epsilon * 10**self.growth.digits_lost
        most = max(self.epsilon**0.5, 3 * self.by_tolerance, lost, self._held(size))
        most_of_values = max(self.epsilon**0.5, 100 * (self.tolerance or 0.0), lost)
        wrong = not (off <= most or off * size * self.longest <= self.epsilon)
        different = not values <= most_of_values
        words = f"native and plain differ by {values:.1e} in values, {off:.1e} in the derivative"
        self._add("backends", not (wrong or different), max(off, values), most, words)
        if not self.silent or off < self.by_tolerance:
            self.known_digits["the other backend"] = _digits(off)
        if wrong or different:
            near = self.found.distance(slope) < 0.5 * self.found.distance(self.claimed)
            which = "Differences of native runs agree with " + ("plain" if near else "native")
            self.faults["backend"] = (
                f"The two backends differ: by {values:.2g} in values, where {most_of_values:.1g} "
                f"is explained, and by {off:.2g} in the derivative, {most:.1g} explained. {which} "
                "derivatives. Use the one that is right, backend='native' or 'plain', and report "
                "the system; if it has functions with rules of their own, check these."
            )

    def _of_modes(self, bound: float) -> None:
        """Which mode it is that is wrong."""
        assert self.gradient is not None
        assert self.along is not None
        estimate = self.found.estimates[0]
        reverse = abs(float(self.w @ estimate) - float(self.gradient @ self.v))
        forward = float(np.linalg.norm(estimate - self.along))
        limit = max(bound, 1e-3) * self.size
        right = [name for name, x in (("reverse", reverse), ("forward", forward)) if x <= limit]
        check = next(x for x in self.checks if x.name == "modes")
        if len(right) == 1:
            wrong = "reverse" if right[0] == "forward" else "forward"
            which = f"{wrong.capitalize()} mode is wrong: {right[0]} mode agrees with differences."
        else:
            which = "Differences do not tell which mode is wrong."
        fault = "tangent" if right == ["reverse"] else "adjoint"
        self.faults[fault] = (
            f"Forward and reverse mode contradict each other: {check.words} of it, where round-off "
            f"explains {check.bound:.0e}. {which}{self._place()} Correct the rule of the "
            f"derivative there (jax.custom_jvp, jax.custom_vjp).{self._rules()}"
        )

    def _place(self) -> str:
        """By which parameters the modes differ most, in words."""
        names = self.of.names
        if not 1 < len(names) <= _MOST_LEAVES or self.evaluations >= MOST_EVALUATIONS:
            return ""
        rows = self.of.by_leaves(self.x, self.v)
        if rows is None or self.gradient is None:
            return self._place_by_values()
        self.evaluations += 1
        forward = rows @ (self.w * self.weights)
        parts = self.of.slices()
        reverse = np.array([self.gradient[x] @ self.v[x] for x in parts])
        worst = int(np.argmax(np.abs(forward - reverse)))
        return (
            f" Most of it is in the derivative by {names[worst]}: {forward[worst]:.6g} forward, "
            f"{reverse[worst]:.6g} reverse."
        )

    def _place_by_values(self) -> str:
        """By which parameters the derivative is off most, by values alone, in words."""
        parts, names = self.of.slices(), self.of.names
        if not 1 < len(names) <= 1 + MOST_EVALUATIONS - self.evaluations:
            return ""
        if self.gradient is not None:
            claimed = np.array([self.gradient[x] @ self.v[x] for x in parts])
        else:
            rows = self.of.by_leaves(self.x, self.v)
            if rows is None or self.evaluations + len(names) > MOST_EVALUATIONS:
                return ""
            self.evaluations += 1
            claimed = rows @ (self.w * self.weights)
        # One-sided: as many evaluations as there are leaves but one.
        h = min(self.found.step, max(self.found.noise, self.epsilon) ** 0.5)
        total = self.found.estimates[0]
        by_values = []
        for part in parts[:-1]:
            moved = self.x.copy()
            moved[part] += h * self.v[part]
            value, *_ = self.of.evaluate(moved)
            self.evaluations += 1
            by_values.append(float(self.w @ (self.weights * (value - self.value))) / h)
        along = float(self.w @ total) if self.along is not None else float(total[0])
        by_values.append(along - sum(by_values))
        worst = int(np.argmax(np.abs(claimed - by_values)))
        part = claimed[worst] / by_values[worst] if by_values[worst] else np.inf
        amount = "has the opposite sign" if abs(part + 1) < 1e-2 else f"is {part:.4g} times that"
        return f" The derivative by {names[worst]} {amount} of differences."

    def _rules(self) -> str:
        found = self.of.own_rules(self.x)
        return f" Rules of their own have: {_listed(found)}." if found else ""

    def _of_derivative(self) -> str:
        claimed = float(np.linalg.norm(self.claimed))
        by_values = float(np.linalg.norm(self.found.estimates[0]))
        modes = "Both modes agree with each other, and not"
        if self.gradient is None or self.along is None:
            modes = f"{'Reverse' if self.along is None else 'Forward'} mode does not agree"
        return (
            f"{modes} with differences of values: the derivative along the direction is "
            f"{claimed:.8g}, by differences {by_values:.8g}, off by {self.off:.1e} of it where "
            f"{self.found.error / self.size if self.size else 0:.0e} is explained."
            f"{self._place_by_values()} A part of the derivative is missing or wrong: "
            "jax.lax.stop_gradient, a number taken out of an array and put in again, a clipped "
            f"gradient, a rule of its own.{self._rules()}"
        )

    def _of_shape(self, *, wrong: bool) -> None:
        """Kinks, jumps, and events that change their order."""
        base = self.events.names
        changed = [abs(x) for x, other in self.sequences.items() if other.names != base]
        if changed and (wrong or min(changed) <= self.found.step * 1.001):
            nearest = min(self.sequences, key=lambda x: (self.sequences[x].names == base, abs(x)))
            self.faults.setdefault(
                "events",
                f"The events of the runs change within {min(changed):.1g} of the parameters: "
                f"{self.events.described()} at the point, {self.sequences[nearest].described()} "
                "beside it. The function has no derivative where their number or order changes, "
                "and a gradient of one side is none of the other: move the point, or what makes "
                "the events coincide.",
            )
        shape = self.found.shape
        if shape == "kink":
            self.faults.setdefault(
                "kink",
                "The function has a kink at the point: its slopes on both sides differ, as second "
                f"differences fall with the step and not with its square down to "
                f"{self.found.step:.1g} of the parameters. The gradient is that of one side, or "
                "neither: replace abs, max, clip, where by something smooth, or move the point.",
            )
        if shape in ("jump", "not finite"):
            what = "jumps at the point" if shape == "jump" else "is not finite beside the point"
            self.faults.setdefault(
                "jump",
                f"The function {what}: no gradient describes it. Look for comparisons, rounding, "
                "or a run that ends or fails there.",
            )


_WORTHLESS = (
    "integer", "not finite", "adjoint", "tangent", "rank", "events", "constraints", "run", "energy",
    "backend", "kink", "jump", "steps", "derivative", "unused",
)  # fmt: skip
# What is said where several things are wrong: causes before what follows from them.
_ORDER = (
    "integer", "not finite", "adjoint", "tangent", "rank", "events", "constraints", "energy", "run",
    "growth", "backend", "tolerance", "steps", "jump", "kink", "derivative", "unused", "noise",
)  # fmt: skip


def _scales(x: np.ndarray, parts: list[slice]) -> np.ndarray:
    """Typical sizes of numbers: their own, or of those beside them where they are next to zero."""
    result = np.abs(x)
    for part in parts:
        own = result[part]
        largest = own.max(initial=0.0)
        typical = np.sqrt(np.mean(own**2)) if largest > 0 else 1.0
        result[part] = np.where(own > _NO_SCALE * largest, own, typical)
    return result


def _digits(off: float) -> float:
    return float(-np.log10(max(off, 1e-17)))


def _rate(rate: float) -> str:
    return f"as exp({rate:.2g} t)" if np.isfinite(rate) else "soon"


def _listed(names: list[str]) -> str:
    return ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")
