"""Plots of the page of benchmarks: drawings in the page itself, in its own colour of text."""

import io
import itertools
import re
from collections.abc import Callable, Iterable
from typing import Any

Row = dict[str, Any]

# Stands for the page's colour of text, light or dark, which the drawing takes where it is shown.
TEXT = "#010203"
# Of about the same contrast to white and to the dark page.
PALETTE = ("#1f8dd6", "#e2641b", "#15a078", "#c45ba0", "#a38a00", "#8a8a8a")
OURS = ("jaxdae, native", "jaxdae, plain", "jaxdae, plain, sparse")
# Of the many codes those that lines of others do not hide.
SHOWN = (
    "C, DOP853", "heyoka", "C, SUNDIALS CVODE Adams", "CasADi CVODES Adams", "CasADi IDAS",
    "SciPy DOP853", "solve_dae Radau IIA", "Exudyn trapezoidal", "MuJoCo RK4",
)  # fmt: skip
# Of the many methods those that are fastest somewhere, and other codes that are driven from C.
WORK_SHOWN = (
    "jaxdae, Dopri8, Multipliers", "jaxdae, Projected Dopri8", "jaxdae, RadauIIA",
    "jaxdae, Rodas5P, Multipliers", "jaxdae, Rodas5P", "C, DOP853", "C, RADAU5",
    "C, RADAU5, explicit form",
    "C, RADAU5, index 3", "C, SUNDIALS CVODE Adams", "C, SUNDIALS CVODE BDF", "C, SUNDIALS IDA",
    "C, SUNDIALS IDA, index 1", "CasADi IDAS", "solve_dae Radau IIA",
)  # fmt: skip
STYLE: Row = {
    "svg.fonttype": "none", "text.color": TEXT, "axes.edgecolor": TEXT, "axes.labelcolor": TEXT,
    "xtick.color": TEXT, "ytick.color": TEXT, "font.size": 9.0, "axes.spines.top": False,
    "axes.spines.right": False, "legend.frameon": False,
}  # fmt: skip


def drawn(name: str, rows: list[Row]) -> str:
    """A plot of a file's rows as SVG for the page."""
    import matplotlib as mpl

    # Names in the drawing are its own, so that drawings of one page do not share them.
    style: Any = {**STYLE, "svg.hashsalt": name}
    with mpl.rc_context(style):
        title, figure = PLOTS[name](rows)
        stream = io.StringIO()
        figure.savefig(stream, format="svg", transparent=True, metadata={"Date": None})
    return in_page(stream.getvalue(), title)


def in_page(svg: str, title: str) -> str:
    """A drawing as a part of HTML: no header, as wide as the page, in its colour of text."""
    svg = svg[svg.index("<svg") :].replace(TEXT, "currentColor")
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(
        r'<svg [^>]*?(viewBox="[^"]*")[^>]*>',
        rf'<svg role="img" \1><title>{title}</title>',
        svg,
        count=1,
    )
    lines = (line for line in svg.splitlines() if line.strip())
    return '<div class="plot">\n' + "\n".join(lines) + "\n</div>"


