"""What is visible within one interval and version.

The rule, over the segments that are present:

- a cover is *full* if it has a complete group, or if the maximal covers strictly inside it are full and together equal
  it;
- of each maximal cover, the segments that make it full are visible; if it is not full, those of its newest group;
- the chunk is *complete* if all maximal covers are full, and each core set of which a root is present is covered.

The covers of a legal history are nested or disjoint, so they form a forest with a node for each cover. A node counts
what its children lack; a change propagates upwards only as far as it changes an answer. So the cost of adding or
removing one segment of a group does not depend on the size of the group. The cost of adding or removing a node is
proportional to its number of children.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from operator import attrgetter

from samza_azure.segments.interval import Interval
from samza_azure.segments.partitions import Partitions
from samza_azure.segments.segment import Segment


class _Group:
    """What is present of one group of one cover and generation."""

    __slots__ = ("members", "present")

    def __init__(self, members: Partitions) -> None:
        self.members = members
        self.present: dict[int, Segment] = {}


class _Node:
    """One cover that is present: its groups by generation, and the maximal covers strictly inside it."""

    __slots__ = ("children", "complete", "cover", "covered", "gaps", "groups", "least", "parent", "root")

    def __init__(self, cover: Partitions) -> None:
        self.cover = cover
        self.least = cover.least
        self.parent: _Node | None = None
        self.root: Segment | None = None  # generation 0, which needs no group
        self.groups: dict[int, _Group] | None = None
        self.complete = -1  # the newest complete generation
        self.children: list[_Node] | None = None  # in the order of their least roots
        self.covered = 0  # roots in children
        self.gaps = 0  # children that are not full

    @property
    def is_full(self) -> bool:
        return self.complete >= 0 or (self.gaps == 0 and self.covered == len(self.cover))

    def shown(self) -> tuple[int, Iterable[Segment]]:
        """The generation of the group that this node shows, if it shows one, and the group's present segments."""
        generation = self.complete
        if generation < 0 and self.groups:
            generation = max(self.groups)
        if generation == 0:
            assert self.root is not None
            return 0, (self.root,)
        assert self.groups is not None
        return generation, self.groups[generation].present.values()

    def generations(self) -> Iterator[tuple[int, Iterable[Segment]]]:
        """What is present of each generation."""
        if self.root is not None:
            yield 0, (self.root,)
        for generation, group in (self.groups or {}).items():
            yield generation, group.present.values()


_LEAST = attrgetter("least")


