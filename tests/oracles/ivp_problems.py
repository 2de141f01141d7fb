"""Problems of the test set for initial value problems and their stiff neighbours, by SciPy.

Each in coordinates without constraints but the particles on a sphere, whose accelerations have the
constraints eliminated by hand: `|p|^2 = 1` gives `lam = (f . p + |v|^2) / 2`.
"""

from dataclasses import dataclass
from math import cos, sin, sqrt

import numpy as np
from scipy.integrate import solve_ivp

# Solution of the Fekete problem at t = 1000 by RADAU5 at tolerances 1e-12, as the test set has it.
FEKETE_END = (
    (-0.4070263380333202, 0.3463758772791802, 0.8451942450030429),
    (0.0775293475252155, -0.2628662719972299, 0.9617122871829146),
    (0.7100577833343567, 0.121294805558612, 0.6936177005172217),
    (0.2348267744557627, 0.7449277976923311, 0.6244509285956391),
    (-0.4341114738782885, 0.8785430442262876, 0.199272044423766),
    (-0.9515059600312596, 0.2203508762787005, 0.2146669498274008),
    (-0.6385191643609878, -0.4310833259390688, 0.6375425027722121),
    (-0.1464175087914336, -0.9380871635228862, 0.313933729874469),
    (0.5666974065069942, -0.6739221885076542, 0.4740073135462156),
    (0.9843259538440293, -0.1696995357819996, -0.0480050429060909),
    (0.1464175087914331, 0.9380871635228875, -0.3139337298744656),
    (-0.7092757549979014, 0.5264062637139616, -0.4688542938854929),
    (-0.8665731819284478, -0.4813878059756024, -0.1315929352982178),
    (-0.2347897778700538, -0.859434040801313, -0.4541441287957579),
    (0.5530976940074118, -0.7674370265615124, -0.3242273140037833),
    (0.7711050969896927, 0.6357041816577034, 0.03573685519777001),
    (0.7103951209379591, 0.2403570431280519, -0.6614886725910596),
    (-0.0303820873873566, 0.4501923293640461, -0.8924145871442046),
    (-0.5772996158107093, -0.1766763414971813, -0.7971892020969544),
    (0.2414481766969039, -0.3416456818373135, -0.908284650344625),
)


def car_axis(t1: float = 3.0, **options) -> tuple[np.ndarray, np.ndarray]:
    """Its two freedoms: the left spring's length `s`, and the axis' angle `a`.

    The wheel at `b = (cos g, sin g)`, `sin g = r sin w t`; the left end moves across: `l = s n`,
    `n = (-sin g, cos g)`; the right end is `l + L (cos a, sin a)`. With `e`, `k` along and across
    the axis the equations of both ends, `m l'' = F_l + c`, `m r'' = F_r - d`, are summed up along
    `n` and across the axis, in which the forces of the guide (along `b`) and of the axis (along
    `e`) do nothing:  `(m l'' + m r'' - F_l - F_r) . n = 0`, `(m r'' - F_r) . k = 0`.
    """
    mass, length, rest, bump, rate, gravity = 5e-4, 1.0, 0.5, 0.1, 10.0, 1.0

    def guide(t):
        """g and its two rates."""
        height, up, far = (
            bump * sin(rate * t),
            bump * rate * cos(rate * t),
            sqrt(1 - (bump * sin(rate * t)) ** 2),
        )
        g_dot = up / far
        g_ddot = (-(rate**2) * height + height * g_dot**2) / far
        return np.arcsin(height), g_dot, g_ddot

    def places(t, y):
        g, g_dot, g_ddot = guide(t)
        s, a, s_dot, a_dot = y
        b, n = np.array([cos(g), sin(g)]), np.array([-sin(g), cos(g)])
        e, k = np.array([cos(a), sin(a)]), np.array([-sin(a), cos(a)])
        left, right = s * n, s * n + length * e
        v_left = s_dot * n - s * g_dot * b
        return (left, right, v_left, v_left + length * a_dot * k), (b, n, e, k), (g_dot, g_ddot)

    def rates(t, y):
        (left, right, _, _), (b, n, e, k), (g_dot, g_ddot) = places(t, y)
        s, _, s_dot, a_dot = y
        weight = np.array([0.0, -mass * gravity])
        spring = lambda x: (rest - np.hypot(*x)) * x / np.hypot(*x) + weight  # noqa: E731
        f_left, f_right = spring(left), spring(right - length * b)
        # Of the accelerations all but s'' n of both, and L a'' k of the right one.
        known = -(2 * s_dot * g_dot + s * g_ddot) * b - s * g_dot**2 * n
        more = known - length * a_dot**2 * e
        matrix = mass * np.array([[2.0, length * (k @ n)], [n @ k, length]])
        right_side = [
            (f_left + f_right - mass * (known + more)) @ n, (f_right - mass * more) @ k,
        ]  # fmt: skip
        return [s_dot, a_dot, *np.linalg.solve(matrix, right_side)]

    start = [rest, 0.0, 0.0, 0.0]
    found = _solved(rates, t1, start, **options)
    left, right, v_left, v_right = places(t1, found)[0]
    return np.append(left, right), np.append(v_left, v_right)


