/* The interface of FMI 2.0, model exchange and co-simulation, on instances of a model. */
#include "model.c"
#include "instance.c"

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

#define FMI(name) fmi2##name
#define TOKEN "GUID"
#define TYPE "Real"
#ifdef FMI2_FUNCTION_PREFIX
#define PREFIX FMI2_FUNCTION_PREFIX
#endif
#include "interface.c"

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
  instance *one = made(name, token, environment, logger);
  (void)resources, (void)visible, (void)logging;
  if (one != NULL) one->co_simulation = kind == 1;
  return one;
}

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

/* Values. */

FUNCTION(fmi2GetReal)(instance *one, const unsigned *references, size_t count, double *values) {
  return one == NULL ? FAILED : get_values(one, references, count, values);
}

FUNCTION(fmi2SetReal)(instance *one, const unsigned *references, size_t count,
                      const double *values) {
  return one == NULL ? FAILED : set_values(one, references, count, values);
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

FUNCTION(fmi2FreeFMUstate)(instance *one, void **state) { return free_state(one, state); }

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

/* Model exchange. */

FUNCTION(fmi2NewDiscreteStates)(instance *one, event_info *info) {
  if (!allowed(one, EVENT, "fmi2NewDiscreteStates")) return FAILED;
  memset(info, 0, sizeof *info);
  return OK;
}

FUNCTION(fmi2CompletedIntegratorStep)(instance *one, int no_return, int *event, int *terminate) {
  (void)no_return;
  if (!allowed(one, CONTINUOUS, "fmi2CompletedIntegratorStep")) return FAILED;
  *event = *terminate = 0;
  return OK;
}

FUNCTION(fmi2GetDerivatives)(instance *one, double *values, size_t count) {
  return derivatives(one, values, count, "fmi2GetDerivatives");
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
