/* The interface of FMI 3.0, model exchange and co-simulation, on instances of a model. */
#define WITH_ADJOINT
#include "model.c"
#include "instance.c"

#include <stdbool.h>

#ifdef FMI3_FUNCTION_PREFIX
#define PASTE(a, b) a##b
#define PASTED(a, b) PASTE(a, b)
#define NAMED(name) PASTED(FMI3_FUNCTION_PREFIX, name)
#else
#define NAMED(name) name
#endif
#ifdef _WIN32
#define PUBLIC __declspec(dllexport)
#elif defined(__GNUC__)
#define PUBLIC __attribute__((visibility("default")))
#else
#define PUBLIC
#endif
#define FUNCTION(name) PUBLIC int NAMED(name)

typedef void (*log_message)(void *environment, int status, const char *category, const char *text);

static void emit(instance *one, int status, const char *category, const char *message) {
  if (one->logger != NULL) ((log_message)one->logger)(one->environment, status, category, message);
}

PUBLIC const char *NAMED(fmi3GetVersion)(void) { return "3.0"; }

FUNCTION(fmi3SetDebugLogging)(instance *one, bool on, size_t count, const char *const *names) {
  (void)on, (void)count, (void)names; /* errors and warnings are always said, and nothing else */
  return one == NULL ? FAILED : OK;
}

static instance *made(const char *name, const char *token, void *environment, log_message logger) {
  instance *one = new_instance(name, environment, (void *)logger);
  if (one != NULL && (token == NULL || strcmp(token, MODEL_TOKEN) != 0)) {
    say(one, FAILED, "logStatusError", "the instantiation token is %s, that of this FMU is %s: its "
        "modelDescription.xml belongs to another one.", token == NULL ? "none" : token,
        MODEL_TOKEN);
    free_instance(one);
    return NULL;
  }
  return one;
}

PUBLIC void *NAMED(fmi3InstantiateModelExchange)(
    const char *name, const char *token, const char *resources, bool visible, bool logging,
    void *environment, log_message logger) {
  (void)resources, (void)visible, (void)logging;
  return made(name, token, environment, logger);
}

PUBLIC void *NAMED(fmi3InstantiateCoSimulation)(
    const char *name, const char *token, const char *resources, bool visible, bool logging,
    bool event_mode, bool early_return, const unsigned *intermediate, size_t intermediates,
    void *environment, log_message logger, void *update) {
  instance *one = made(name, token, environment, logger);
  (void)resources, (void)visible, (void)logging, (void)early_return, (void)intermediate;
  (void)update;
  if (one == NULL) return NULL;
  if (event_mode || intermediates > 0) {
    say(one, FAILED, "logStatusError", "this FMU has neither an Event Mode in co-simulation nor "
        "intermediate updates; instantiate it without them.");
    free_instance(one);
    return NULL;
  }
  one->co_simulation = 1;
  return one;
}

PUBLIC void *NAMED(fmi3InstantiateScheduledExecution)(
    const char *name, const char *token, const char *resources, bool visible, bool logging,
    void *environment, log_message logger, void *update, void *lock, void *unlock) {
  instance *one = made(name, token, environment, logger);
  (void)resources, (void)visible, (void)logging, (void)update, (void)lock, (void)unlock;
  if (one != NULL) say(one, FAILED, "logStatusError", "this FMU has no scheduled execution.");
  free_instance(one);
  return NULL;
}

PUBLIC void NAMED(fmi3FreeInstance)(instance *one) { free_instance(one); }

FUNCTION(fmi3EnterInitializationMode)(instance *one, bool tolerance_defined, double tolerance,
                                      double start, bool stop_defined, double stop) {
  (void)tolerance_defined, (void)tolerance;
  if (!allowed(one, INSTANTIATED, "fmi3EnterInitializationMode")) return FAILED;
  return enter_initialization(one, start, stop_defined, stop);
}

FUNCTION(fmi3ExitInitializationMode)(instance *one) {
  if (!allowed(one, INITIALIZATION, "fmi3ExitInitializationMode")) return FAILED;
  return exit_initialization(one);
}

FUNCTION(fmi3EnterEventMode)(instance *one) {
  if (!allowed(one, CONTINUOUS, "fmi3EnterEventMode")) return FAILED;
  one->data.mode = EVENT;
  return OK;
}

FUNCTION(fmi3Terminate)(instance *one) {
  if (!allowed(one, RUNNING, "fmi3Terminate")) return FAILED;
  one->data.mode = TERMINATED;
  return OK;
}

