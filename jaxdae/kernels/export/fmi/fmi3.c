/* The interface of FMI 3.0, model exchange and co-simulation, on instances of a model. */
#define WITH_ADJOINT
#include "model.c"
#include "instance.c"

#include <stdbool.h>

typedef void (*log_message)(void *environment, int status, const char *category, const char *text);

static void emit(instance *one, int status, const char *category, const char *message) {
  if (one->logger != NULL) ((log_message)one->logger)(one->environment, status, category, message);
}

#define FMI(name) fmi3##name
#define TOKEN "instantiation token"
#define TYPE "Float64"
#ifdef FMI3_FUNCTION_PREFIX
#define PREFIX FMI3_FUNCTION_PREFIX
#endif
#include "interface.c"

PUBLIC const char *NAMED(fmi3GetVersion)(void) { return "3.0"; }

FUNCTION(fmi3SetDebugLogging)(instance *one, bool on, size_t count, const char *const *names) {
  (void)on, (void)count, (void)names; /* errors and warnings are always said, and nothing else */
  return one == NULL ? FAILED : OK;
}

PUBLIC void *NAMED(fmi3InstantiateModelExchange)(
    const char *name, const char *token, const char *resources, bool visible, bool logging,
    void *environment, log_message logger) {
  (void)resources, (void)visible, (void)logging;
  return made(name, token, environment, (void *)logger);
}

PUBLIC void *NAMED(fmi3InstantiateCoSimulation)(
    const char *name, const char *token, const char *resources, bool visible, bool logging,
    bool event_mode, bool early_return, const unsigned *intermediate, size_t intermediates,
    void *environment, log_message logger, void *update) {
  instance *one = made(name, token, environment, (void *)logger);
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
  instance *one = made(name, token, environment, (void *)logger);
  (void)resources, (void)visible, (void)logging, (void)update, (void)lock, (void)unlock;
  if (one != NULL) say(one, FAILED, "logStatusError", "this FMU has no scheduled execution.");
  free_instance(one);
  return NULL;
}

FUNCTION(fmi3EnterInitializationMode)(instance *one, bool tolerance_defined, double tolerance,
                                      double start, bool stop_defined, double stop) {
  (void)tolerance_defined, (void)tolerance;
  if (!allowed(one, INSTANTIATED, "fmi3EnterInitializationMode")) return FAILED;
  return enter_initialization(one, start, stop_defined, stop);
}

/* Values. */

/* Places of all numbers of some variables, as many as `size`: an array has several, one behind the
 * other. NULL for what is no variable, or for another number of values. */
static const unsigned *places(instance *one, const unsigned *references, size_t count, size_t size,
                              unsigned *room) {
  size_t total = 0, at = 0;
  if (one == NULL) return NULL;
  for (size_t i = 0; i < count; i++) {
    if (!known_reference(one, references[i])) return NULL;
    if (model_size[references[i]] == 0) {
      say(one, FAILED, "logStatusError", "the value reference %u is that of %s, an entry of an "
          "array; an array is read and set in one piece, by that of its first entry.",
          references[i], model_name[references[i]]);
      return NULL;
    }
    total += model_size[references[i]];
  }
  if (total != size) {
    say(one, FAILED, "logStatusError", "%u values are given for %u variables, which have %u "
        "numbers.", (unsigned)size, (unsigned)count, (unsigned)total);
    return NULL;
  }
  if (total == count && count > 0) return references;
  if (total > VALUES) {
    say(one, FAILED, "logStatusError", "%u values are given or asked for in one call, and there "
        "are %u: name each variable once.", (unsigned)total, (unsigned)VALUES);
    return NULL;
  }
  for (size_t i = 0; i < count; i++) {
    for (unsigned k = 0; k < model_size[references[i]]; k++) room[at++] = references[i] + k;
  }
  return room;
}

FUNCTION(fmi3GetFloat64)(instance *one, const unsigned *references, size_t count, double *values,
                         size_t size) {
  unsigned room[VALUES];
  references = places(one, references, count, size, room);
  return references == NULL ? FAILED : get_values(one, references, size, values);
}

FUNCTION(fmi3SetFloat64)(instance *one, const unsigned *references, size_t count,
                         const double *values, size_t size) {
  unsigned room[VALUES];
  references = places(one, references, count, size, room);
  return references == NULL ? FAILED : set_values(one, references, size, values);
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

FUNCTION(fmi3FreeFMUState)(instance *one, void **state) { return free_state(one, state); }

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
  unsigned left[VALUES], right[VALUES];
  unknowns = places(one, unknowns, of, sensitivities, left);
  knowns = unknowns == NULL ? NULL : places(one, knowns, by, seeds, right);
  if (knowns == NULL) return FAILED;
  return directional(one, unknowns, sensitivities, knowns, seeds, seed, sensitivity);
}

FUNCTION(fmi3GetAdjointDerivative)(
    instance *one, const unsigned *unknowns, size_t of, const unsigned *knowns, size_t by,
    const double *seed, size_t seeds, double *sensitivity, size_t sensitivities) {
  if (!allowed(one, WITH_DERIVATIVES, "fmi3GetAdjointDerivative")) return FAILED;
  unsigned left[VALUES], right[VALUES];
  unknowns = places(one, unknowns, of, seeds, left);
  knowns = unknowns == NULL ? NULL : places(one, knowns, by, sensitivities, right);
  if (knowns == NULL) return FAILED;
  return adjoint(one, unknowns, seeds, knowns, sensitivities, seed, sensitivity);
}

/* Model exchange. */

FUNCTION(fmi3UpdateDiscreteStates)(instance *one, bool *again, bool *terminate, bool *nominals,
                                   bool *states, bool *has_next, double *next) {
  if (!allowed(one, EVENT, "fmi3UpdateDiscreteStates")) return FAILED;
  *again = *terminate = *nominals = *states = *has_next = false;
  *next = 0.0;
  return OK;
}

FUNCTION(fmi3CompletedIntegratorStep)(instance *one, bool no_return, bool *event, bool *terminate) {
  (void)no_return;
  if (!allowed(one, CONTINUOUS, "fmi3CompletedIntegratorStep")) return FAILED;
  *event = *terminate = false;
  return OK;
}

FUNCTION(fmi3GetContinuousStateDerivatives)(instance *one, double *values, size_t count) {
  return derivatives(one, values, count, "fmi3GetContinuousStateDerivatives");
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
