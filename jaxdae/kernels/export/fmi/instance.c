/* Instances of a model, without what differs between the versions of FMI.
 *
 * A value reference is the place of a value in `value`: time, states, their derivatives, outputs,
 * parameters and inputs, start values. Statuses have the numbers that both versions give them.
 * Memory is taken where instances and copies of their state are made, and nowhere else; there is
 * no variable that instances share.
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

enum { OK, WARNING, DISCARD, FAILED };

enum mode {
  INSTANTIATED = 1, INITIALIZATION = 2, EVENT = 4, CONTINUOUS = 8, STEP = 16, TERMINATED = 32
};
#define RUNNING (EVENT | CONTINUOUS | STEP)

enum { STATE = 1, DERIVATIVE = STATE + STATES, OUTPUT = DERIVATIVE + STATES,
       PARAMETER = OUTPUT + OUTPUTS, START = PARAMETER + PARAMETERS };

/* All that a run depends on. */
typedef struct {
  enum mode mode;
  int start_is_stale, rate_is_stale, stop_defined, parameters_changed;
  double stop, residual_before;
  double value[VALUES];
} data;

typedef struct instance {
  data data;
  int co_simulation;
  void *environment, *logger;
  char *name;
  double direction[VALUES], result[VALUES], start[STARTS], of_start[STARTS];
  double next[2][STATES], residual[RESIDUALS + 1];
} instance;

/* What a version does with a message. */
static void emit(instance *one, int status, const char *category, const char *message);

static int say(instance *one, int status, const char *category, const char *format, ...) {
  char message[768];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(message, sizeof message, format, arguments);
  va_end(arguments);
  emit(one, status, category, message);
  return status;
}

static const char *mode_name(enum mode mode) {
  switch (mode) {
    case INSTANTIATED: return "Instantiated";
    case INITIALIZATION: return "Initialization Mode";
    case EVENT: return "Event Mode";
    case CONTINUOUS: return "Continuous-Time Mode";
    case STEP: return "Step Mode";
    default: return "Terminated";
  }
}

static int allowed(instance *one, int modes, const char *function) {
  if (one == NULL) return 0;
  if (one->data.mode & modes) return 1;
  say(one, FAILED, "logStatusError", "%s is not allowed in the mode %s.", function,
      mode_name(one->data.mode));
  return 0;
}

static void begin(instance *one) {
  memset(&one->data, 0, sizeof one->data);
  one->data.mode = INSTANTIATED;
  one->data.start_is_stale = one->data.rate_is_stale = 1;
  memcpy(one->data.value, model_first, sizeof model_first);
}

static instance *new_instance(const char *name, void *environment, void *logger) {
  instance *one = calloc(1, sizeof *one);
  if (one == NULL) return NULL;
  name = name == NULL ? "" : name;
  one->name = malloc(strlen(name) + 1);
  if (one->name == NULL) {
    free(one);
    return NULL;
  }
  strcpy(one->name, name);
  one->environment = environment;
  one->logger = logger;
  begin(one);
  return one;
}

static void free_instance(instance *one) {
  if (one == NULL) return;
  free(one->name);
  free(one);
}

/* Values. */

static void collect_start(const double *value, double *start) {
  for (int i = 0; i < model_starts; i++) start[i] = value[model_start_place[i]];
}

static void refresh_start(instance *one) {
  data *d = &one->data;
  if (!d->start_is_stale || d->mode > INITIALIZATION) return;
  d->start_is_stale = 0;
  collect_start(d->value, one->start);
  model_start(d->value[0], one->start, d->value + PARAMETER, one->next[0]);
  memcpy(d->value + STATE, one->next[0], sizeof one->next[0]);
  d->rate_is_stale = 1;
}

static void refresh(instance *one) {
  data *d = &one->data;
  refresh_start(one);
  if (!d->rate_is_stale) return;
  d->rate_is_stale = 0;
  model_rate(d->value[0], d->value + STATE, d->value + PARAMETER, d->value + DERIVATIVE,
             d->value + OUTPUT);
}

static int known_reference(instance *one, unsigned reference) {
  if (reference < model_values) return 1;
  say(one, FAILED, "logStatusError", "there is no variable with the value reference %u; the last "
      "one is %u.", reference, model_values - 1);
  return 0;
}

static int finite(instance *one, unsigned place) {
  if (one->data.value[place] * 0.0 == 0.0) return 1;
  say(one, DISCARD, "logStatusDiscard", "%s is no finite number at t = %.9g: a singular position, "
      "or a start or parameter that does not fit.", model_name[place], one->data.value[0]);
  return 0;
}

