"""The plan of a run: the items that were listed before the first was answered, and what retries found since.

A retry that opens what had failed while planning may find more items than the one that stood for it. The first of them
takes its place, the others come behind all that was planned, in shards of their own: so no shard ever changes its size,
and no part that is there becomes too short.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import replace

from zellige.data.folder import Folder
from zellige.data.planfile import PlanFile
from zellige.data.retries import Places, RetryFolder
from zellige.data.schema import Item

#: Lists what is found at an address now; see ``Source.again``.
Again = Callable[[str], Iterator[Item]]


class Plan:
    """All items of a run in shards. As many processes may hold one as like; what others add is seen at once."""

    def __init__(self, folder: Folder, shard_items: int, retries: RetryFolder) -> None:
        self._first = PlanFile(folder, "items.parquet", shard_items)
        self._shard_items, self._retries = shard_items, retries
        self._added: dict[str, PlanFile] = {}

    def exists(self) -> bool:
        return self._first.exists()

    def write(self, items: Iterable[Item]) -> int:
        """Store the first listing, whole or not at all, in bounded memory; how many items there were."""
        return self._first.write(items)

    def count(self) -> int:
        """How many items there are."""
        return sum(file.count() for file in self._files())

    def shard_count(self) -> int:
        return sum(file.shard_count() for file in self._files())

    def shard_size(self, index: int) -> int:
        """How many items a shard holds, without reading them."""
        file, first = self._file_of(index)
        return file.shard_size(index - first)

    def shard_sizes(self) -> list[int]:
        """How many items each shard holds."""
        return [size for file in self._files() for size in file.shard_sizes()]

    def shard(self, index: int) -> tuple[Item, ...]:
        """The items of one shard; raises IndexError where there is no such shard."""
        file, first = self._file_of(index)
        items = list(file.shard(index - first))
        for retry in self._retries.all().values():
            for place, item in retry.replaced.get(index, {}).items():
                items[place] = item
        return tuple(items)

    def items(self) -> Iterator[Item]:
        """All items in order, in bounded memory."""
        return (item for _, _, item in self.placed())

    def placed(self) -> Iterator[tuple[int, int, Item]]:
        """(shard, place in it, item) for all items in order."""
        first, retries = 0, list(self._retries.all().values())
        for file in self._files():
            for number, item in enumerate(file.items()):
                shard, place = first + number // self._shard_items, number % self._shard_items
                for retry in retries:
                    item = retry.replaced.get(shard, {}).get(place, item)
                yield shard, place, item
            first += file.shard_count()

    def write_added(self, name: str, items: Iterable[Item]) -> int:
        """Store items that a retry adds, in the form of the first listing; how many there were. No file for none."""
        count = PlanFile(self._retries.folder, name, self._shard_items).write(items)
        if not count:
            self._retries.folder.remove(name)
        return count

    def _files(self) -> list[PlanFile]:
        names = [retry.added for retry in self._retries.all().values() if retry.added is not None]
        return [self._first, *map(self._added_file, names)]

    def _added_file(self, name: str) -> PlanFile:
        return self._added.setdefault(name, PlanFile(self._retries.folder, name, self._shard_items))

    def _file_of(self, index: int) -> tuple[PlanFile, int]:
        """The file that holds a shard, and the number of its first one."""
        first = 0
        for file in self._files():
            if index < first + file.shard_count():
                return file, first
            first += file.shard_count()
        raise IndexError(f"shard {index}: there are {first} shards")


class SecondLook:
    """Opens again what failed while planning as one of ``kinds``.

    ``failed`` are the items that did, by address and name. ``added`` streams the items that are new to the run and take
    nobody's place; once it is through, ``replaced`` has those that take the places of failed ones. ``room`` is how many
    may be added (None: any number).
    """

    def __init__(self, plan: Plan, kinds: Collection[str], again: Again, room: int | None) -> None:
        self._again, self._room = again, room
        self.replaced: Places = {}
        self.failed: dict[str, dict[str, tuple[int, int, Item]]] = {}
        for shard, place, item in plan.placed():
            if item.error_kind in kinds:
                self.failed.setdefault(item.uri, {})[item.item_id] = (shard, place, item)
        # What the run has already is not asked about twice; digests keep millions small.
        self._known = {bytes.fromhex(item.item_id) for item in plan.items()} if self.failed else set()

    def added(self) -> Iterator[Item]:
        for uri, failed in self.failed.items():
            for item in self._of(uri, failed):
                if self._room is not None:
                    if self._room <= 0:
                        continue
                    self._room -= 1
                yield item

    def _of(self, uri: str, failed: dict[str, tuple[int, int, Item]]) -> Iterator[Item]:
        # What a list said beside the file's name goes to whatever is found in the file.
        kept = next((i.metadata for _, _, i in failed.values() if i.member is None and i.ordinal is None), ())
        waiting, held = dict(failed), list[Item]()
        for item in self._again(uri):
            item = replace(item, metadata=(*item.metadata, *(pair for pair in kept if pair not in item.metadata)))
            if (was := waiting.pop(item.item_id, None)) is not None:
                self._put(was, item)
            elif (digest := bytes.fromhex(item.item_id)) not in self._known:
                self._known.add(digest)
                held.append(item)
            while len(held) > len(waiting):
                yield held.pop()
        for was in waiting.values():
            # Not an image, and no longer a failure: a tar, say, that lacked its end and is whole now.
            gone = replace(was[2], error_kind=None, error="opened again, and what it holds is in the run already")
            self._put(was, held.pop(0) if held else gone)
        yield from held

    def _put(self, was: tuple[int, int, Item], item: Item) -> None:
        shard, place, before = was
        if item != before:
            self.replaced.setdefault(shard, {})[place] = item
