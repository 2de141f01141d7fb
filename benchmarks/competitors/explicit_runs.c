/* Adaptive runs of y' = f(t, y) driven from C: DOP853, and SUNDIALS' CVODE.

   The file is compiled for one problem. "rate.c" is CasADi's code of f with its work arrays
   (RATE_IW, RATE_W entries), "stages.h" the tableau of DOP853 written out as sums of its nonzero
   entries; both are made by c_codes.py. STATES is their number. f and the integrator are one
   translation unit, so that the compiler may join them. */
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { N = STATES };

#include "rate.c"

static void rate_of(double t, const double *y, double *dy) {
  casadi_int iw[RATE_IW + 1];
  double w[RATE_W + 1];
  const double *arguments[RATE_ARG + 2] = {&t, y};
  double *results[RATE_RES + 1] = {dy};
  rate(arguments, results, iw, w, 0);
}

#include "stages.h"

/* For timing: evaluations that wait for each other. */
void rate_repeatedly(long count, double *y) {
  double dy[N];
  for (long i = 0; i < count; i++) {
    rate_of(0, y, dy);
    y[0] += 1e-300 * dy[N - 1];
  }
}

/* DOP853: E. Hairer, S. P. Norsett, G. Wanner, Solving Ordinary Differential Equations I, II.10;
   first step and control of steps as SciPy's solve_ivp has them. */

static double scaled_norm(const double *x, const double *scale) {
  double sum = 0;
  for (int i = 0; i < N; i++) sum += (x[i] / scale[i]) * (x[i] / scale[i]);
  return sqrt(sum / N);
}

static double first_step(const double *y, const double *f, double t1, double rtol, double atol) {
  double scale[N], next[N], slope[N];
  for (int i = 0; i < N; i++) scale[i] = atol + fabs(y[i]) * rtol;
  double d0 = scaled_norm(y, scale), d1 = scaled_norm(f, scale);
  double h0 = fmin(d0 < 1e-5 || d1 < 1e-5 ? 1e-6 : 0.01 * d0 / d1, t1);
  for (int i = 0; i < N; i++) next[i] = y[i] + h0 * f[i];
  rate_of(h0, next, slope);
  for (int i = 0; i < N; i++) slope[i] -= f[i];
  double d2 = scaled_norm(slope, scale) / h0, most = fmax(d1, d2);
  double h1 = most <= 1e-15 ? fmax(1e-6, h0 * 1e-3) : pow(0.01 / most, 1.0 / 8);
  return fmin(fmin(100 * h0, h1), t1);
}

static double error_norm(double k[][N], const double *scale, double h) {
  double fifth = 0, third = 0;
  for (int i = 0; i < N; i++) {
    double e5 = (ERROR_5) / scale[i], e3 = (ERROR_3) / scale[i];
    fifth += e5 * e5;
    third += e3 * e3;
  }
  return fifth == 0 && third == 0 ? 0 : h * fifth / sqrt((fifth + 0.01 * third) * N);
}

/* From y at 0 to y at t1 > 0. Returns the number of steps tried, or -1 where they get too small. */
long dop853(double t1, double rtol, double atol, double *y) {
  static const double least = 0.2, most = 10, safety = 0.9;
  double k[STAGES + 1][N], next[N], scale[N], t = 0;
  long tried = 0;
  rate_of(t, y, k[0]);
  double h = first_step(y, k[0], t1, rtol, atol);
  while (t < t1) {
    int rejected = 0;
    double used, error;
    for (;;) {
      if (!(h > 10 * DBL_EPSILON * t && h > 1e-290)) return -1;
      double end = fmin(t + h, t1);
      used = end - t;
      take_step(t, used, y, k, next);
      rate_of(end, next, k[STAGES]);
      for (int i = 0; i < N; i++) scale[i] = atol + fmax(fabs(y[i]), fabs(next[i])) * rtol;
      error = error_norm(k, scale, used);
      tried++;
      if (error < 1) {
        t = end;
        break;
      }
      h = used * (isnan(error) ? least : fmax(least, safety * pow(error, -1.0 / 8)));
      rejected = 1;
    }
    double factor = error == 0 ? most : fmin(most, safety * pow(error, -1.0 / 8));
    h = used * (rejected ? fmin(1, factor) : factor);
    memcpy(y, next, sizeof next);
    memcpy(k[0], k[STAGES], sizeof next);
  }
  return tried;
}

/* The same for many starts, (count, N) by rows, on all threads. Returns how many runs failed. */
long dop853_batch(long count, double t1, double rtol, double atol, double *y) {
  long failed = 0;
#pragma omp parallel for schedule(dynamic, 64) reduction(+ : failed)
  for (long i = 0; i < count; i++) failed += dop853(t1, rtol, atol, y + N * i) < 0;
  return failed;
}

#ifdef WITH_CVODE
#include <cvode/cvode.h>
#include <nvector/nvector_serial.h>
#include <sunlinsol/sunlinsol_dense.h>
#include <sunmatrix/sunmatrix_dense.h>
#include <sunnonlinsol/sunnonlinsol_fixedpoint.h>

typedef struct {
  SUNContext context;
  N_Vector y;
  void *memory;
} Cvode;

static int cvode_rate(sunrealtype t, N_Vector y, N_Vector dy, void *data) {
  (void)data;
  rate_of(t, NV_DATA_S(y), NV_DATA_S(dy));
  return 0;
}

/* An integrator, made once for many runs: Adams' methods with functional iteration, or backward
   differentiation with Newton's and differences for the matrix. NULL where something fails. */
Cvode *cvode_make(int adams, double rtol, double atol, long most_steps) {
  Cvode *c = calloc(1, sizeof *c);
#if SUNDIALS_VERSION_MAJOR >= 7
  if (SUNContext_Create(SUN_COMM_NULL, &c->context)) return NULL;
#else
  if (SUNContext_Create(NULL, &c->context)) return NULL;
#endif
  c->y = N_VNew_Serial(N, c->context);
  N_VConst(0, c->y);
  c->memory = CVodeCreate(adams ? CV_ADAMS : CV_BDF, c->context);
  int bad = CVodeInit(c->memory, cvode_rate, 0, c->y) ||
            CVodeSStolerances(c->memory, rtol, atol) ||
            CVodeSetMaxNumSteps(c->memory, most_steps);
  if (adams) {
    bad = bad || CVodeSetNonlinearSolver(c->memory, SUNNonlinSol_FixedPoint(c->y, 0, c->context));
  } else {
    SUNMatrix matrix = SUNDenseMatrix(N, N, c->context);
    SUNLinearSolver solver = SUNLinSol_Dense(c->y, matrix, c->context);
    bad = bad || CVodeSetLinearSolver(c->memory, solver, matrix);
  }
  return bad ? NULL : c;
}

/* From y at 0 to y at t1. Returns the number of steps, or the negative code of CVODE. */
long cvode_run(Cvode *c, double t1, double *y) {
  double reached;
  long steps;
  memcpy(NV_DATA_S(c->y), y, N * sizeof(double));
  if (CVodeReInit(c->memory, 0, c->y)) return -100;
  CVodeSetStopTime(c->memory, t1);
  int code = CVode(c->memory, t1, c->y, &reached, CV_NORMAL);
  if (code < 0) return code;
  memcpy(y, NV_DATA_S(c->y), N * sizeof(double));
  CVodeGetNumSteps(c->memory, &steps);
  return steps;
}
#endif