FUNCTION(fmi3Reset)(instance *one) {
  if (one == NULL) return FAILED;
  begin(one);
  return OK;
}

/* Values. */

static int same_size(instance *one, size_t references, size_t values) {
  if (references == values) return 1;
  say(one, FAILED, "logStatusError", "%u values are given for %u variables, each of which is one "
      "number.", (unsigned)values, (unsigned)references);
  return 0;
}

FUNCTION(fmi3GetFloat64)(instance *one, const unsigned *references, size_t count, double *values,
                         size_t size) {
  if (one == NULL || !same_size(one, count, size)) return FAILED;
  return get_values(one, references, count, values);
}

FUNCTION(fmi3SetFloat64)(instance *one, const unsigned *references, size_t count,
                         const double *values, size_t size) {
  if (one == NULL || !same_size(one, count, size)) return FAILED;
  return set_values(one, references, count, values);
}

static int none_of_type(instance *one, size_t count, const char *type) {
  if (one == NULL) return FAILED;
  if (count == 0) return OK;
  return say(one, FAILED, "logStatusError", "there are no variables of the type %s, all are "
             "Float64.", type);
}

#define NO_VARIABLES(name) \
  FUNCTION(fmi3Get##name)(instance *one, const unsigned *references, size_t count, void *values, \
                          size_t size) { \
    (void)references, (void)values, (void)size; \
    return none_of_type(one, count, #name); \
  } \
  FUNCTION(fmi3Set##name)(instance *one, const unsigned *references, size_t count, \
                          const void *values, size_t size) { \
    (void)references, (void)values, (void)size; \
    return none_of_type(one, count, #name); \
  }

NO_VARIABLES(Float32)
NO_VARIABLES(Int8)
NO_VARIABLES(UInt8)
NO_VARIABLES(Int16)
NO_VARIABLES(UInt16)
NO_VARIABLES(Int32)
NO_VARIABLES(UInt32)
NO_VARIABLES(Int64)
NO_VARIABLES(UInt64)
NO_VARIABLES(Boolean)
NO_VARIABLES(String)

FUNCTION(fmi3GetBinary)(instance *one, const unsigned *references, size_t count, size_t *sizes,
                        const uint8_t **values, size_t size) {
  (void)references, (void)sizes, (void)values, (void)size;
  return none_of_type(one, count, "Binary");
}

FUNCTION(fmi3SetBinary)(instance *one, const unsigned *references, size_t count,
                        const size_t *sizes, const uint8_t *const *values, size_t size) {
  (void)references, (void)sizes, (void)values, (void)size;
  return none_of_type(one, count, "Binary");
}

FUNCTION(fmi3GetClock)(instance *one, const unsigned *references, size_t count, bool *values) {
  (void)references, (void)values;
  return none_of_type(one, count, "Clock");
}

FUNCTION(fmi3SetClock)(instance *one, const unsigned *references, size_t count,
                       const bool *values) {
  (void)references, (void)values;
  return none_of_type(one, count, "Clock");
}

/* What this FMU does not have. */

static int absent(instance *one, const char *function) {
  if (one == NULL) return FAILED;
  return say(one, FAILED, "logStatusError", "%s is asked for, which this FMU does not have, as its "
             "modelDescription.xml says.", function);
}

FUNCTION(fmi3GetNumberOfVariableDependencies)(instance *one, unsigned reference, size_t *count) {
  (void)reference, (void)count;
  return absent(one, "fmi3GetNumberOfVariableDependencies");
}

FUNCTION(fmi3GetVariableDependencies)(
    instance *one, unsigned dependent, size_t *of, unsigned *independents, size_t *elements,
    int *kinds, size_t count) {
  (void)dependent, (void)of, (void)independents, (void)elements, (void)kinds, (void)count;
  return absent(one, "fmi3GetVariableDependencies");
}

FUNCTION(fmi3EnterConfigurationMode)(instance *one) {
  return absent(one, "fmi3EnterConfigurationMode");
}

FUNCTION(fmi3ExitConfigurationMode)(instance *one) {
  return absent(one, "fmi3ExitConfigurationMode");
}

FUNCTION(fmi3GetIntervalDecimal)(instance *one, const unsigned *references, size_t count,
                                 double *intervals, int *qualifiers) {
  (void)references, (void)intervals, (void)qualifiers;
  return none_of_type(one, count, "Clock");
}

FUNCTION(fmi3GetIntervalFraction)(instance *one, const unsigned *references, size_t count,
                                  uint64_t *counters, uint64_t *resolutions, int *qualifiers) {
  (void)references, (void)counters, (void)resolutions, (void)qualifiers;
  return none_of_type(one, count, "Clock");
}

FUNCTION(fmi3GetShiftDecimal)(instance *one, const unsigned *references, size_t count,
                              double *shifts) {
  (void)references, (void)shifts;
  return none_of_type(one, count, "Clock");
}

FUNCTION(fmi3GetShiftFraction)(instance *one, const unsigned *references, size_t count,
                               uint64_t *counters, uint64_t *resolutions) {
  (void)references, (void)counters, (void)resolutions;
  return none_of_type(one, count, "Clock");
}

FUNCTION(fmi3SetIntervalDecimal)(instance *one, const unsigned *references, size_t count,
                                 const double *intervals) {
  (void)references, (void)intervals;
  return none_of_type(one, count, "Clock");
}

FUNCTION(fmi3SetIntervalFraction)(instance *one, const unsigned *references, size_t count,
                                  const uint64_t *counters, const uint64_t *resolutions) {
  (void)references, (void)counters, (void)resolutions;
  return none_of_type(one, count, "Clock");
}

FUNCTION(fmi3SetShiftDecimal)(instance *one, const unsigned *references, size_t count,
                              const double *shifts) {
  (void)references, (void)shifts;
  return none_of_type(one, count, "Clock");
}

FUNCTION(fmi3SetShiftFraction)(instance *one, const unsigned *references, size_t count,
                               const uint64_t *counters, const uint64_t *resolutions) {
  (void)references, (void)counters, (void)resolutions;
  return none_of_type(one, count, "Clock");
}

FUNCTION(fmi3EvaluateDiscreteStates)(instance *one) {
  return allowed(one, INITIALIZATION | EVENT, "fmi3EvaluateDiscreteStates") ? OK : FAILED;
}

FUNCTION(fmi3GetOutputDerivatives)(instance *one, const unsigned *references, size_t count,
                                   const int32_t *orders, double *values, size_t size) {
  (void)references, (void)count, (void)orders, (void)values, (void)size;
  return absent(one, "fmi3GetOutputDerivatives");
}

FUNCTION(fmi3ActivateModelPartition)(instance *one, unsigned clock, double time) {
  (void)clock, (void)time;
  return absent(one, "fmi3ActivateModelPartition");
}

FUNCTION(fmi3EnterStepMode)(instance *one) { return absent(one, "fmi3EnterStepMode"); }

/* State and derivatives. */

FUNCTION(fmi3GetFMUState)(instance *one, void **state) {
  return one == NULL ? FAILED : get_state(one, state);
}

FUNCTION(fmi3SetFMUState)(instance *one, const void *state) {
  return one == NULL ? FAILED : set_state(one, state);
}

FUNCTION(fmi3FreeFMUState)(instance *one, void **state) {
  if (one == NULL) return FAILED;
  if (state != NULL) {
    free(*state);
    *state = NULL;
  }
  return OK;
}

FUNCTION(fmi3SerializedFMUStateSize)(instance *one, const void *state, size_t *size) {
  (void)state;
  *size = serialized_size();
  return one == NULL ? FAILED : OK;
}

FUNCTION(fmi3SerializeFMUState)(instance *one, const void *state, uint8_t *bytes, size_t size) {
  return one == NULL ? FAILED : serialize(one, state, bytes, size);
}

FUNCTION(fmi3DeserializeFMUState)(instance *one, const uint8_t *bytes, size_t size, void **state) {
  return one == NULL ? FAILED : deserialize(one, bytes, size, state);
}

#define WITH_DERIVATIVES (INITIALIZATION | RUNNING)

FUNCTION(fmi3GetDirectionalDerivative)(
    instance *one, const unsigned *unknowns, size_t of, const unsigned *knowns, size_t by,
    const double *seed, size_t seeds, double *sensitivity, size_t sensitivities) {
  if (!allowed(one, WITH_DERIVATIVES, "fmi3GetDirectionalDerivative")) return FAILED;
  if (!same_size(one, by, seeds) || !same_size(one, of, sensitivities)) return FAILED;
  return directional(one, unknowns, of, knowns, by, seed, sensitivity);
}

FUNCTION(fmi3GetAdjointDerivative)(
    instance *one, const unsigned *unknowns, size_t of, const unsigned *knowns, size_t by,
    const double *seed, size_t seeds, double *sensitivity, size_t sensitivities) {
  if (!allowed(one, WITH_DERIVATIVES, "fmi3GetAdjointDerivative")) return FAILED;
  if (!same_size(one, of, seeds) || !same_size(one, by, sensitivities)) return FAILED;
  return adjoint(one, unknowns, of, knowns, by, seed, sensitivity);
}

/* Model exchange. */

FUNCTION(fmi3UpdateDiscreteStates)(instance *one, bool *again, bool *terminate, bool *nominals,
                                   bool *states, bool *has_next, double *next) {
  if (!allowed(one, EVENT, "fmi3UpdateDiscreteStates")) return FAILED;
  *again = *terminate = *nominals = *states = *has_next = false;
  *next = 0.0;
  return OK;
}

FUNCTION(fmi3EnterContinuousTimeMode)(instance *one) {
  if (!allowed(one, EVENT, "fmi3EnterContinuousTimeMode")) return FAILED;
  if (one->co_simulation) return absent(one, "fmi3EnterContinuousTimeMode in co-simulation");
  one->data.mode = CONTINUOUS;
  return check_changes(one);
}

FUNCTION(fmi3CompletedIntegratorStep)(instance *one, bool no_return, bool *event, bool *terminate) {
  (void)no_return;
  if (!allowed(one, CONTINUOUS, "fmi3CompletedIntegratorStep")) return FAILED;
  *event = *terminate = false;
  return OK;
}

FUNCTION(fmi3SetTime)(instance *one, double time) {
  if (!allowed(one, EVENT | CONTINUOUS, "fmi3SetTime")) return FAILED;
  one->data.value[0] = time;
  one->data.rate_is_stale = 1;
  return OK;
}

static int of_states(instance *one, size_t count) {
  if (count == STATES) return 1;
  say(one, FAILED, "logStatusError", "there are %d continuous states, not %u.", STATES,
      (unsigned)count);
  return 0;
}

FUNCTION(fmi3SetContinuousStates)(instance *one, const double *states, size_t count) {
  if (!allowed(one, CONTINUOUS, "fmi3SetContinuousStates")) return FAILED;
  if (!of_states(one, count)) return FAILED;
  memcpy(one->data.value + STATE, states, count * sizeof *states);
  one->data.rate_is_stale = 1;
  return OK;
}

FUNCTION(fmi3GetContinuousStateDerivatives)(instance *one, double *values, size_t count) {
  if (!allowed(one, INITIALIZATION | EVENT | CONTINUOUS, "fmi3GetContinuousStateDerivatives"))
    return FAILED;
  if (!of_states(one, count)) return FAILED;
  refresh(one);
  memcpy(values, one->data.value + DERIVATIVE, count * sizeof *values);
  for (unsigned i = 0; i < count; i++) {
    if (!finite(one, DERIVATIVE + i)) return DISCARD;
  }
  return OK;
}

FUNCTION(fmi3GetEventIndicators)(instance *one, double *values, size_t count) {
  (void)values;
  return one == NULL || count != 0 ? FAILED : OK;
}

FUNCTION(fmi3GetContinuousStates)(instance *one, double *states, size_t count) {
  if (one == NULL || !of_states(one, count)) return FAILED;
  refresh_start(one);
  memcpy(states, one->data.value + STATE, count * sizeof *states);
  return OK;
}

FUNCTION(fmi3GetNominalsOfContinuousStates)(instance *one, double *nominals, size_t count) {
  if (one == NULL || !of_states(one, count)) return FAILED;
  for (size_t i = 0; i < count; i++) nominals[i] = 1.0;
  return OK;
}

FUNCTION(fmi3GetNumberOfEventIndicators)(instance *one, size_t *count) {
  *count = 0;
  return one == NULL ? FAILED : OK;
}

FUNCTION(fmi3GetNumberOfContinuousStates)(instance *one, size_t *count) {
  *count = STATES;
  return one == NULL ? FAILED : OK;
}

/* Co-simulation. */

FUNCTION(fmi3DoStep)(instance *one, double time, double size, bool no_return, bool *event,
                     bool *terminate, bool *early, double *reached) {
  (void)no_return;
  *event = *terminate = *early = false;
  if (!allowed(one, STEP, "fmi3DoStep")) return FAILED;
  return step(one, time, size, reached);
}
