/* The two-link manipulator by hand: classical Runge-Kutta steps of many trajectories at once.
 *
 * What a patient programmer reaches: closed-form mass matrix and Jacobian, 2x2 inverses, one sine
 * and cosine for each link, loops over LANES trajectories that the compiler makes vectors of.
 * y[c][b] is component c (q1, q2, v1, v2) of trajectory b; REAL is float or double.
 */
#include <tgmath.h>

#define LANES 64

typedef REAL real;

static inline __attribute__((always_inline)) void sine_cosine(real x, real *s, real *c) {
  /* Reduced by quarter turns in two parts, then Taylor's series on |r| < pi/4. */
  real k = nearbyint(x * (real)0.63661977236758134308);
  real r = x - k * (real)1.5707963267341256 - k * (real)6.0771005063038446e-11;
  real z = r * r;
  int turn = (int)k;
  real odd = r * (1 + z * (-(real)1 / 6 + z * ((real)1 / 120 + z * (-(real)1 / 5040 +
             z * ((real)1 / 362880 + z * (-(real)1 / 39916800 + z * ((real)1 / 6227020800.
             - z / (real)1307674368000.)))))));
  real even = 1 + z * (-(real)0.5 + z * ((real)1 / 24 + z * (-(real)1 / 720 +
              z * ((real)1 / 40320 + z * (-(real)1 / 3628800 + z * ((real)1 / 479001600.
              - z / (real)87178291200.))))));
  real a = (turn & 1) ? even : odd, b = (turn & 1) ? odd : even;
  *s = (turn & 2) ? -a : a;
  *c = ((turn + 1) & 2) ? -b : b;
}

static inline __attribute__((always_inline)) void rate(real t, real y[4][LANES],
                                                       real dy[4][LANES]) {
  const real l = 1, d = 0.5, m1 = 2, m2 = 1, g = 9.81, i1 = (real)1 / 6, i2 = (real)1 / 48;
#pragma omp simd
  for (int b = 0; b < LANES; b++) {
    real v1 = y[2][b], v2 = y[3][b], turn = v1 + v2, s1, c1, s2, c2;
    sine_cosine(y[0][b], &s1, &c1);
    sine_cosine(y[1][b], &s2, &c2);
    real c12 = c1 * c2 - s1 * s2, s12 = s1 * c2 + c1 * s2;
    /* mass matrix and forces */
    real m11 = m1 * l * l / 4 + i1 + i2 + m2 * (l * l + d * d / 4 + l * d * c2);
    real m12 = i2 + m2 * (d * d / 4 + l * d / 2 * c2), m22 = i2 + m2 * d * d / 4;
    real h = m2 * l * d / 2 * s2;
    real f1 = h * (2 * v1 + v2) * v2 - (m1 / 2 + m2) * l * g * c1 - m2 * d / 2 * g * c12;
    real f2 = -h * v1 * v1 - m2 * d / 2 * g * c12;
    /* constraints: y of the tip, then x */
    real j12 = d * c12, j11 = l * c1 + j12, j22 = -d * s12, j21 = -l * s1 + j22;
    real e1 = l * s1 + d * s12 - (real)0.5;
    real e2 = l * c1 + d * c12 - ((real)0.295953 - (real)0.6 * t);
    real r1 = l * s1 * v1 * v1 + d * s12 * turn * turn - 20 * (j11 * v1 + j12 * v2) - 100 * e1;
    real r2 = l * c1 * v1 * v1 + d * c12 * turn * turn -
              10 * (j21 * v1 + j22 * v2 + (real)0.6) - 25 * e2;
    /* M^-1 f, M^-1 J^T, then the multipliers */
    real inverse = 1 / (m11 * m22 - m12 * m12);
    real a1 = (m22 * f1 - m12 * f2) * inverse, a2 = (m11 * f2 - m12 * f1) * inverse;
    real p11 = (m22 * j11 - m12 * j12) * inverse, p12 = (m11 * j12 - m12 * j11) * inverse;
    real p21 = (m22 * j21 - m12 * j22) * inverse, p22 = (m11 * j22 - m12 * j21) * inverse;
    real s11 = j11 * p11 + j12 * p12, s21 = j11 * p21 + j12 * p22, s22 = j21 * p21 + j22 * p22;
    real b1 = j11 * a1 + j12 * a2 - r1, b2 = j21 * a1 + j22 * a2 - r2;
    real scale = 1 / (s11 * s22 - s21 * s21);
    real lam1 = (s22 * b1 - s21 * b2) * scale, lam2 = (s11 * b2 - s21 * b1) * scale;
    dy[0][b] = v1;
    dy[1][b] = v2;
    dy[2][b] = a1 - p11 * lam1 - p21 * lam2;
    dy[3][b] = a2 - p12 * lam1 - p22 * lam2;
  }
}

static void add(real out[4][LANES], real y[4][LANES], real h, real k[4][LANES]) {
  for (int c = 0; c < 4; c++)
    for (int b = 0; b < LANES; b++) out[c][b] = y[c][b] + h * k[c][b];
}

/* `steps` steps of size h of the trajectories first ... last-1 (a multiple of LANES of them). */
void advance(real *state, long count, long first, long last, long steps, double size) {
  const real h = (real)size;
  for (long start = first; start < last; start += LANES) {
    real y[4][LANES], x[4][LANES], k1[4][LANES], k2[4][LANES], k3[4][LANES], k4[4][LANES];
    for (int c = 0; c < 4; c++)
      for (int b = 0; b < LANES; b++) y[c][b] = state[c * count + start + b];
    for (long i = 0; i < steps; i++) {
      real t = h * i;
      rate(t, y, k1);
      add(x, y, h / 2, k1);
      rate(t + h / 2, x, k2);
      add(x, y, h / 2, k2);
      rate(t + h / 2, x, k3);
      add(x, y, h, k3);
      rate(t + h, x, k4);
      for (int c = 0; c < 4; c++)
        for (int b = 0; b < LANES; b++)
          y[c][b] += h / 6 * (k1[c][b] + 2 * (k2[c][b] + k3[c][b]) + k4[c][b]);
    }
    for (int c = 0; c < 4; c++)
      for (int b = 0; b < LANES; b++) state[c * count + start + b] = y[c][b];
  }
}
