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

/* What is not called, and is looked up. */
#define ABSENT(name) int name(void) { return 3; }
ABSENT(fmi3ActivateModelPartition) ABSENT(fmi3CompletedIntegratorStep)
ABSENT(fmi3DeserializeFMUState) ABSENT(fmi3EnterConfigurationMode)
ABSENT(fmi3EnterContinuousTimeMode) ABSENT(fmi3EnterEventMode) ABSENT(fmi3EnterStepMode)
ABSENT(fmi3EvaluateDiscreteStates) ABSENT(fmi3ExitConfigurationMode) ABSENT(fmi3FreeFMUState)
ABSENT(fmi3GetAdjointDerivative) ABSENT(fmi3GetBinary) ABSENT(fmi3GetBoolean) ABSENT(fmi3GetClock)
ABSENT(fmi3GetContinuousStateDerivatives) ABSENT(fmi3GetContinuousStates)
ABSENT(fmi3GetDirectionalDerivative) ABSENT(fmi3GetEventIndicators) ABSENT(fmi3GetFMUState)
ABSENT(fmi3GetFloat32) ABSENT(fmi3GetInt16) ABSENT(fmi3GetInt32) ABSENT(fmi3GetInt64)
ABSENT(fmi3GetInt8) ABSENT(fmi3GetIntervalDecimal) ABSENT(fmi3GetIntervalFraction)
ABSENT(fmi3GetNominalsOfContinuousStates) ABSENT(fmi3GetNumberOfContinuousStates)
ABSENT(fmi3GetNumberOfEventIndicators) ABSENT(fmi3GetNumberOfVariableDependencies)
ABSENT(fmi3GetOutputDerivatives) ABSENT(fmi3GetShiftDecimal) ABSENT(fmi3GetShiftFraction)
ABSENT(fmi3GetString) ABSENT(fmi3GetUInt16) ABSENT(fmi3GetUInt32) ABSENT(fmi3GetUInt64)
ABSENT(fmi3GetUInt8) ABSENT(fmi3GetVariableDependencies) ABSENT(fmi3InstantiateModelExchange)
ABSENT(fmi3InstantiateScheduledExecution) ABSENT(fmi3Reset) ABSENT(fmi3SerializeFMUState)
ABSENT(fmi3SerializedFMUStateSize) ABSENT(fmi3SetBinary) ABSENT(fmi3SetBoolean)
ABSENT(fmi3SetClock) ABSENT(fmi3SetContinuousStates) ABSENT(fmi3SetDebugLogging)
ABSENT(fmi3SetFMUState) ABSENT(fmi3SetFloat32) ABSENT(fmi3SetInt16) ABSENT(fmi3SetInt32)
ABSENT(fmi3SetInt64) ABSENT(fmi3SetInt8) ABSENT(fmi3SetIntervalDecimal)
ABSENT(fmi3SetIntervalFraction) ABSENT(fmi3SetShiftDecimal) ABSENT(fmi3SetShiftFraction)
ABSENT(fmi3SetString) ABSENT(fmi3SetTime) ABSENT(fmi3SetUInt16) ABSENT(fmi3SetUInt32)
ABSENT(fmi3SetUInt64) ABSENT(fmi3SetUInt8) ABSENT(fmi3Terminate) ABSENT(fmi3UpdateDiscreteStates)
