/* SUNDIALS' IDA and CVODE, and RADAU5, on `M y' = f(t, y)`, with the matrix of f.

   Included is `problem.h`, with CasADi's `rate` and `slopes` and their sizes, the entries of M, and

     N            number of unknowns,
     IDENTITY     1 where M is the identity,
     CHAINED, BY  y_i' = y_(i + BY) for i < CHAINED, which RADAU5 eliminates, or 0, 0,
     INDEX        how many unknowns are of index 1, 2 and 3, for RADAU5's scaling. */
#include <ida/ida.h>
#include <cvode/cvode.h>
#include <nvector/nvector_serial.h>
#include <stdlib.h>
#include <string.h>
#include <sunlinsol/sunlinsol_dense.h>
#include <sunmatrix/sunmatrix_dense.h>

#include "problem.h"

#if SUNDIALS_VERSION_MAJOR >= 7
#define NO_COMMUNICATOR SUN_COMM_NULL
#else
#define NO_COMMUNICATOR NULL
#endif

static long evaluations;

static void rate_of(double t, const double *y, double *f) {
  static const double *arg[RATE_ARG];
  static double *res[RATE_RES], w[RATE_W + 1];
  static casadi_int iw[RATE_IW + 1];
  arg[0] = &t, arg[1] = y, res[0] = f;
  rate(arg, res, iw, w, 0);
  evaluations++;
}

/* Columns of df/dy. */
static void slopes_of(double t, const double *y, double *j) {
  static const double *arg[SLOPES_ARG];
  static double *res[SLOPES_RES], w[SLOPES_W + 1];
  static casadi_int iw[SLOPES_IW + 1];
  arg[0] = &t, arg[1] = y, res[0] = j;
  slopes(arg, res, iw, w, 0);
}

/* IDA: 0 = f - M y'. */

static int residual(double t, N_Vector y, N_Vector dy, N_Vector r, void *none) {
  (void)none;
  double *out = NV_DATA_S(r), *by = NV_DATA_S(dy);
  rate_of(t, NV_DATA_S(y), out);
  for (int k = 0; k < ENTRIES; k++) out[ROWS[k]] -= VALUES[k] * by[COLUMNS[k]];
  return 0;
}

static int residual_matrix(double t, double c, N_Vector y, N_Vector dy, N_Vector r, SUNMatrix m,
                           void *none, N_Vector a, N_Vector b, N_Vector d) {
  (void)dy, (void)r, (void)none, (void)a, (void)b, (void)d;
  slopes_of(t, NV_DATA_S(y), SM_DATA_D(m));
  for (int k = 0; k < ENTRIES; k++) SM_ELEMENT_D(m, ROWS[k], COLUMNS[k]) -= c * VALUES[k];
  return 0;
}

/* CVODE. */

static int right_side(double t, N_Vector y, N_Vector f, void *none) {
  (void)none;
  rate_of(t, NV_DATA_S(y), NV_DATA_S(f));
  return 0;
}

static int right_matrix(double t, N_Vector y, N_Vector f, SUNMatrix m, void *none, N_Vector a,
                        N_Vector b, N_Vector d) {
  (void)f, (void)none, (void)a, (void)b, (void)d;
  slopes_of(t, NV_DATA_S(y), SM_DATA_D(m));
  return 0;
}

/* What is set up once for all runs with one tolerance. */
struct code {
  void *memory;
  N_Vector y, dy;
};

struct code *ida_make(const double *start, const double *rates, double rtol, double atol,
                      long most_steps) {
  SUNContext context;
  if (SUNContext_Create(NO_COMMUNICATOR, &context)) return NULL;
  struct code *code = malloc(sizeof *code);
  code->y = N_VNew_Serial(N, context), code->dy = N_VNew_Serial(N, context);
  memcpy(NV_DATA_S(code->y), start, N * sizeof(double));
  memcpy(NV_DATA_S(code->dy), rates, N * sizeof(double));
  code->memory = IDACreate(context);
  int bad = IDAInit(code->memory, residual, 0.0, code->y, code->dy);
  bad |= IDASStolerances(code->memory, rtol, atol);
  IDASetMaxNumSteps(code->memory, most_steps);
  SUNMatrix matrix = SUNDenseMatrix(N, N, context);
  bad |= IDASetLinearSolver(code->memory, SUNLinSol_Dense(code->y, matrix, context), matrix);
  bad |= IDASetJacFn(code->memory, residual_matrix);
  if (DIAGONAL) { /* unknowns without a rate are left out of the test of errors */
    N_Vector kinds = N_VNew_Serial(N, context);
    N_VConst(0.0, kinds);
    for (int k = 0; k < ENTRIES; k++) NV_Ith_S(kinds, ROWS[k]) = 1.0;
    bad |= IDASetId(code->memory, kinds);
    bad |= IDASetSuppressAlg(code->memory, SUNTRUE);
  }
  return bad ? NULL : code;
}