class Chunk:
    """The segments of one interval and version. `add` and `remove` change it by one segment."""

    __slots__ = (
        "_cores",
        "_gaps",
        "_home",
        "_missing",
        "_nodes",
        "_top",
        "_visible",
        "interval",
        "segments",
        "version",
    )

    def __init__(self, interval: Interval, version: int) -> None:
        self.interval = interval
        self.version = version
        self.segments: dict[int, Segment] = {}  # by partition
        self._nodes: dict[Partitions, _Node] = {}  # covers of several roots
        self._home: dict[int, _Node] = {}  # by root: the innermost cover that it is in
        self._top: list[_Node] = []  # the maximal covers, in the order of their least roots
        self._gaps = 0  # maximal covers that are not full
        self._cores: dict[Partitions, int] = {}  # core sets, and how many of each set's roots are present
        self._missing: set[int] = set()  # roots of these that no cover has
        self._visible: tuple[Segment, ...] | None = None

    def __repr__(self) -> str:
        return f"Chunk({self.interval} version {self.version}, {len(self.segments)} segments)"

    @property
    def is_complete(self) -> bool:
        """Whether all of it can be read. An empty chunk is not complete."""
        return not self._gaps and not self._missing and bool(self.segments)

    @property
    def has_rows(self) -> bool:
        """Whether any of its segments has a file. A drop has none, nor has an interval that a REPLACE found empty."""
        return any(one.file is not None for one in self.segments.values())

    def visible(self) -> tuple[Segment, ...]:
        """The segments that are shown, whether or not they are complete."""
        if self._visible is None:
            found: list[Segment] = []
            waiting = self._top[::-1]
            while waiting:
                node = waiting.pop()
                if node.complete == 0:
                    found.append(node.root)  # type: ignore[arg-type]  # generation 0 is complete
                elif node.complete < 0 and node.is_full:
                    waiting.extend(reversed(node.children or ()))
                else:
                    found.extend(node.shown()[1])
            self._visible = tuple(found)
        return self._visible

    def overshadowed(self) -> list[Segment]:
        """The segments that a visible segment overshadows."""
        return [one for one, hidden in self._hidden() if hidden]

    def add(self, segment: Segment) -> bool:
        """Add one segment. Return False if it is present. Raise ValueError if no legal history has all of them."""
        if (present := self.segments.get(segment.partition)) is not None:
            if (present.covers, present.generation, present.group) == (
                segment.covers,
                segment.generation,
                segment.group,
            ):
                return False
            raise ValueError(f"{segment} is there already, with another cover, generation or group.")
        self._visible = None
        node = self._node(segment.covers)
        if node is None:
            if segment.generation == 0 and segment.partition not in self._home:
                self._plant_root(segment)
                return True
            node = self._plant(segment.covers)
        was_full = node.is_full
        if segment.generation == 0:
            node.root = segment
            node.complete = max(node.complete, 0)
            if len(segment.group) > 1:
                self._want(segment.group)
        else:
            self._join(node, segment)
        self._settle(node, was_full)
        self.segments[segment.partition] = segment
        return True

    def remove(self, partition: int) -> Segment | None:
        """Remove one segment and return it. Return None if it is not present."""
        segment = self.segments.pop(partition, None)
        if segment is None:
            return None
        self._visible = None
        node = self._node(segment.covers)
        assert node is not None
        was_full = node.is_full
        if segment.generation == 0:
            node.root = None
        else:
            assert node.groups is not None
            group = node.groups[segment.generation]
            del group.present[partition]
            if not group.present:
                del node.groups[segment.generation]
        if node.complete == segment.generation:
            node.complete = self._newest_complete(node)
        self._settle(node, was_full)
        if node.root is None and not node.groups:
            self._fell(node)
        if segment.generation == 0 and len(segment.group) > 1:
            self._want_no_more(segment.group)
        return segment

    # Groups.

    def _join(self, node: _Node, segment: Segment) -> None:
        if node.groups is None:
            node.groups = {}
        group = node.groups.get(segment.generation)
        if group is None:
            group = node.groups[segment.generation] = _Group(segment.group)
        elif group.members is not segment.group and group.members != segment.group:
            # Two compactions must never produce the same cover and generation.
            raise ValueError(
                f"{segment} of group {segment.group}: cover {segment.covers}, generation {segment.generation} "
                f"belongs to the group {group.members}."
            )
        group.present[segment.partition] = segment
        if len(group.present) == len(group.members) and segment.generation > node.complete:
            node.complete = segment.generation

    @staticmethod
    def _newest_complete(node: _Node) -> int:
        complete = 0 if node.root is not None else -1
        for generation, group in (node.groups or {}).items():
            if generation > complete and len(group.present) == len(group.members):
                complete = generation
        return complete

    # Core sets.

    def _want(self, core: Partitions) -> None:
        self._cores[core] = self._cores.get(core, 0) + 1
        if self._cores[core] == 1:
            self._missing.update(root for root in core if root not in self._home)

    def _want_no_more(self, core: Partitions) -> None:
        self._cores[core] -= 1
        if not self._cores[core]:
            del self._cores[core]
            self._missing.difference_update(core)

    # The forest.

    def _node(self, cover: Partitions) -> _Node | None:
        if len(cover) > 1:
            return self._nodes.get(cover)
        node = self._home.get(cover.least)
        return node if node is not None and len(node.cover) == 1 else None

    def _plant_root(self, segment: Segment) -> None:
        """A fast path of `_plant` and `add` for a root that is in no cover, as most new segments are."""
        node = _Node(segment.covers)
        node.root, node.complete = segment, 0
        root = segment.partition
        self._home[root] = node
        self._put(self._top, node)
        if self._missing:
            self._missing.discard(root)
        self.segments[root] = segment
        if len(segment.group) > 1:
            self._want(segment.group)

    def _plant(self, cover: Partitions) -> _Node:
        """Add a node for a new cover. Raise ValueError if the cover crosses another one."""
        parent = self._home.get(cover.least)
        while parent is not None and not cover < parent.cover:
            if not parent.cover <= cover:
                raise self._crossing(cover, parent)
            parent = parent.parent
        node = _Node(cover)
        node.parent = parent
        level = self._top if parent is None else parent.children
        inside = self._inside(cover, level or [])
        covered = sum(len(child.cover) for child in inside)
        bare = []
        if covered < len(cover):
            under = self._under(inside)
            bare = [root for root in cover if root not in under]
            for root in bare:
                if (home := self._home.get(root)) is not parent:
                    assert home is not None
                    raise self._crossing(cover, home)

        node.covered, node.gaps = covered, sum(not child.is_full for child in inside)
        if inside:
            node.children = inside
            self._move(level or [], inside, cover)
            for child in inside:
                child.parent = node
        for root in bare:
            self._home[root] = node
        if len(cover) > 1:
            self._nodes[cover] = node
        if parent is None:
            self._put(self._top, node)
            self._gaps += (not node.is_full) - node.gaps
            self._missing.difference_update(bare)
        else:
            was_full = parent.is_full
            if parent.children is None:
                parent.children = []
            self._put(parent.children, node)
            parent.covered += len(cover) - covered
            parent.gaps += (not node.is_full) - node.gaps
            self._settle(parent, was_full)
        return node

    def _fell(self, node: _Node) -> None:
        """Remove a node that has no segments left. Its children become its parent's."""
        parent, children = node.parent, node.children or []
        self._nodes.pop(node.cover, None)
        if node.covered < len(node.cover):
            for root in [root for root in node.cover if self._home[root] is node]:
                if parent is None:
                    del self._home[root]
                    if any(root in core for core in self._cores):
                        self._missing.add(root)
                else:
                    self._home[root] = parent
        for child in children:
            child.parent = parent
        if parent is None:
            self._take(self._top, node)
            self._gaps += node.gaps - (not node.is_full)
            self._spread(self._top, children)
        else:
            was_full = parent.is_full
            assert parent.children is not None
            self._take(parent.children, node)
            self._spread(parent.children, children)
            parent.covered += node.covered - len(node.cover)
            parent.gaps += node.gaps - (not node.is_full)
            self._settle(parent, was_full)

    def _settle(self, node: _Node, was_full: bool) -> None:
        """Update the ancestors after a node has become full, or is no longer full."""
        while (is_full := node.is_full) != was_full:
            more = -1 if is_full else 1
            parent = node.parent
            if parent is None:
                self._gaps += more
                return
            was_full = parent.is_full
            parent.gaps += more
            node = parent

    @staticmethod
    def _put(level: list[_Node], node: _Node) -> None:
        if not level or level[-1].least < node.least:
            level.append(node)
        else:
            level.insert(bisect_left(level, node.least, key=_LEAST), node)

    @staticmethod
    def _take(level: list[_Node], node: _Node) -> None:
        del level[bisect_left(level, node.least, key=_LEAST)]

    @staticmethod
    def _spread(level: list[_Node], children: list[_Node]) -> None:
        """Put the children of a removed node in its place. If its cover has gaps, other nodes may be in between."""
        if children:
            level.extend(children)
            level.sort(key=_LEAST)

    def _inside(self, cover: Partitions, level: list[_Node]) -> list[_Node]:
        """The nodes of a level whose covers lie strictly inside a cover."""
        if not level or level[-1].least < cover.least:
            return []
        found: list[_Node] = []
        for start, end in cover.runs:
            first = bisect_left(level, start, key=_LEAST)
            found += level[first : bisect_left(level, end, first, key=_LEAST)]
        for node in found:
            if len(node.cover) > 1 and not node.cover <= cover:
                raise self._crossing(cover, node)
        return found

    @staticmethod
    def _move(level: list[_Node], nodes: list[_Node], cover: Partitions) -> None:
        """Take nodes out of a level: all those whose least roots lie in the cover."""
        for start, end in reversed(cover.runs):
            first = bisect_left(level, start, key=_LEAST)
            del level[first : bisect_left(level, end, first, key=_LEAST)]

    @staticmethod
    def _under(nodes: list[_Node]) -> set[int]:
        return {root for node in nodes for root in node.cover}

    def _crossing(self, cover: Partitions, node: _Node) -> ValueError:
        return ValueError(
            f"{self.interval} version {self.version}: the covers {cover} and {node.cover} share roots, and neither "
            "holds the other. No legal history has both."
        )

    # What is hidden.

    def _hidden(self) -> Iterator[tuple[Segment, bool]]:
        """All that is not visible, and whether a visible segment overshadows it."""
        waiting = [(node, -1) for node in self._top]  # -1: nothing visible lies over it
        while waiting:
            node, over = waiting.pop()
            shown = -1
            if over < 0 and (node.complete >= 0 or not node.is_full):
                shown = node.shown()[0]
            for generation, segments in node.generations():
                if generation != shown:
                    for segment in segments:
                        yield segment, generation < max(over, shown)
            waiting += [(child, max(over, shown)) for child in node.children or ()]
