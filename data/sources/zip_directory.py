"""The list of members at the end of a zip, entry by entry: zipfile holds all of it, which for a million takes 600 MB.

Numbers are little-endian. An entry's ``orig_filename`` is the bytes of its name as code page 437, which any bytes are,
whatever its flags say.
"""

from __future__ import annotations

import io
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO
from zipfile import BadZipFile, ZipExtFile, ZipInfo

_END = struct.Struct("<4s4H2LH")
_END_64_LOCATOR = struct.Struct("<4sLQL")
_END_64 = struct.Struct("<4sQ2H2L4Q")
_ENTRY = struct.Struct("<4s4B4HL2L5H2L")
_MEMBER = struct.Struct("<4s5H3L2H")
_END_MARK, _LOCATOR_MARK, _END_64_MARK, _ENTRY_MARK = b"PK\5\6", b"PK\6\7", b"PK\6\6", b"PK\1\2"
_MEMBER_MARK = b"PK\3\4"
_LONGEST_COMMENT = (1 << 16) - 1
#: Of the flags: patched data, strong encryption.
_NOT_READ = 0x20 | 0x40
_IN_EXTRA, _ZIP64_EXTRA = 0xFFFFFFFF, 1
_LONGEST_ENTRY_BYTES = _ENTRY.size + 3 * ((1 << 16) - 1)
_CHUNK_BYTES = 1 << 18


@dataclass(frozen=True)
class Directory:
    """Where the list is: ``size`` bytes from ``start``. What stands before the zip itself shifts it by ``shift``."""

    file: BinaryIO
    start: int
    size: int
    shift: int
    #: As the end record has it: without zip64, what is over 65,535 is lost.
    count: int

    def entries(self, place: int = 0) -> Iterator[tuple[int, ZipInfo]]:
        """(place, entry) for the entry at ``place`` bytes into the list and all after it; raises BadZipFile.

        The file may be read elsewhere between two entries. Memory holds a piece of the list.
        """
        held, at = b"", 0
        while place < self.size:
            behind = place + len(held) - at
            if len(held) - at < _LONGEST_ENTRY_BYTES and behind < self.size:
                self.file.seek(self.start + behind)
                held, at = held[at:] + self.file.read(min(_CHUNK_BYTES, self.size - behind)), 0
            fixed = held[at : at + _ENTRY.size]
            if len(fixed) < _ENTRY.size or not fixed.startswith(_ENTRY_MARK):
                raise BadZipFile(f"its list of members is damaged at byte {self.start + place:,}")
            fields = _ENTRY.unpack(fixed)
            names = held[at + _ENTRY.size : at + _ENTRY.size + sum(fields[12:15])]
            if len(names) < sum(fields[12:15]):
                raise BadZipFile(f"its list of members ends inside the entry at byte {self.start + place:,}")
            yield place, self._entry(fields, names)
            at, place = at + len(fixed) + len(names), place + len(fixed) + len(names)

    def open(self, info: ZipInfo) -> ZipExtFile:
        """The member of an entry; nothing else may be read from the file meanwhile. Raises what zipfile does."""
        if info.flag_bits & _NOT_READ:
            raise NotImplementedError("patched data or strong encryption")
        self.file.seek(info.header_offset)
        header = self.file.read(_MEMBER.size)
        if len(header) < _MEMBER.size:
            raise EOFError
        mark, *_, name_bytes, extra_bytes = _MEMBER.unpack(header)
        if mark != _MEMBER_MARK:
            raise BadZipFile(f"there is no member at byte {info.header_offset:,}")
        self.file.seek(name_bytes + extra_bytes, io.SEEK_CUR)
        return ZipExtFile(self.file, "r", info)

    def _entry(self, fields: tuple[int, ...], names: bytes) -> ZipInfo:
        """``fields`` of the fixed part, ``names`` is all behind it: name, extra fields, comment."""
        name, extra = names[: fields[12]], names[fields[12] : fields[12] + fields[13]]
        info = ZipInfo(name.decode("cp437"))
        info.create_version, info.create_system, info.extract_version, info.reserved = fields[1:5]
        info.flag_bits, info.compress_type = fields[5], fields[6]
        info.CRC, info.extra, info.external_attr = fields[9], extra, fields[17]
        sizes = [fields[11], fields[10], fields[18]]  # in the order in which the extra field has them
        if _IN_EXTRA in sizes:
            sizes = _from_extra(sizes, extra)
        info.file_size, info.compress_size = sizes[:2]
        info.header_offset = sizes[2] + self.shift
        return info


def _from_extra(sizes: list[int], extra: bytes) -> list[int]:
    """The numbers that 32 bits were too few for, from the zip64 field; raises BadZipFile where they are not there."""
    at = 0
    while at + 4 <= len(extra):
        kind, length = struct.unpack_from("<2H", extra, at)
        if kind == _ZIP64_EXTRA:
            held = extra[at + 4 : at + 4 + length]
            numbers = iter(struct.unpack(f"<{len(held) // 8}Q", held[: len(held) // 8 * 8]))
            return [next(numbers, size) if size == _IN_EXTRA else size for size in sizes]
        at += 4 + length
    return sizes  # without the field they are what they say


def find_directory(file: BinaryIO) -> Directory:
    """The list of members of ``file``, whatever stands before and behind the zip; raises BadZipFile."""
    length = file.seek(0, io.SEEK_END)
    tail_at = max(0, length - _END.size - _LONGEST_COMMENT)
    file.seek(tail_at)
    tail = file.read(length - tail_at)
    ends = [at.start() for at in re.finditer(re.escape(_END_MARK), tail) if at.start() + _END.size <= len(tail)]
    if not ends:
        raise BadZipFile("it is no zip, or is cut")
    # The mark may stand in the comment behind the record as well: the record is where the comment's length fits.
    fitting = (at for at in ends if at + _END.size + _END.unpack_from(tail, at)[7] == len(tail))
    end = next(fitting, ends[-1])
    _, disk, _, _, count, size, start, _ = _END.unpack_from(tail, end)
    place = tail_at + end
    if (found := _zip64(file, place)) is not None:
        place, count, size, start = found
    elif disk not in (0, 0xFFFF):
        raise BadZipFile("it is one of several files of an archive in parts")
    shift = place - size - start
    if place < size or shift < 0:
        raise BadZipFile("its list of members would lie before the file's first byte")
    return Directory(file, place - size, size, shift, count)


def _zip64(file: BinaryIO, end: int) -> tuple[int, int, int, int] | None:
    """(place of the zip64 end record, count, size and start of the list); None where there is no such record."""
    if end < _END_64_LOCATOR.size:
        return None
    file.seek(end - _END_64_LOCATOR.size)
    mark, _, told, disks = _END_64_LOCATOR.unpack(file.read(_END_64_LOCATOR.size))
    if mark != _LOCATOR_MARK:
        return None
    if disks > 1:
        raise BadZipFile("it is one of several files of an archive in parts")
    # Right before its locator, but for records with data of their own and none before the zip itself.
    for place in (end - _END_64_LOCATOR.size - _END_64.size, told):
        if 0 <= place <= end - _END_64.size:
            file.seek(place)
            fields = _END_64.unpack(file.read(_END_64.size))
            if fields[0] == _END_64_MARK:
                return place, fields[7], fields[8], fields[9]
    return None
