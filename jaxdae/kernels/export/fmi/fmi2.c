/* The interface of FMI 2.0, model exchange and co-simulation, on instances of a model. */
#include "model.c"
#include "instance.c"

#ifdef FMI2_FUNCTION_PREFIX
#define PASTE(a, b) a##b
#define PASTED(a, b) PASTE(a, b)
#define NAMED(name) PASTED(FMI2_FUNCTION_PREFIX, name)
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

typedef void (*log_message)(void *environment, const char *name, int status, const char *category,
                            const char *message, ...);

typedef struct {
  log_message logger;
  void *(*allocate)(size_t count, size_t size);
  void (*release)(void *memory);
  void (*step_finished)(void *environment, int status);
  void *environment;
} callbacks;

typedef struct {
  int again, terminate, nominals_changed, states_changed, has_next;
  double next;
} event_info;

static void emit(instance *one, int status, const char *category, const char *message) {
  if (one->logger == NULL) return;
  ((log_message)one->logger)(one->environment, one->name, status, category, "%s", message);
}

PUBLIC const char *NAMED(fmi2GetTypesPlatform)(void) { return "default"; }

PUBLIC const char *NAMED(fmi2GetVersion)(void) { return "2.0"; }

FUNCTION(fmi2SetDebugLogging)(instance *one, int on, size_t count, const char *const *names) {
  (void)on, (void)count, (void)names; /* errors and warnings are always said, and nothing else */
  return one == NULL ? FAILED : OK;
}

PUBLIC void *NAMED(fmi2Instantiate)(const char *name, int kind, const char *token,
                                    const char *resources, const callbacks *functions, int visible,
                                    int logging) {
  void *environment = functions == NULL ? NULL : functions->environment;
  void *logger = functions == NULL ? NULL : (void *)functions->logger;
  instance *one = new_instance(name, environment, logger);
  (void)resources, (void)visible, (void)logging;
  if (one == NULL) return NULL;
  if (token == NULL || strcmp(token, MODEL_TOKEN) != 0) {
    say(one, FAILED, "logStatusError", "the GUID is %s, that of this FMU is %s: its "
        "modelDescription.xml belongs to another one.", token == NULL ? "none" : token,
        MODEL_TOKEN);
    free_instance(one);
    return NULL;
  }
  one->co_simulation = kind == 1;
  return one;
}

PUBLIC void NAMED(fmi2FreeInstance)(instance *one) { free_instance(one); }

FUNCTION(fmi2SetupExperiment)(instance *one, int tolerance_defined, double tolerance, double start,
                              int stop_defined, double stop) {
  int status;
  (void)tolerance_defined, (void)tolerance;
  if (!allowed(one, INSTANTIATED, "fmi2SetupExperiment")) return FAILED;
  status = enter_initialization(one, start, stop_defined, stop);
  one->data.mode = INSTANTIATED;
  return status;
}

FUNCTION(fmi2EnterInitializationMode)(instance *one) {
  if (!allowed(one, INSTANTIATED, "fmi2EnterInitializationMode")) return FAILED;
  one->data.mode = INITIALIZATION;
  return OK;
}

FUNCTION(fmi2ExitInitializationMode)(instance *one) {
  if (!allowed(one, INITIALIZATION, "fmi2ExitInitializationMode")) return FAILED;
  return exit_initialization(one);
}

FUNCTION(fmi2Terminate)(instance *one) {
  if (!allowed(one, RUNNING, "fmi2Terminate")) return FAILED;
  one->data.mode = TERMINATED;
  return OK;
}

FUNCTION(fmi2Reset)(instance *one) {
  if (one == NULL) return FAILED;
  begin(one);
  return OK;
}

/* Values. */

FUNCTION(fmi2GetReal)(instance *one, const unsigned *references, size_t count, double *values) {
  return one == NULL ? FAILED : get_values(one, references, count, values);
}

FUNCTION(fmi2SetReal)(instance *one, const unsigned *references, size_t count,
                      const double *values) {
  return one == NULL ? FAILED : set_values(one, references, count, values);
}

static int none_of_type(instance *one, size_t count, const char *type) {
  if (one == NULL) return FAILED;
  if (count == 0) return OK;
  return say(one, FAILED, "logStatusError", "there are no variables of the type %s, all are Real.",
             type);
}