long ida_run(struct code *code, double t1, double *y, const double *rates, long *work) {
  memcpy(NV_DATA_S(code->y), y, N * sizeof(double));
  memcpy(NV_DATA_S(code->dy), rates, N * sizeof(double));
  evaluations = 0;
  double t;
  IDAReInit(code->memory, 0.0, code->y, code->dy);
  IDASetStopTime(code->memory, t1);
  const int status = IDASolve(code->memory, t1, &t, code->y, code->dy, IDA_NORMAL);
  memcpy(y, NV_DATA_S(code->y), N * sizeof(double));
  IDAGetNumSteps(code->memory, work);
  work[1] = evaluations;
  return status;
}

struct code *cvode_make(const double *start, double rtol, double atol, long most_steps) {
  SUNContext context;
  if (!IDENTITY || SUNContext_Create(NO_COMMUNICATOR, &context)) return NULL;
  struct code *code = malloc(sizeof *code);
  code->y = N_VNew_Serial(N, context);
  memcpy(NV_DATA_S(code->y), start, N * sizeof(double));
  code->memory = CVodeCreate(CV_BDF, context);
  int bad = CVodeInit(code->memory, right_side, 0.0, code->y);
  bad |= CVodeSStolerances(code->memory, rtol, atol);
  CVodeSetMaxNumSteps(code->memory, most_steps);
  SUNMatrix matrix = SUNDenseMatrix(N, N, context);
  bad |= CVodeSetLinearSolver(code->memory, SUNLinSol_Dense(code->y, matrix, context), matrix);
  bad |= CVodeSetJacFn(code->memory, right_matrix);
  return bad ? NULL : code;
}

long cvode_run(struct code *code, double t1, double *y, long *work) {
  memcpy(NV_DATA_S(code->y), y, N * sizeof(double));
  evaluations = 0;
  double t;
  CVodeReInit(code->memory, 0.0, code->y);
  CVodeSetStopTime(code->memory, t1);
  const int status = CVode(code->memory, t1, code->y, &t, CV_NORMAL);
  memcpy(y, NV_DATA_S(code->y), N * sizeof(double));
  CVodeGetNumSteps(code->memory, work);
  work[1] = evaluations;
  return status;
}

/* RADAU5: rows of M and of the matrix begin after those that it eliminates. */

static void fortran_rate(int *n, double *t, double *y, double *f, double *rpar, int *ipar) {
  (void)n, (void)rpar, (void)ipar;
  rate_of(*t, y, f);
}

static void fortran_slopes(int *n, double *t, double *y, double *j, int *rows, double *rpar,
                           int *ipar) {
  (void)n, (void)rpar, (void)ipar;
  static double all[N * N];
  slopes_of(*t, y, all);
  for (int c = 0; c < N; c++)
    memcpy(j + c * *rows, all + c * N + CHAINED, (N - CHAINED) * sizeof(double));
}

static void fortran_mass(int *n, double *m, int *rows, double *rpar, int *ipar) {
  (void)rpar, (void)ipar;
  memset(m, 0, sizeof(double) * *rows * *n);
  for (int k = 0; k < ENTRIES; k++) {
    const int row = ROWS[k] - CHAINED, column = COLUMNS[k] - CHAINED;
    if (row >= 0) m[DIAGONAL ? column : row + column * *rows] = VALUES[k];
  }
}

static void fortran_output() {}

typedef void radau5_code(int *, void *, double *, double *, double *, double *, double *, double *,
                         int *, void *, int *, int *, int *, void *, int *, int *, int *, void *,
                         int *, double *, int *, int *, int *, double *, int *, int *);

long radau5_run(radau5_code *radau5, double t1, double rtol, double atol, double first,
                long most_steps, double *y, long *work) {
  static double real[5 * N * N + 12 * N + 20], relative[N], absolute[N];
  static int whole[3 * N + 20];
  memset(real, 0, 20 * sizeof *real), memset(whole, 0, 20 * sizeof *whole);
  int n = N, zero = 0, one = 1, own = N - CHAINED, has_mass = !IDENTITY, status = 0;
  int band = DIAGONAL ? 0 : own, length = sizeof real / sizeof *real;
  int whole_length = sizeof whole / sizeof *whole, ipar[1] = {0};
  double t = 0.0, rpar[1] = {0.0};
  const int index[3] = INDEX;
  whole[1] = (int)most_steps;
  for (int i = 0; i < 3; i++) whole[4 + i] = index[i];
  whole[8] = CHAINED, whole[9] = BY;
  for (int i = 0; i < N; i++) relative[i] = rtol, absolute[i] = atol; /* it changes them */
  evaluations = 0;
  radau5(&n, fortran_rate, &t, y, &t1, &first, relative, absolute, &one, fortran_slopes, &one, &own,
         &zero, fortran_mass, &has_mass, &band, &band, fortran_output, &zero, real, &length, whole,
         &whole_length, rpar, ipar, &status);
  work[0] = whole[15], work[1] = evaluations;
  return status;
}
