"""Packages that only some requests need, and what is said where one of them is missing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from hookscope.errors import EnvironmentFault


@contextmanager
def optional_package(package: str, extra: str, need: str) -> Iterator[None]:
    """Turn a failed import of ``package`` into an error that names the ``extra`` which installs it.

    ``need`` is what needs it, as the subject of the sentence.

    >>> with optional_package("unheard_of", "plot", "A picture"):
    ...     import unheard_of
    Traceback (most recent call last):
    hookscope.errors.EnvironmentFault: A picture needs the package unheard_of, which is not \
installed. Install it: python -m pip install "hookscope[plot]"
    """
    try:
        yield
    except ImportError as error:
        if (error.name or package).partition(".")[0] != package:
            raise
        missing = isinstance(error, ModuleNotFoundError)
        reason = "is not installed" if missing else f"cannot be imported: {error}"
        raise EnvironmentFault(
            f"{need} needs the package {package}, which {reason}.",
            f'Install it: python -m pip install "hookscope[{extra}]"',
        ) from error


def require_nibabel() -> None:
    """Raise EnvironmentFault if nibabel, which writes NIfTI files, is missing."""
    with optional_package("nibabel", "nifti", "A NIfTI file"):
        import nibabel  # noqa: F401


def package_folders(package: str) -> list[str]:
    """Return the folders of a package, without importing it; none if it is not installed."""
    spec = find_spec(package)
    return list((spec.submodule_search_locations if spec else None) or ())