static int get_values(instance *one, const unsigned *references, size_t count, double *values) {
  int status = OK;
  for (size_t i = 0; i < count; i++) {
    unsigned place = references[i];
    if (!known_reference(one, place)) return FAILED;
    if (place >= DERIVATIVE && place < PARAMETER) refresh(one);
    else if (place >= STATE && place < DERIVATIVE) refresh_start(one);
    values[i] = one->data.value[place];
    if (place >= DERIVATIVE && place < PARAMETER && !finite(one, place)) status = DISCARD;
  }
  return status;
}

/* The largest residual of the constraints in proportion to what is allowed, and which it is. */
static double misfit(instance *one, int *which, double *limit) {
  double size = 0.0, largest = 0.0;
  const double *x = one->data.value + STATE;
  if (RESIDUALS == 0 || START_TOLERANCE <= 0.0) return 0.0;
  model_residual(one->data.value[0], x, one->data.value + PARAMETER, one->residual);
  for (int i = 0; i < model_sized; i++) size = fabs(x[i]) > size ? fabs(x[i]) : size;
  *limit = START_TOLERANCE * (1.0 + size);
  for (int i = 0; i < RESIDUALS; i++) {
    if (!(fabs(one->residual[i]) <= largest)) {
      largest = fabs(one->residual[i]);
      *which = i;
      if (largest != largest) return INFINITY;
    }
  }
  return largest / *limit;
}

static const char *level(int which) { return which < model_positions ? "position" : "velocity"; }

static int settable(instance *one, unsigned place) {
  enum mode mode = one->data.mode;
  int kind = model_kind[place], before = (mode & (INSTANTIATED | INITIALIZATION)) != 0;
  if (kind == IS_INPUT && mode != TERMINATED) return 1;
  if (kind == IS_TUNABLE && (before || (mode & (EVENT | STEP)))) return 1;
  if ((kind == IS_START || kind == IS_EXACT_STATE) && before) return 1;
  if (kind == IS_TUNABLE && mode == CONTINUOUS)
    say(one, FAILED, "logStatusError", "the parameter %s can be set in Event Mode, and not in "
        "Continuous-Time Mode.", model_name[place]);
  else if (kind == IS_EXACT_STATE || kind == IS_START)
    say(one, FAILED, "logStatusError", "%s can be set before the end of the initialization, and "
        "not in the mode %s.", model_name[place], mode_name(mode));
  else
    say(one, FAILED, "logStatusError", "%s cannot be set in the mode %s: it is %s.",
        model_name[place], mode_name(mode),
        kind == IS_CALCULATED ? "calculated" : "not open to changes then");
  return 0;
}

static int set_values(instance *one, const unsigned *references, size_t count,
                      const double *values) {
  data *d = &one->data;
  for (size_t i = 0; i < count; i++) {
    if (!known_reference(one, references[i]) || !settable(one, references[i])) return FAILED;
    if (values[i] != values[i])
      return say(one, FAILED, "logStatusError", "%s is to be set to what is no number.",
                 model_name[references[i]]);
  }
  for (size_t i = 0; i < count; i++) {
    unsigned place = references[i];
    if (model_kind[place] == IS_TUNABLE && (d->mode & RUNNING) && !d->parameters_changed &&
        d->value[place] != values[i]) {
      int which = 0;
      double limit = 1.0;
      d->residual_before = misfit(one, &which, &limit);
      d->parameters_changed = 1;
    }
    d->value[place] = values[i];
    d->rate_is_stale = 1;
    if (d->mode & (INSTANTIATED | INITIALIZATION)) d->start_is_stale = 1;
  }
  return OK;
}

/* A warning where new parameters have taken the state off the constraints. */
static int check_changes(instance *one) {
  int which = 0;
  double limit = 1.0, now;
  if (!one->data.parameters_changed) return OK;
  one->data.parameters_changed = 0;
  now = misfit(one, &which, &limit);
  if (now <= 1.0 || now <= 10.0 * one->data.residual_before) return OK;
  return say(one, WARNING, "logStatusWarning", "parameters were changed at t = %.9g, and the state "
      "does not satisfy the constraint %s any more: its residual at %s level is %.3g (allowed at "
      "a start: %.1g). Start again with the new parameters and a state that satisfies it.",
      one->data.value[0], model_constraint[which], level(which), fabs(one->residual[which]), limit);
}

/* Modes. */

