"""Constants of the elementary functions, for double and single precision.

Polynomials are minimax (Remez' exchange in 50 digits), highest power first, for the relative error
of the function; quotients interpolate it at Chebyshev's nodes. They leave at most a tenth of a unit
in the last place. Numbers in several parts
are truncated to the parts before the last.
"""

from functools import cache
from typing import NamedTuple

import numpy as np

# Numbers of twice the precision of double, for both precisions.
_TWOFOLD = {
    "pi": (3.141592653589793, 1.2246467991473532e-16),
    "pi/2": (1.5707963267948966, 6.123233995736766e-17),
    "pi/4": (0.7853981633974483, 3.061616997868383e-17),
    "atan(1/2)": (0.4636476090008061, 2.2698777452961687e-17),
    "2/ln(2)": (2.8853900817779268, 4.0710547481862066e-17),
    "2/(3 ln(2))": (0.9617966939259756, 5.0577616648125907e-17),
}


class Precision(NamedTuple):
    """What the functions need to know of a floating-point type.

    Args:
        dtype: the type.
        largest_angle: beyond, the reduction by three parts of pi / 2 loses digits.
        largest_power: beyond, exp is infinite or zero, with room for either sign.
        large_square: numbers beyond it have no square, and one does not matter beside it.
        half_pi: pi / 2 in three parts.
        ln_2: ln(2) in two parts.
        half_ln_2: ln(2) / 2 in two parts, the first so short that products with powers are exact.
        sin: (sin(r) / r - 1) / z for z = r^2, |r| <= pi / 4.
        cos: ((cos(r) - 1) / z + 1 / 2) / z.
        exp: (exp(r) - 1 - r) / r^2 for |r| <= ln(2) / 2.
        exp2: (2^r - 1) / r for |r| <= 1 / 2.
        log: (log(m) / s - 2) / z for s = (m - 1) / (m + 1), z = s^2, sqrt(1/2) <= m <= sqrt(2).
        log2: ((log2(m) / s - 2 / ln(2)) / z - 2 / (3 ln(2))) / z.
        atan: (atan(r) / r - 1) / z for |r| <= 7 / 16.
        erf: erf(r) / r - 1 for |r| <= 1.
        erfcx: exp(x^2) (1 - erf(x)) by 1 / (x + 2) for x from 1 to `erf_one`.
        erf_one: from here on erf is one to rounding.
        tanh: (tanh(r) / r - 1) / z for |r| <= 9 / 16, as a quotient: its numerator and denominator;
            that one without its last coefficient, which is one.
    """

    dtype: type
    largest_angle: float
    largest_power: float
    large_square: float
    half_pi: tuple[float, float, float]
    ln_2: tuple[float, float]
    half_ln_2: tuple[float, float]
    sin: tuple[float, ...]
    cos: tuple[float, ...]
    exp: tuple[float, ...]
    exp2: tuple[float, ...]
    log: tuple[float, ...]
    log2: tuple[float, ...]
    atan: tuple[float, ...]
    erf: tuple[float, ...]
    erfcx: tuple[float, ...]
    erf_one: float
    tanh: tuple[tuple[float, ...], tuple[float, ...]]

    @property
    def bits(self) -> int:
        """Of a number."""
        return int(np.finfo(self.dtype).bits)

    @property
    def mantissa(self) -> int:
        """Bits of the mantissa, without the one that is not stored."""
        return int(np.finfo(self.dtype).nmant)

    @property
    def bias(self) -> int:
        """Of exponents."""
        return int(np.finfo(self.dtype).maxexp) - 1

    @property
    def magic(self) -> float:
        """Added to a number below 2^(mantissa - 1), it rounds it and puts it in the last bits."""
        return 1.5 * 2.0**self.mantissa

    @property
    def tiny(self) -> float:
        """The smallest normal number."""
        return float(np.finfo(self.dtype).tiny)

    @property
    def negligible(self) -> float:
        """What changes one by less than half a unit, and its square by nothing that is seen."""
        return float(np.finfo(self.dtype).eps) / 4

    def bits_of(self, value: float) -> int:
        """The bits of a number."""
        return int(self.dtype(value).view(f"i{self.bits // 8}"))

    def twofold(self, name: str) -> tuple[float, float]:
        """A constant in two parts, the first one rounded to nearest."""
        high, low = _TWOFOLD[name]
        first = float(self.dtype(high))
        return first, float(self.dtype((high - first) + low))


