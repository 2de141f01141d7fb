"""Pictures of trajectories and tuning runs, as matplotlib `Figure` objects.

Every function returns a new figure and touches no global state of matplotlib: no `pyplot`, no
`rcParams`, no display. `import jaxdae` does not import this package.
"""

from jaxdae.plotting.animation import animate as animate
from jaxdae.plotting.energy import plot_energy as plot_energy
from jaxdae.plotting.fronts import plot_front as plot_front
from jaxdae.plotting.histories import plot_histories as plot_histories
from jaxdae.plotting.identification import plot_residuals as plot_residuals
from jaxdae.plotting.mechanism import plot_mechanism as plot_mechanism, plot_path as plot_path
from jaxdae.plotting.roots import plot_roots as plot_roots
from jaxdae.plotting.series import plot_series as plot_series
from jaxdae.plotting.style import save_figure as save_figure
from jaxdae.plotting.tuning import plot_tuning as plot_tuning
from jaxdae.plotting.violations import (
    plot_comparison as plot_comparison,
    plot_violation as plot_violation,
)
