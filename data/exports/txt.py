"""``txt``: the answer of each row as a text file, beside the image or below a folder that mirrors the inputs.

``x/a.jpg`` has ``x/a.txt``; ``x/a.jpg.txt`` where ``x/a.png`` is there too (the whole rule is in ``names.py``). Of
several questions each has its file, ``x/a.<question id>.txt``. The text is prefix, answer and suffix, nothing more.
A file that exists is left alone, replaced, or the text is put on a line of its own after or before what it holds.
"""

from __future__ import annotations

import errno
import os
import secrets
from pathlib import Path
from urllib.parse import quote

from zellige.data.exports.base import Exported, ExportError, ExportOptions, IfExists, Row, ok_rows
from zellige.data.exports.names import Names
from zellige.data.run import Run
from zellige.data.uri import from_uri, is_file_uri

#: Errors that the next file would meet as well.
_HOPELESS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)


def write(run: Run, dest: Path | None, options: ExportOptions, done: Exported) -> None:
    """Write one file a row, below ``dest`` or (None) beside the images; raises ExportError."""
    names = Names(run, ".txt")
    several = len(run.recipe.questions) > 1
    root = None if dest is None else _root(dest)
    checked: set[Path] = set()
    for row in ok_rows(run, done):
        name = names.short(row) + (f".{_plain(row['question_id'])}" if several else "") + ".txt"
        path = _beside(row, name) if root is None else root / name
        if path is None:
            done.leave_out(row, "there is no place beside an image that is no file of its own; name a DEST")
            continue
        try:
            if root is not None:
                _make_folder(path, root, checked)
            written = _put(path, options.prefix + row["answer"] + options.suffix, options.if_exists)
        except (OSError, ValueError) as error:
            if isinstance(error, OSError) and error.errno in _HOPELESS:
                raise ExportError(f"{path} cannot be written ({error.strerror}); what was written stays") from error
            done.leave_out(row, "its text file cannot be written", getattr(error, "strerror", None) or str(error))
            continue
        if not written:
            done.left_out["its text file exists"] += 1
            continue
        done.rows += 1
        done.files += 1


def _root(dest: Path) -> Path:
    try:
        dest.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ExportError(f"{dest} cannot be made ({error.strerror}); name another folder") from error
    return dest.resolve()


def _plain(question_id: str) -> str:
    """Without a dot, so that image and question can be told apart."""
    return quote(question_id, safe="").replace(".", "%2E")


def _beside(row: Row, name: str) -> Path | None:
    if row["ordinal"] is not None or row["member"] is not None or not is_file_uri(row["uri"]):
        return None
    return Path(os.fsdecode(from_uri(row["uri"]))).with_name(name.rpartition("/")[2])


def _make_folder(path: Path, root: Path, checked: set[Path]) -> None:
    """Make the folder of ``path``; raises ValueError where a link in it leads out of ``root``."""
    folder = path.parent
    if folder in checked:
        return
    # Before it is made: a link half way down would make folders elsewhere.
    if not folder.resolve().is_relative_to(root):
        raise ValueError(f"{folder} is a link that leads out of {root}")
    folder.mkdir(parents=True, exist_ok=True)
    if len(checked) > 10_000:
        checked.clear()
    checked.add(folder)


def _put(path: Path, text: str, if_exists: IfExists) -> bool:
    """Write the file whole or not at all; False where one exists that is to be left alone."""
    new = text.encode()
    if if_exists == "skip" and (path.exists() or path.is_symlink()):
        return False
    if if_exists in ("append", "prepend") and path.exists():
        old = path.read_bytes()
        first, second = (old, new) if if_exists == "append" else (new, old)
        new = first + (b"" if not first or first.endswith(b"\n") else b"\n") + second
    temporary = path.with_name(f".{secrets.token_hex(8)}.tmp")
    try:
        with temporary.open("xb") as file:
            file.write(new)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    return True
