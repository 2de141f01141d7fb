"""Pictures of trajectories and tuning runs."""

from .animation import animate as animate
from .batch import plot_batch as plot_batch
from .histories import plot_histories as plot_histories
from .identification import (
    plot_predictions as plot_predictions,
    plot_residuals as plot_residuals,
)
from .mechanism import plot_mechanism as plot_mechanism, plot_path as plot_path
from .page import save_page as save_page
from .roots import plot_roots as plot_roots
from .scene import save_scene as save_scene
from .series import plot_series as plot_series
from .style import save_figure as save_figure
from .tuning import plot_tuning as plot_tuning
from .violations import (
    plot_comparison as plot_comparison,
    plot_energy as plot_energy,
    plot_violation as plot_violation,
)
