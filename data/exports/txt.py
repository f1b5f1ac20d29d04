"""``txt``: the answer of each row as a text file, beside the image or below a folder that mirrors the inputs.

``x/a.jpg`` has ``x/a.txt``; ``x/a.jpg.txt`` where ``x/a.png`` is there too (the whole rule is in ``names.py``). Of
several questions each has its file, ``x/a.<question id>.txt``. The text is prefix, answer and suffix, nothing more.
A file that exists is left alone, replaced, or the text is put on a line of its own after or before what it holds.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from urllib.parse import quote

from zellige.data.exports.base import Exported, ExportError, ExportOptions, IfExists, Row, WrongPlace, ok_rows
from zellige.data.exports.inputs import Identity, identities
from zellige.data.exports.names import Names, fitting
from zellige.data.exports.target import refuse_special
from zellige.data.exports.temporary import held, new_name, sweep
from zellige.data.run import Run
from zellige.data.uri import from_uri, is_file_uri

#: Errors that the next file would meet as well.
_HOPELESS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
#: What temporary files are named after: one name, because a folder is swept once and not for each of its texts.
_TEXTS = "*.txt"


def write(run: Run, dest: Path | None, options: ExportOptions, done: Exported) -> None:
    """Write one file a row, below ``dest`` or (None) beside the images; raises ExportError."""
    names = Names(run, ".txt")
    several = len(run.recipe.questions) > 1
    root = None if dest is None else _root(dest)
    inputs = {identity for identity, _ in identities(run, ".txt")}
    checked: set[Path] = set()
    for row in ok_rows(run, done):
        question = f".{_plain(row['question_id'])}" if several else ""
        name = fitting(names.short(row) + question, ".txt")
        path = _beside(row, name) if root is None else root / name
        if path is None:
            done.leave_out(row, "there is no place beside an image that is no file of its own; name a DEST")
            continue
        try:
            if path.parent not in checked:
                _ready(path.parent, root, checked)
            written = _put(path, options.prefix + row["answer"] + options.suffix, options.if_exists, inputs)
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
        if os.path.lexists(dest) and not dest.is_dir():
            refuse_special(dest, dest.lstat())
            raise WrongPlace(f"{dest} is a file; text files go to a folder, so name one")
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


def _ready(folder: Path, root: Path | None, checked: set[Path]) -> None:
    """Make the folder and free it of what a kill left; raises ValueError where a link in it leads out of ``root``."""
    if root is not None:
        # Before it is made: a link half way down would make folders elsewhere.
        if not folder.resolve().is_relative_to(root):
            raise ValueError(f"{folder} is a link that leads out of {root}")
        folder.mkdir(parents=True, exist_ok=True)
    sweep(folder, _TEXTS)
    if len(checked) > 10_000:
        checked.clear()
    checked.add(folder)


def _put(path: Path, text: str, if_exists: IfExists, inputs: set[Identity]) -> bool:
    """Write the file whole or not at all; False where one exists that is to be left alone.

    Raises ValueError for what is there and is a link, no regular file, or one of ``inputs``.
    """
    new = text.encode()
    if os.path.lexists(path):
        if if_exists == "skip":
            return False
        new = _joined(_bytes_of(path, inputs), new, if_exists)
    temporary = new_name(path.parent, _TEXTS)
    try:
        with temporary.open("xb") as file, held(temporary):
            file.write(new)
            file.flush()
            temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    return True


def _bytes_of(path: Path, inputs: set[Identity]) -> bytes:
    status = path.lstat()
    if not stat.S_ISREG(status.st_mode):
        raise ValueError(f"{path} is no regular file, and is left alone")
    if (status.st_dev, status.st_ino) in inputs:
        raise ValueError(f"{path} is an input of the run, and is left alone")
    return path.read_bytes()


def _joined(old: bytes, new: bytes, if_exists: IfExists) -> bytes:
    if if_exists == "overwrite":
        return new
    first, second = (old, new) if if_exists == "append" else (new, old)
    return first + (b"" if not first or first.endswith(b"\n") else b"\n") + second
