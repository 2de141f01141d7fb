/* What the interfaces of FMI 2.0 and FMI 3.0 have in common: functions with the same arguments, and
 * what stands behind those with others. The file that includes it says FMI(name), the name with its
 * version, TOKEN and TYPE, the version's words for what instances are made with and for real
 * variables, and PREFIX where an importer puts something before names.
 */
#define PASTE(a, b) a##b
#define PASTED(a, b) PASTE(a, b)
#ifdef PREFIX
#define NAMED(name) PASTED(PREFIX, name)
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
#define QUOTE(name) #name
#define QUOTED(name) QUOTE(name)
#define ALLOWED(one, modes, name) allowed(one, modes, QUOTED(name))

static instance *made(const char *name, const char *token, void *environment, void *logger) {
  instance *one = new_instance(name, environment, logger);
  if (one != NULL && (token == NULL || strcmp(token, MODEL_TOKEN) != 0)) {
    say(one, FAILED, "logStatusError", "the " TOKEN " is %s, that of this FMU is %s: its "
        "modelDescription.xml belongs to another one.", token == NULL ? "none" : token,
        MODEL_TOKEN);
    free_instance(one);
    return NULL;
  }
  return one;
}

static int none_of_type(instance *one, size_t count, const char *type) {
  if (one == NULL) return FAILED;
  if (count == 0) return OK;
  return say(one, FAILED, "logStatusError", "there are no variables of the type %s, all are " TYPE
             ".", type);
}

static int absent(instance *one, const char *function) {
  if (one == NULL) return FAILED;
  return say(one, FAILED, "logStatusError", "%s is asked for, which this FMU does not have, as its "
             "modelDescription.xml says.", function);
}

PUBLIC void NAMED(FMI(FreeInstance))(instance *one) { free_instance(one); }

FUNCTION(FMI(ExitInitializationMode))(instance *one) {
  if (!ALLOWED(one, INITIALIZATION, FMI(ExitInitializationMode))) return FAILED;
  return exit_initialization(one);
}

FUNCTION(FMI(Terminate))(instance *one) {
  if (!ALLOWED(one, RUNNING, FMI(Terminate))) return FAILED;
  one->data.mode = TERMINATED;
  return OK;
}

FUNCTION(FMI(Reset))(instance *one) {
  if (one == NULL) return FAILED;
  begin(one);
  return OK;
}

static int free_state(instance *one, void **state) {
  if (one == NULL) return FAILED;
  if (state != NULL) {
    free(*state);
    *state = NULL;
  }
  return OK;
}

/* Model exchange. */

FUNCTION(FMI(EnterEventMode))(instance *one) {
  if (!ALLOWED(one, CONTINUOUS, FMI(EnterEventMode))) return FAILED;
  one->data.mode = EVENT;
  return OK;
}

FUNCTION(FMI(EnterContinuousTimeMode))(instance *one) {
  if (!ALLOWED(one, EVENT, FMI(EnterContinuousTimeMode))) return FAILED;
  one->data.mode = CONTINUOUS;
  return check_changes(one);
}

FUNCTION(FMI(SetTime))(instance *one, double time) {
  if (!ALLOWED(one, EVENT | CONTINUOUS, FMI(SetTime))) return FAILED;
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

FUNCTION(FMI(SetContinuousStates))(instance *one, const double *states, size_t count) {
  if (!ALLOWED(one, CONTINUOUS, FMI(SetContinuousStates))) return FAILED;
  if (!of_states(one, count)) return FAILED;
  memcpy(one->data.value + STATE, states, count * sizeof *states);
  one->data.rate_is_stale = 1;
  return OK;
}

FUNCTION(FMI(GetContinuousStates))(instance *one, double *states, size_t count) {
  if (one == NULL || !of_states(one, count)) return FAILED;
  refresh_start(one);
  memcpy(states, one->data.value + STATE, count * sizeof *states);
  return OK;
}

FUNCTION(FMI(GetNominalsOfContinuousStates))(instance *one, double *nominals, size_t count) {
  if (one == NULL || !of_states(one, count)) return FAILED;
  for (size_t i = 0; i < count; i++) nominals[i] = 1.0;
  return OK;
}

static int derivatives(instance *one, double *values, size_t count, const char *function) {
  if (!allowed(one, INITIALIZATION | EVENT | CONTINUOUS, function)) return FAILED;
  if (!of_states(one, count)) return FAILED;
  refresh(one);
  memcpy(values, one->data.value + DERIVATIVE, count * sizeof *values);
  for (unsigned i = 0; i < count; i++) {
    if (!finite(one, DERIVATIVE + i)) return DISCARD;
  }
  return OK;
}

FUNCTION(FMI(GetEventIndicators))(instance *one, double *values, size_t count) {
  (void)values;
  return one == NULL || count != 0 ? FAILED : OK;
}