#define NO_VARIABLES(name) \
  FUNCTION(fmi2Get##name)(instance *one, const unsigned *references, size_t count, \
                          void *values) { \
    (void)references, (void)values; \
    return none_of_type(one, count, #name); \
  } \
  FUNCTION(fmi2Set##name)(instance *one, const unsigned *references, size_t count, \
                          const void *values) { \
    (void)references, (void)values; \
    return none_of_type(one, count, #name); \
  }

NO_VARIABLES(Integer)
NO_VARIABLES(Boolean)
NO_VARIABLES(String)

/* State and derivatives. */

FUNCTION(fmi2GetFMUstate)(instance *one, void **state) {
  return one == NULL ? FAILED : get_state(one, state);
}

FUNCTION(fmi2SetFMUstate)(instance *one, const void *state) {
  return one == NULL ? FAILED : set_state(one, state);
}

FUNCTION(fmi2FreeFMUstate)(instance *one, void **state) {
  if (one == NULL) return FAILED;
  if (state != NULL) {
    free(*state);
    *state = NULL;
  }
  return OK;
}

FUNCTION(fmi2SerializedFMUstateSize)(instance *one, const void *state, size_t *size) {
  (void)state;
  *size = serialized_size();
  return one == NULL ? FAILED : OK;
}

FUNCTION(fmi2SerializeFMUstate)(instance *one, const void *state, char *bytes, size_t size) {
  return one == NULL ? FAILED : serialize(one, state, bytes, size);
}

FUNCTION(fmi2DeSerializeFMUstate)(instance *one, const char *bytes, size_t size, void **state) {
  return one == NULL ? FAILED : deserialize(one, bytes, size, state);
}

FUNCTION(fmi2GetDirectionalDerivative)(
    instance *one, const unsigned *unknowns, size_t of, const unsigned *knowns, size_t by,
    const double *seed, double *sensitivity) {
  if (!allowed(one, INITIALIZATION | RUNNING, "fmi2GetDirectionalDerivative")) return FAILED;
  return directional(one, unknowns, of, knowns, by, seed, sensitivity);
}

static int absent(instance *one, const char *function) {
  if (one == NULL) return FAILED;
  return say(one, FAILED, "logStatusError", "%s is asked for, which this FMU does not have, as its "
             "modelDescription.xml says.", function);
}

/* Model exchange. */

FUNCTION(fmi2EnterEventMode)(instance *one) {
  if (!allowed(one, CONTINUOUS, "fmi2EnterEventMode")) return FAILED;
  one->data.mode = EVENT;
  return OK;
}

FUNCTION(fmi2NewDiscreteStates)(instance *one, event_info *info) {
  if (!allowed(one, EVENT, "fmi2NewDiscreteStates")) return FAILED;
  memset(info, 0, sizeof *info);
  return OK;
}

FUNCTION(fmi2EnterContinuousTimeMode)(instance *one) {
  if (!allowed(one, EVENT, "fmi2EnterContinuousTimeMode")) return FAILED;
  one->data.mode = CONTINUOUS;
  return check_changes(one);
}

FUNCTION(fmi2CompletedIntegratorStep)(instance *one, int no_return, int *event, int *terminate) {
  (void)no_return;
  if (!allowed(one, CONTINUOUS, "fmi2CompletedIntegratorStep")) return FAILED;
  *event = *terminate = 0;
  return OK;
}

FUNCTION(fmi2SetTime)(instance *one, double time) {
  if (!allowed(one, EVENT | CONTINUOUS, "fmi2SetTime")) return FAILED;
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

FUNCTION(fmi2SetContinuousStates)(instance *one, const double *states, size_t count) {
  if (!allowed(one, CONTINUOUS, "fmi2SetContinuousStates")) return FAILED;
  if (!of_states(one, count)) return FAILED;
  memcpy(one->data.value + STATE, states, count * sizeof *states);
  one->data.rate_is_stale = 1;
  return OK;
}

FUNCTION(fmi2GetDerivatives)(instance *one, double *values, size_t count) {
  if (!allowed(one, INITIALIZATION | EVENT | CONTINUOUS, "fmi2GetDerivatives")) return FAILED;
  if (!of_states(one, count)) return FAILED;
  refresh(one);
  memcpy(values, one->data.value + DERIVATIVE, count * sizeof *values);
  for (unsigned i = 0; i < count; i++) {
    if (!finite(one, DERIVATIVE + i)) return DISCARD;
  }
  return OK;
}

FUNCTION(fmi2GetEventIndicators)(instance *one, double *values, size_t count) {
  (void)values;
  return one == NULL || count != 0 ? FAILED : OK;
}

FUNCTION(fmi2GetContinuousStates)(instance *one, double *states, size_t count) {
  if (one == NULL || !of_states(one, count)) return FAILED;
  refresh_start(one);
  memcpy(states, one->data.value + STATE, count * sizeof *states);
  return OK;
}

FUNCTION(fmi2GetNominalsOfContinuousStates)(instance *one, double *nominals, size_t count) {
  if (one == NULL || !of_states(one, count)) return FAILED;
  for (size_t i = 0; i < count; i++) nominals[i] = 1.0;
  return OK;
}

/* Co-simulation. */

FUNCTION(fmi2SetRealInputDerivatives)(instance *one, const unsigned *references, size_t count,
                                      const int *orders, const double *values) {
  (void)references, (void)count, (void)orders, (void)values;
  return absent(one, "fmi2SetRealInputDerivatives");
}

FUNCTION(fmi2GetRealOutputDerivatives)(instance *one, const unsigned *references, size_t count,
                                       const int *orders, double *values) {
  (void)references, (void)count, (void)orders, (void)values;
  return absent(one, "fmi2GetRealOutputDerivatives");
}

FUNCTION(fmi2DoStep)(instance *one, double time, double size, int no_return) {
  double reached;
  (void)no_return;
  if (!allowed(one, STEP, "fmi2DoStep")) return FAILED;
  return step(one, time, size, &reached);
}

FUNCTION(fmi2CancelStep)(instance *one) { return absent(one, "fmi2CancelStep"); }

FUNCTION(fmi2GetStatus)(instance *one, int kind, int *value) {
  (void)kind, (void)value;
  return absent(one, "fmi2GetStatus");
}

FUNCTION(fmi2GetRealStatus)(instance *one, int kind, double *value) {
  if (one == NULL || kind != 2) return one == NULL ? FAILED : absent(one, "fmi2GetRealStatus");
  *value = one->data.value[0]; /* the time of the last step that succeeded */
  return OK;
}

FUNCTION(fmi2GetIntegerStatus)(instance *one, int kind, int *value) {
  (void)kind, (void)value;
  return absent(one, "fmi2GetIntegerStatus");
}

FUNCTION(fmi2GetBooleanStatus)(instance *one, int kind, int *value) {
  if (one == NULL || kind != 3) return one == NULL ? FAILED : absent(one, "fmi2GetBooleanStatus");
  *value = one->data.mode == TERMINATED;
  return OK;
}

FUNCTION(fmi2GetStringStatus)(instance *one, int kind, const char **value) {
  (void)kind, (void)value;
  return absent(one, "fmi2GetStringStatus");
}
