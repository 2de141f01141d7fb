"""A trajectory made up for figures, and what is read of their axes."""

from types import SimpleNamespace

import numpy as np

TIMES = np.linspace(0.0, 2.0, 9)

FAILURE_TIME = 1.0

LABELS = SimpleNamespace(
    coordinates=("r", "angle"),
    units=("m", "rad"),
    constraints=("rod", "rail"),
    constraint_units=("m^2", "m^2"),
)


def stub(*, failed=False, scale=1.0, m=2, labels=LABELS):
    """A trajectory with simple values; after a failure times are inf and values nan."""
    ts = TIMES.copy()
    q = np.stack([np.cos(ts), 3.0 + np.sin(ts)], axis=1)
    values = {
        "q": q,
        "v": np.stack([-np.sin(ts), np.cos(ts)], axis=1),
        "w": np.zeros((ts.size, 0)),
        "multipliers": np.ones((ts.size, m)) * np.arange(1, m + 1),
        "phi": scale * np.outer(np.exp(-ts), [3.0, 4.0][:m]),
        "phi_dot": scale * np.outer(np.exp(-2 * ts), [6.0, 8.0][:m]),
        "energy": 5.0 + scale * ts,
        "kinetic_energy": 2.0 + ts,
        "potential_energy": 3.0 - ts,
    }
    if failed:
        late = ts > FAILURE_TIME
        ts[late] = np.inf
        for value in values.values():
            value[late] = np.nan
    violation = SimpleNamespace(phi=values.pop("phi"), phi_dot=values.pop("phi_dot"))
    system = SimpleNamespace(labels=lambda: labels)
    return SimpleNamespace(
        ts=ts, u=None, success=not failed, violation=violation, system=system, **values
    )


def legend(ax):
    return [text.get_text() for text in ax.get_legend().get_texts()]


def line(ax, label):
    """The one line whose legend entry starts with `label`."""
    (found,) = [x for x in ax.get_lines() if str(x.get_label()).startswith(label)]
    return found


def xy(ax, label):
    found = line(ax, label)
    return np.asarray(found.get_xdata()), np.asarray(found.get_ydata())


def texts(ax):
    return [text.get_text() for text in ax.texts]


def ylabels(figure):
    return [ax.get_ylabel() for ax in figure.axes]