static int enter_initialization(instance *one, double start, int stop_defined, double stop) {
  if (start * 0.0 != 0.0 || (stop_defined && !(stop >= start)))
    return say(one, FAILED, "logStatusError", "the run from t = %.9g to t = %.9g does not go "
               "forward between finite times.", start, stop);
  one->data.value[0] = start;
  one->data.stop_defined = stop_defined;
  one->data.stop = stop;
  one->data.start_is_stale = one->data.rate_is_stale = 1;
  one->data.mode = INITIALIZATION;
  return OK;
}

static int exit_initialization(instance *one) {
  int which = 0;
  double limit = 1.0;
  refresh_start(one);
  for (int i = 0; i < STATES; i++) {
    if (one->data.value[STATE + i] * 0.0 != 0.0)
      return say(one, FAILED, "logStatusError", "the start of %s is no finite number.",
                 model_name[STATE + i]);
  }
  if (misfit(one, &which, &limit) > 1.0)
    return say(one, FAILED, "logStatusError", "the start is inconsistent: constraint %s is "
        "violated by %.3g at %s level (allowed %.1g) at t = %.9g. Start with values that satisfy "
        "it, such as those of jaxdae.consistent_state, or allow it with jaxdae.export(..., "
        "start_tolerance=None).", model_constraint[which], fabs(one->residual[which]),
        level(which), limit, one->data.value[0]);
  one->data.mode = one->co_simulation ? STEP : EVENT;
  return OK;
}

/* Steps of a given communication step size: the step of the export, or a little shorter. */
static int step(instance *one, double t, double size, double *reached) {
  data *d = &one->data;
  double now = d->value[0], scale = fabs(now) + fabs(size), end = t + size;
  int status;
  *reached = now;
  if (!(fabs(t - now) <= 1e-9 * scale))
    return say(one, FAILED, "logStatusError", "a step is asked for from t = %.17g, where the last "
               "one ended at t = %.17g.", t, now);
  if (!(size > 0.0) || size * 0.0 != 0.0)
    return say(one, FAILED, "logStatusError", "the communication step size is %.9g, must be a "
               "positive number.", size);
  if (d->stop_defined && end > d->stop + 1e-9 * (fabs(d->stop) + size))
    return say(one, FAILED, "logStatusError", "a step to t = %.17g goes beyond the stop time %.17g.",
               end, d->stop);
  status = check_changes(one);
  double parts = ceil(size / STEP_SIZE * (1.0 - 1e-9)), *from = one->next[0], *to = one->next[1];
  double last = now, length = (end - now) / (parts < 1.0 ? 1.0 : parts);
  memcpy(from, d->value + STATE, sizeof one->next[0]);
  for (double i = 1.0; i <= (parts < 1.0 ? 1.0 : parts); i += 1.0) {
    double following = i < parts ? i * length + now : end, *other = from;
    model_step(last, following, from, d->value + PARAMETER, to);
    for (int k = 0; k < STATES; k++) {
      if (to[k] * 0.0 != 0.0)
        return say(one, DISCARD, "logStatusDiscard", "%s is no finite number behind t = %.9g: a "
            "step of %.3g s is too long there, or the position is singular. The state is that "
            "before the step.", model_name[STATE + k], last, length);
    }
    from = to;
    to = other;
    last = following;
  }
  memcpy(d->value + STATE, from, sizeof one->next[0]);
  d->value[0] = *reached = end;
  d->rate_is_stale = 1;
  return status;
}

/* Derivatives. */

static int is_known(instance *one, unsigned place) {
  int before = (one->data.mode & (INSTANTIATED | INITIALIZATION)) != 0, kind;
  if (!known_reference(one, place)) return 0;
  kind = model_kind[place];
  if (place == 0 || kind == IS_INPUT || kind == IS_TUNABLE || kind == IS_EXACT_STATE ||
      (kind == IS_START && before) || (place >= STATE && place < DERIVATIVE && !before))
    return 1;
  say(one, FAILED, "logStatusError", "a derivative by %s is asked for, which is calculated, or "
      "fixed in this mode.", model_name[place]);
  return 0;
}

static int is_unknown(instance *one, unsigned place) {
  if (!known_reference(one, place)) return 0;
  if (place >= STATE && place < PARAMETER) return 1;
  say(one, FAILED, "logStatusError", "a derivative of %s is asked for, which is neither an output "
      "nor the derivative of a state.", model_name[place]);
  return 0;
}

static int all_finite(instance *one, const double *values, size_t count) {
  for (size_t i = 0; i < count; i++) {
    if (values[i] * 0.0 != 0.0)
      return say(one, DISCARD, "logStatusDiscard", "a derivative is no finite number at t = %.9g.",
                 one->data.value[0]);
  }
  return OK;
}

