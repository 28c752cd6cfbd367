"""Group the log's accesses into requests, compute their costs, and count them by source line."""

from collections.abc import Collection
from typing import Protocol

import numpy as np

from normlab.sim.language.source import Line
from normlab.sim.tracing.counts import Counts
from normlab.sim.tracing.heat import Touched
from normlab.sim.tracing.log import Groups, grouped, sectors_of, wavefronts_of
from normlab.sim.tracing.request import Kept, Request
from normlab.sim.tracing.sites import RANK_SPACING, Site, with_second_parts


class Warps(Protocol):
    """What each warp's number stands for: a list, for one."""

    def __getitem__(self, number: int, /) -> tuple[tuple[int, int, int], int]:
        """Return the index of the warp's block, and the warp's position in it."""


class Tally:
    """The counters of every line, the requests that are kept to be shown, and the bytes that were touched."""

    def __init__(self, keep: Collection[int], sites: list[Site], warps: Warps):
        """Keep all requests of the lines numbered `keep`; `sites`, `warps`: what the log's numbers stand for."""
        self.lines: dict[Line, Counts] = {}
        self.kept: dict[tuple[Line, str, str, str], Kept] = {}  # (line, space, operation, array)
        # By allocation of global memory and not by array, because several arguments may be views of one allocation.
        self.touched: dict[range, Touched] = {}
        self._keep, self.sites, self.warps = keep, sites, warps

    def add(self, table: np.ndarray, groups: Groups | None = None) -> None:
        """Group accesses into requests, if they are not `groups` already, and count the requests by line.

        table: a row for each access, with the columns site, path, slot (32 times the warp's number + lane), address.
        """
        if not len(table):
            return
        # The scheduler's log has one access for a complex number. The vectorised engine's recorder brings `groups`, in
        # which both parts are there.
        if groups is None:
            table = with_second_parts(table, self.sites)
            groups = grouped(table)
        cost, fewest = self._costs(table, groups)
        # By site: a source line may have several, and a site has one array, one operation and one size.
        # Few sites and many requests: the loop is Python, and all that depends on the number of requests is NumPy.
        for number in np.unique(table[:, 0]):
            site, mine = self.sites[number], groups.site == number
            memory = self.counts_of(site.line).of(site.heat.space, site.operation)
            memory.requests += int(mine.sum())
            memory.lanes += int(groups.lanes[mine].sum())
            if site.heat.space == "shared":
                memory.wavefronts += int(cost[mine].sum())
                memory.fewest += int(fewest[mine].sum())
            else:
                memory.sectors += int(cost[mine].sum())
            self._count_elements(number, table[table[:, 0] == number, 3])
            self._keep_some(site, groups, np.flatnonzero(mine), cost, table)

    def _costs(self, table: np.ndarray, groups: Groups) -> tuple[np.ndarray, np.ndarray]:
        """Return what each request costs, and the fewest wavefronts that its lanes could have taken.

        Shared memory costs wavefronts, all other memory sectors; the fewest wavefronts stay 0 there.
        """
        # One entry for each access, from one for each site.
        size = np.array([site.size for site in self.sites])[table[:, 0]]
        shared = np.array([site.heat.space == "shared" for site in self.sites])[table[:, 0]]
        loads = np.array([site.operation == "ld" for site in self.sites])[table[:, 0]]
        cost, fewest = np.zeros((2, len(groups.lanes)), np.int64)
        if not shared.all():
            requests, part = groups.part(~shared)
            cost[requests] = sectors_of(part, table[~shared], size[~shared])
        if shared.any():
            requests, part = groups.part(shared)
            cost[requests], fewest[requests] = wavefronts_of(part, table[shared], size[shared], loads[shared])
        return cost, fewest

    def _count_elements(self, number: int, addresses: np.ndarray) -> None:
        """Count the accesses of site `number` by element of their array, and the bytes of global memory they touch."""
        site = self.sites[number]
        # The parts of a complex number are the same `Site` under two neighbouring numbers. Only the first part counts
        # as an access to the element, but both touch bytes.
        if number == 0 or self.sites[number - 1] is not site:
            offsets = addresses - site.origin
            # The same element of any block of the cluster counts as one.
            offsets = offsets % RANK_SPACING if site.heat.space == "dshared" else offsets
            site.heat.count(site.operation, offsets, site.size)
        if site.heat.space == "global":
            self._touched(site.allocation).touch(site.operation, addresses, site.size)

    def _touched(self, allocation: range) -> Touched:
        if allocation not in self.touched:
            self.touched[allocation] = Touched(allocation)
        return self.touched[allocation]

    def _keep_some(self, site: Site, groups: Groups, mine: np.ndarray, cost: np.ndarray, table: np.ndarray) -> None:
        """Keep the first and the costliest of the requests numbered `mine`, or all."""
        # By line and array, as a reader asks for them: several sites may share a key.
        key = site.line, site.heat.space, site.operation, site.heat.name
        if key not in self.kept:
            self.kept[key] = Kept(site.line.number in self._keep)
        # The numbers of requests say nothing about time; `first` does.
        in_time = mine[np.argsort(groups.first[mine])]
        # Only candidates are made into objects: a kernel makes millions of requests.
        if self.kept[key].all is None:
            # `argmax` finds the first of several that cost the same. The set has one entry if the first is it.
            in_time = in_time[sorted({0, int(np.argmax(cost[in_time]))})]
        for number in in_time:
            events = groups.events(number, table)
            block, warp = self.warps[int(events[0, 2]) // 32]
            self.kept[key].add(
                Request(
                    line=site.line,
                    operation=site.operation,
                    space=site.heat.space,
                    array=site.heat.name,
                    size=site.size,
                    origin=site.origin,
                    block=block,
                    warp=warp,
                    lanes=tuple((events[:, 2] % 32).tolist()),
                    addresses=tuple(events[:, 3].tolist()),
                ),
                () if groups.when is None else tuple(groups.when[number].tolist()),
            )

    def counts_of(self, line: Line) -> Counts:
        """Return the counters of a source line."""
        if line not in self.lines:
            self.lines[line] = Counts()
        return self.lines[line]