def particles(start: np.ndarray, t1: float, damping: float, **options):
    """Coordinates and velocities of particles on a sphere at the end, from rest."""
    count = start.size // 3
    others = ~np.eye(count, dtype=bool)

    def rates(t, y):
        p, v = y.reshape(2, count, 3)
        apart = p[:, None] - p[None]
        squares = np.where(others, np.sum(apart**2, axis=2), 1.0)
        force = np.sum(apart / squares[..., None], axis=1) - damping * v
        # The last two terms vanish on the sphere, and bring round-off back to it.
        drift = (np.sum(p * p, axis=1) - 1.0) + 2.0 * np.sum(p * v, axis=1)
        lam = np.sum(force * p + v * v, axis=1) + drift
        return np.concatenate([v.ravel(), (force - lam[:, None] * p).ravel()])

    return _solved(rates, t1, np.append(start, 0 * start), **options).reshape(2, -1)


def chain(links: int, length: float, angle: float, t1: float, **options) -> np.ndarray:
    """Places of equal masses on equal rods, let go from rest with all rods at an angle.

    `sum_j l (N - max(i, j)) cos(a_i - a_j) a_j'' = -sum_j l (N - max(i, j)) sin(a_i - a_j) a_j'^2
    - g (N - i) sin a_i`, with indices from 0 and angles from the downward vertical.
    """
    below = links - np.maximum.outer(np.arange(links), np.arange(links))
    carried = links - np.arange(links)

    def rates(t, y):
        a, turn = np.split(y, 2)
        apart = a[:, None] - a
        matrix = length * below * np.cos(apart)
        right = -length * (below * np.sin(apart)) @ turn**2 - 9.81 * carried * np.sin(a)
        return np.concatenate([turn, np.linalg.solve(matrix, right)])

    a = _solved(rates, t1, np.append(np.full(links, angle), np.zeros(links)), **options)[:links]
    return length * np.cumsum(np.stack([np.sin(a), -np.cos(a)], axis=1), axis=0).ravel()


@dataclass(frozen=True)
class SprungArm:
    """Two uniform bars of 1 kg and 1 m: `5/6` is `(1/3 + 1) / ...` by the parallel axes.

        4/3 a1'' + cos(a1 - a2) a2'' / 2 = -sin(a1 - a2) a2'^2 / 2 - 3/2 g sin a1 - k1 a1 + Q
        cos(a1 - a2) a1'' / 2 + a2'' / 3 =  sin(a1 - a2) a1'^2 / 2 - 1/2 g sin a2 - Q

    where `Q = k2 (a2 - a1) + c (a2' - a1')` is the torque of the second joint.
    """

    soft: float = 1.0
    ratio: float = 1e6
    damping: float = 50.0

    def end(self, a1: float, a2: float, t1: float, **options) -> np.ndarray:
        """Angles and their rates at the end, from rest."""

        def rates(t, y):
            first, second, turn1, turn2 = y
            c, s = cos(first - second), sin(first - second)
            torque = self.ratio * self.soft * (second - first) + self.damping * (turn2 - turn1)
            pull1 = -0.5 * s * turn2**2 - 1.5 * 9.81 * sin(first) - self.soft * first + torque
            pull2 = 0.5 * s * turn1**2 - 0.5 * 9.81 * sin(second) - torque
            matrix = np.array([[4 / 3, 0.5 * c], [0.5 * c, 1 / 3]])
            return [turn1, turn2, *np.linalg.solve(matrix, [pull1, pull2])]

        return _solved(rates, t1, [a1, a2, 0.0, 0.0], method="Radau", **options)


def governor(t1: float, **options) -> np.ndarray:
    """Turn, opening and their rates of a centrifugal governor at the end.

    With the sleeve at `z = 2 l cos x`, `z' = -2 l sin x x'`:

        (J + 2 m l^2 sin^2 x) turn'' = Q - 4 m l^2 sin x cos x x' turn' - 0.05 turn'
        (2 m l^2 + 4 m_s l^2 sin^2 x) x'' = 2 m l^2 sin x cos x turn'^2 - 4 m_s l^2 sin x cos x x'^2
            - 2 (m + m_s) g l sin x + 2 l sin x (k (z - z0) + 8 z')
    """
    ball, sleeve, length, shaft, stiffness = 1.0, 2.0, 0.3, 0.1, 200.0

    def rates(t, y):
        _, x, turn, open_ = y
        s, c = sin(x), cos(x)
        z, z_dot = 2 * length * c, -2 * length * s * open_
        torque = 0.5 + 2.0 * (z - 2 * length * cos(0.6))
        balls, sleeves = 2 * ball * length**2, 4 * sleeve * length**2
        spin = (torque - 2 * balls * s * c * open_ * turn - 0.05 * turn) / (shaft + balls * s**2)
        held = stiffness * (z - 2 * length * cos(0.4)) + 8.0 * z_dot
        pull = balls * s * c * turn**2 - sleeves * s * c * open_**2
        pull += -2 * (ball + sleeve) * 9.81 * length * s + 2 * length * s * held
        return [turn, open_, spin, pull / (balls + sleeves * s**2)]

    return _solved(rates, t1, [0.0, 0.5, 8.0, 0.0], **options)


def _solved(rates, t1: float, start, method: str = "DOP853", **options) -> np.ndarray:
    """The end; tolerances leave round-off alone, unless others are given."""
    settings = {"rtol": 1e-12, "atol": 1e-13, "method": method} | options
    found = solve_ivp(rates, (0.0, t1), start, t_eval=[t1], **settings)
    assert found.success
    return found.y[:, -1]