static int directional(instance *one, const unsigned *unknowns, size_t of, const unsigned *knowns,
                       size_t by, const double *seed, double *sensitivity) {
  double *move = one->direction, *result = one->result, *value = one->data.value;
  refresh_start(one);
  memset(move, 0, sizeof one->direction);
  for (size_t i = 0; i < by; i++) {
    if (!is_known(one, knowns[i])) return FAILED;
    move[knowns[i]] += seed[i];
  }
  for (size_t i = 0; i < of; i++) {
    if (!is_unknown(one, unknowns[i])) return FAILED;
  }
  memcpy(result + STATE, move + STATE, sizeof one->next[0]);
  if (one->data.mode <= INITIALIZATION) {
    collect_start(value, one->start);
    collect_start(move, one->of_start);
    model_start_directional(value[0], one->start, value + PARAMETER, move[0], one->of_start,
                            move + PARAMETER, result + STATE);
  }
  model_directional(value[0], value + STATE, value + PARAMETER, move[0], result + STATE,
                    move + PARAMETER, result + DERIVATIVE, result + OUTPUT);
  for (size_t i = 0; i < of; i++) sensitivity[i] = result[unknowns[i]];
  return all_finite(one, sensitivity, of);
}

#ifdef WITH_ADJOINT
static int adjoint(instance *one, const unsigned *unknowns, size_t of, const unsigned *knowns,
                   size_t by, const double *seed, double *sensitivity) {
  double *bar = one->direction, *result = one->result, *value = one->data.value, of_time;
  refresh_start(one);
  memset(bar, 0, sizeof one->direction);
  memset(result, 0, sizeof one->result);
  for (size_t i = 0; i < of; i++) {
    if (!is_unknown(one, unknowns[i])) return FAILED;
    bar[unknowns[i]] += seed[i];
  }
  for (size_t i = 0; i < by; i++) {
    if (!is_known(one, knowns[i])) return FAILED;
  }
  model_adjoint(value[0], value + STATE, value + PARAMETER, bar + DERIVATIVE, bar + OUTPUT,
                result, result + STATE, result + PARAMETER);
  for (int i = 0; i < STATES; i++) result[STATE + i] += bar[STATE + i];
  if (one->data.mode <= INITIALIZATION) {
    collect_start(value, one->start);
    /* Of the parameters, into what is not needed any more. */
    model_start_adjoint(value[0], one->start, value + PARAMETER, result + STATE, &of_time,
                        one->of_start, bar + PARAMETER);
    result[0] += of_time;
    memset(result + STATE, 0, sizeof one->next[0]);
    for (int i = 0; i < model_parameters; i++) result[PARAMETER + i] += bar[PARAMETER + i];
    for (int i = 0; i < model_starts; i++) result[model_start_place[i]] += one->of_start[i];
  }
  for (size_t i = 0; i < by; i++) sensitivity[i] = result[knowns[i]];
  return all_finite(one, sensitivity, by);
}
#endif

/* Copies of the state. */

static int get_state(instance *one, void **state) {
  if (*state == NULL) *state = malloc(sizeof(data));
  if (*state == NULL) return say(one, FAILED, "logStatusError", "there is no memory for a state.");
  memcpy(*state, &one->data, sizeof(data));
  return OK;
}

static int set_state(instance *one, const void *state) {
  if (state == NULL) return say(one, FAILED, "logStatusError", "there is no state to go back to.");
  memcpy(&one->data, state, sizeof(data));
  return OK;
}

static size_t serialized_size(void) { return sizeof MODEL_TOKEN + sizeof(data); }

static int serialize(instance *one, const void *state, void *bytes, size_t size) {
  if (state == NULL || size < serialized_size())
    return say(one, FAILED, "logStatusError", "a state takes %u bytes, given are %u.",
               (unsigned)serialized_size(), (unsigned)size);
  memcpy(bytes, MODEL_TOKEN, sizeof MODEL_TOKEN);
  memcpy((char *)bytes + sizeof MODEL_TOKEN, state, sizeof(data));
  return OK;
}

static int deserialize(instance *one, const void *bytes, size_t size, void **state) {
  if (size != serialized_size() || memcmp(bytes, MODEL_TOKEN, sizeof MODEL_TOKEN) != 0)
    return say(one, FAILED, "logStatusError", "these bytes are no state of this FMU.");
  if (*state == NULL) *state = malloc(sizeof(data));
  if (*state == NULL) return say(one, FAILED, "logStatusError", "there is no memory for a state.");
  memcpy(*state, (const char *)bytes + sizeof MODEL_TOKEN, sizeof(data));
  return OK;
}
