/* A controller of a crank as a co-simulation unit of FMI 3.0, with what an importer calls. */
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

typedef struct { double value[4]; } controller;

const char *fmi3GetVersion(void) { return "3.0"; }

void *fmi3InstantiateCoSimulation(const char *name, const char *token, const char *resources,
    bool visible, bool logging, bool events, bool early, const uint32_t *intermediate, size_t count,
    void *environment, void *logger, void *update) {
  (void)name, (void)token, (void)resources, (void)visible, (void)logging, (void)events, (void)early;
  (void)intermediate, (void)count, (void)environment, (void)logger, (void)update;
  return calloc(1, sizeof(controller));
}

void fmi3FreeInstance(void *one) { free(one); }

int fmi3EnterInitializationMode(controller *one, bool has, double tolerance, double start, bool ends,
    double stop) {
  (void)has, (void)tolerance, (void)ends, (void)stop;
  one->value[0] = start;
  return 0;
}

int fmi3ExitInitializationMode(controller *one) { (void)one; return 0; }

int fmi3GetFloat64(controller *one, const uint32_t *at, size_t count, double *values, size_t size) {
  (void)size;
  for (size_t i = 0; i < count; i++) values[i] = one->value[at[i]];
  return 0;
}

int fmi3SetFloat64(controller *one, const uint32_t *at, size_t count, const double *values,
    size_t size) {
  (void)size;
  for (size_t i = 0; i < count; i++) one->value[at[i]] = values[i];
  return 0;
}

int fmi3DoStep(controller *one, double t, double h, bool no_return, bool *event, bool *terminate,
    bool *early, double *reached) {
  (void)no_return;
  one->value[3] = 0.3 * (8.0 - one->value[2]) - 0.5 * sin(one->value[1]);
  one->value[0] = *reached = t + h;
  *event = *terminate = *early = false;
  return 0;
}
