"""`jaxdae doctor FILE`: loops of a file for MuJoCo, their drift, and what lowers it."""

from jaxdae.multibody import doctor


def run(options) -> int:
    """Run the command; 0 when the file was examined, 1 when a file was wanted and none written."""
    try:
        report = doctor(
            options.file,
            end=options.end,
            key=options.key,
            write=options.write,
            show=lambda text: print(text, flush=True),
        )
    except ImportError as error:  # MuJoCo is no dependency
        raise ValueError(str(error)) from error
    return 1 if options.write is not None and report.written is None else 0
