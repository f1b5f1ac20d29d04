"""Where faces come from: free families found on this machine, with their licences; no font file is in the repository.

Sources, in this order: a folder that the caller names, font packages of PyPI (their ``fonts_ttf`` entry points), and
the system's font folder. The face that Pillow brings along (Aileron, CC0) always exists.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import entry_points
from pathlib import Path

#: Families that the packages of the extra ``demo`` bring, held-out ones excepted.
DEMO_FAMILIES = ("Roboto", "Source Sans Pro", "Source Serif Pro", "Caladea")
SYSTEM_FOLDER = Path("/usr/share/fonts")
BUILT_IN = "built-in"


@dataclass(frozen=True)
class Family:
    """One family: its licence, the files of it that are used, and whether it is kept for evaluation."""

    name: str
    licence: str
    files: tuple[str, ...]
    held_out: bool = False


def _styles(stem: str, styles: str) -> tuple[str, ...]:
    return tuple(f"{stem}{style}" for style in styles.split())


_USUAL = "-Regular -Bold -Italic -BoldItalic"
_LIBERATION = "GPL-2.0 with font exception (1.x) or OFL-1.1 (2.x)"
FAMILIES: tuple[Family, ...] = (
    Family("Roboto", "Apache-2.0", _styles("Roboto", f"{_USUAL} -Light -Medium")),
    Family("Roboto Condensed", "Apache-2.0", _styles("RobotoCondensed", "-Regular -Bold")),
    Family("Source Sans Pro", "OFL-1.1", _styles("SourceSansPro", "-Regular -Bold -It -Semibold -Light")),
    Family("Source Serif Pro", "OFL-1.1", _styles("SourceSerifPro", "-Regular -Bold -It -Semibold")),
    Family("Caladea", "Apache-2.0", _styles("Caladea", _USUAL)),
    Family("Manrope", "OFL-1.1", _styles("Manrope", "-Regular -Bold -Medium")),
    Family("Hanken Grotesk", "OFL-1.1", _styles("HankenGrotesk", "-Regular -Bold -Italic -Medium")),
    Family("Red Hat Display", "OFL-1.1", _styles("RedHatDisplay", "-Regular -Bold -Italic -Medium")),
    Family("DejaVu Sans", "Bitstream-Vera", ("DejaVuSans", "DejaVuSans-Bold", "DejaVuSans-Oblique")),
    Family("DejaVu Sans Condensed", "Bitstream-Vera", ("DejaVuSansCondensed", "DejaVuSansCondensed-Bold")),
    Family("DejaVu Sans Mono", "Bitstream-Vera", ("DejaVuSansMono", "DejaVuSansMono-Bold")),
    Family("DejaVu Serif", "Bitstream-Vera", ("DejaVuSerif", "DejaVuSerif-Bold", "DejaVuSerif-Italic")),
    Family("Liberation Sans", _LIBERATION, _styles("LiberationSans", _USUAL)),
    Family("Liberation Sans Narrow", _LIBERATION, _styles("LiberationSansNarrow", "-Regular -Bold")),
    Family("Liberation Serif", _LIBERATION, _styles("LiberationSerif", _USUAL)),
    Family("Liberation Mono", _LIBERATION, _styles("LiberationMono", _USUAL)),
    Family("Open Sans", "Apache-2.0", _styles("OpenSans", f"{_USUAL} -Semibold -Light")),
    Family("Noto Sans", "OFL-1.1", _styles("NotoSans", "-Regular -Bold")),
    Family("Noto Serif", "OFL-1.1", _styles("NotoSerif", "-Regular -Bold -Italic")),
    Family("Cabin", "OFL-1.1", _styles("Cabin", "-Regular -Bold -Italic")),
    Family("Inconsolata", "OFL-1.0 or OFL-1.1, by version", ("Inconsolata",)),
    Family("Hack", "MIT and Bitstream-Vera", _styles("Hack", "-Regular -Bold")),
    Family("Linux Libertine", "OFL-1.1 or GPL-2.0", _styles("LinLibertine", "_R _RB _RI")),
    Family("Linux Biolinum", "OFL-1.1 or GPL-2.0", _styles("LinBiolinum", "_R _RB")),
    Family("FreeSans", "GPL-3.0 with font exception", ("FreeSans", "FreeSansBold")),
    Family("FreeSerif", "GPL-3.0 with font exception", ("FreeSerif",)),
    Family("FreeMono", "GPL-3.0 with font exception", ("FreeMonoBold",)),
    Family("Lato", "OFL-1.1", _styles("Lato", "-Regular -Bold -Italic -Light"), held_out=True),
    Family("Carlito", "OFL-1.1", _styles("Carlito", _USUAL), held_out=True),
    Family("Noto Sans Italic", "OFL-1.1", _styles("NotoSans", "-Italic -BoldItalic"), held_out=True),
    Family("Gentium Basic", "OFL-1.1", ("GenBasR", "GenBasB", "GenBasI"), held_out=True),
)


@dataclass(frozen=True, order=True)
class Face:
    """One face: where its file is (``BUILT_IN`` for Pillow's own) and the family it belongs to."""

    path: str
    family: str


def _package_files() -> Iterable[Path]:
    for point in entry_points(group="fonts_ttf"):
        yield from (Path(path) for path in point.load().values())
    for point in entry_points(group="fonts_otf"):
        yield from (Path(path) for path in point.load().values())


@lru_cache(maxsize=4)
def _files_by_stem(folder: Path | None) -> dict[str, Path]:
    found: dict[str, Path] = {}
    named = sorted(folder.rglob("*.[to]tf")) if folder else []
    system = sorted(SYSTEM_FOLDER.rglob("*.[to]tf")) if SYSTEM_FOLDER.is_dir() else []
    for path in (*named, *_package_files(), *system):
        found.setdefault(path.stem, path)
    return found


@lru_cache(maxsize=8)
def find_faces(held_out: bool = False, folder: Path | None = None) -> tuple[Face, ...]:
    """Faces of this machine, either those to train with (never empty) or those kept for evaluation (may be empty)."""
    files = _files_by_stem(folder)
    faces = {
        Face(str(files[stem]), family.name)
        for family in FAMILIES
        if family.held_out == held_out
        for stem in family.files
        if stem in files
    }
    if not held_out:
        faces.add(Face(BUILT_IN, "Aileron"))
    return tuple(sorted(faces))


@lru_cache(maxsize=1)
def package_faces() -> tuple[Face, ...]:
    """The faces of the extra ``demo`` and Pillow's own, in the same order on any machine.

    What else a machine has installed makes no difference, so the same seeds draw the same pictures everywhere.
    """
    files = {path.stem: path for path in _package_files()}
    families = [family for family in FAMILIES if family.name in DEMO_FAMILIES]
    faces = [Face(str(files[stem]), family.name) for family in families for stem in family.files if stem in files]
    return (*faces, Face(BUILT_IN, "Aileron"))