DOUBLE = Precision(
    dtype=np.float64,
    largest_angle=2.0**27,
    largest_power=760.0,
    large_square=2.0**500,
    half_pi=(1.5707963267948966, 6.123233995736765e-17, 1.0828566739219139e-32),
    ln_2=(0.6931471805599453, 2.3190468138462996e-17),
    half_ln_2=(0.3465735902799594, 1.3278760378339852e-14),
    sin=(
        1.5896812177071935e-10, -2.5050758391287786e-08, 2.755731369362434e-06,
        -0.00019841269829812584, 0.00833333333332242, -0.16666666666666632,
    ),
    cos=(
        -1.135965898052461e-11, 2.0875723481868515e-09, -2.755731435381272e-07,
        2.480158728948711e-05, -0.0013888888888874131, 0.0416666666666666,
    ),
    exp=(
        2.0924463969165187e-09, 2.51090450333682e-08, 2.7557242682700764e-07,
        2.755724418138819e-06, 2.480158736066143e-05, 0.00019841269886159232,
        0.0013888888888866774, 0.008333333333321615, 0.0416666666666667,
        0.16666666666666677, 0.5,
    ),
    exp2=(
        4.4573951059854633e-10, 7.0738676925787235e-09, 1.01780464026732e-07,
        1.3215434775717727e-06, 1.5252733867700826e-05, 0.00015403530458156509,
        0.0013333558146378845, 0.009618129107593276, 0.05550410866482174,
        0.24022650695910133, 0.6931471805599453,
    ),
    log=(
        0.1479609973777067, 0.1531403629941129, 0.1818356485381651, 0.22222198563598564,
        0.28571428742475585, 0.39999999999414304, 0.6666666666666734,
    ),
    log2=(
        0.17296475976903794, 0.16843204478034476, 0.19240238917269017, 0.22195223906383568,
        0.26230819918509346, 0.32059889790772694, 0.41219858311137103, 0.5770780163555851,
    ),
    atan=(
        -0.016283209541927437, 0.03652886497254926, -0.04976756432783416, 0.05833539196714016,
        -0.06661068227525205, 0.07691875701539914, -0.09090887100007651, 0.11111110404063335,
        -0.14285714272468808, 0.19999999999876036, -0.3333333333333293,
    ),
    erf=(
        -7.800838681939578e-10, 1.3722790771487362e-08, -1.6209133500610432e-07,
        1.6447512199141327e-06, -1.4924744223796608e-05, 0.00012055295297826368,
        -0.0008548325988944845, 0.005223977607407874, -0.02686617064327432,
        0.11283791670945241, -0.3761263890318355, 0.12837916709551256,
    ),
    erfcx=(
        50.00931334633787, -103.1815182609689, 40.41182620400713, 73.16203600353082,
        -92.1604640036394, 38.81515497863725, -8.58287652610173, 5.000269362120401,
        1.6889937144273688, 1.152873429564941, 0.5629441435114574, 2.856504000610391e-05,
    ),
    erf_one=6.0,
    tanh=(
        (-0.00019929618499594005, -0.020501465565699636, -0.3333333333333333),
        (0.0002066602742421401, 0.0232948853291102, 0.4615043966970977),
    ),
)  # fmt: skip

SINGLE = Precision(
    dtype=np.float32,
    largest_angle=2.0**15,
    largest_power=110.0,
    large_square=2.0**60,
    half_pi=(1.570796251296997, 7.549789415861596e-08, 5.390302529957765e-15),
    ln_2=(0.6931471228599548, 5.769998878690785e-08),
    half_ln_2=(0.3465728759765625, 7.143033826650935e-07),
    sin=(-0.0001951726881088689, 0.008332177996635437, -0.16666655242443085),
    cos=(2.4438440959784202e-05, -0.001388736767694354, 0.04166664555668831),
    exp=(
        0.00019914258155040443, 0.001394100720062852, 0.008333273231983185, 0.04166635498404503,
        0.1666666716337204, 0.5,
    ),
    exp2=(
        0.0001547642459627241, 0.0013400295283645391, 0.009618003852665424, 0.055503278970718384,
        0.24022650718688965, 0.6931471824645996,
    ),
    log=(0.29871866106987, 0.39977535605430603, 0.6666677594184875),
    log2=(0.33785930275917053, 0.4118480682373047, 0.5770801901817322),
    atan=(
        -0.05825002118945122, 0.10493571311235428, -0.14230027794837952, 0.19997766613960266,
        -0.3333330452442169,
    ),
    erf=(
        7.888786058174446e-05, -0.0008020749082788825, 0.00518952589482069, -0.026854440569877625,
        0.11283600330352783, -0.3761262595653534, 0.12837916612625122,
    ),
    erfcx=(
        -7.385653972625732, 10.186881065368652, -0.5156853795051575, 1.5872083902359009,
        0.5194011926651001, 0.0018224827945232391,
    ),
    erf_one=4.0,
    tanh=((-0.001557849061873639, -0.3333333089025409), (0.40466934479503114,)),
)  # fmt: skip


@cache
def precision(dtype) -> Precision:
    """The constants of a type."""
    return DOUBLE if np.dtype(dtype) == np.float64 else SINGLE