def figure(panels: int, across: int, height: float) -> tuple[Any, list[Any]]:
    """A figure with so many axes, both logarithmic."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, NullLocator

    from jaxdae.plotting.style import power_of_ten

    down = -(-panels // across)
    result = Figure(figsize=(4.6 * across, height * down + 0.9), layout="constrained")
    axes = list(result.subplots(down, across, squeeze=False).flat)
    for ax in axes[panels:]:
        ax.set_visible(False)
    for ax in axes[:panels]:
        ax.grid(visible=True, color=TEXT, alpha=0.15, linewidth=0.6)
        for axis, scale in ((ax.xaxis, ax.set_xscale), (ax.yaxis, ax.set_yscale)):
            scale("log")
            axis.set_minor_locator(NullLocator())
            axis.set_major_formatter(FuncFormatter(power_of_ten))
    return result, axes[:panels]


def lines(
    ax: Any, codes: Iterable[str], points: Callable[[str], list[tuple[float, float]]]
) -> None:
    """A line for each code, ours thick."""
    looks = itertools.product("os^", PALETTE)
    for code, (marker, color) in zip(codes, looks, strict=False):
        own = sorted(points(code))
        if own:
            width = 2.5 if code.startswith("jaxdae") else 1.1
            x, y = zip(*own, strict=True)
            ax.plot(x, y, marker, ls="-", ms=4, color=color, linewidth=width, label=code)


def legend(result: Any, axes: list[Any]) -> None:
    """One legend for all axes, below them."""
    known = {}
    for ax in axes:
        known |= {label: line for line, label in zip(*ax.get_legend_handles_labels(), strict=True)}
    result.legend(known.values(), known.keys(), loc="outside lower center", ncols=3)


def work_precision(rows: list[Row], codes: Iterable[str] = OURS + SHOWN) -> tuple[str, Any]:
    """Time of a run against its error, an axis for each problem."""
    problems = list(dict.fromkeys(x["problem"] for x in rows))
    result, axes = figure(len(problems), 2, 2.6)
    for ax, problem in zip(axes, problems, strict=True):
        part = [x for x in rows if x["problem"] == problem]
        lines(ax, codes, lambda code, part=part: front([x for x in part if x["code"] == code]))
        ax.invert_xaxis()
        ax.set(
            title=problem, xlabel="error of the final state, relative", ylabel="time of a run [ms]"
        )
    legend(result, axes)
    return "Time of one run against its error, for each problem and code", result


def front(part: list[Row]) -> list[tuple[float, float]]:
    """Error and time [ms] of settings that no other beats in both."""
    points = [(x["error"], 1e3 * min(x["seconds"])) for x in part if x["error"]]
    return [(e, t) for e, t in points if all(t <= s for d, s in points if d <= e)]


def lengths(rows: list[Row]) -> tuple[str, Any]:
    """Time of a step against the number of links."""
    part = [x for x in rows if x["section"] == "steps"]
    result, axes = figure(1, 1, 3.2)
    result.set_size_inches(6.5, 4.2)
    codes = list(dict.fromkeys(x["code"] for x in part))
    times = lambda code: [  # noqa: E731
        (x["links"], 1e6 * min(x["seconds"])) for x in part if x["code"] == code
    ]
    lines(axes[0], codes, times)
    axes[0].set(xlabel="links of the chain", ylabel="time of a step [µs]")
    legend(result, axes)
    return "Time of a step of a chain against its number of links", result


# Open, rolling, closed, redundant and singular.
MECHANISMS = (
    "pendulum", "rolling-disk", "slider-crank", "parallelogram", "four-bar", "folded-four-bars",
)  # fmt: skip
FIRST = (
    "jaxdae, forward", "jaxdae, reverse", "diffrax, reduced by hand, forward",
    "CasADi, IDAS, forward", "CasADi, IDAS, adjoint", "MuJoCo, differences", "MJX, forward",
    "Exudyn, differences", "Pinocchio, forward",
)  # fmt: skip


def suite(records: list[Row]) -> tuple[str, Any]:
    """Error of first derivatives against the time of a run with them, for some mechanisms."""
    result, axes = figure(len(MECHANISMS), 2, 2.6)
    for ax, name in zip(axes, MECHANISMS, strict=True):
        known = {x["code"]: x["rows"] for x in records if x["mechanism"] == name}
        points = lambda code, known=known: [  # noqa: E731
            (1e3 * x["seconds"], x["first"]) for x in known.get(code, ()) if x.get("first")
        ]
        lines(ax, FIRST, points)
        ax.set(title=name, xlabel="time [ms]", ylabel="error of first derivatives")
    legend(result, axes)
    return "Error of first derivatives against the time of a run, for six mechanisms", result


PLOTS: dict[str, Callable[[list[Row]], tuple[str, Any]]] = {
    "single_run": work_precision,
    "work_precision": lambda rows: work_precision(rows, WORK_SHOWN),
    "scaling": lengths,
    "suite": suite,
}
