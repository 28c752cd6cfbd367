"""Write kernels at random, and compare what both engines make of them, bit for bit.

    python -m sim.vectorised.kernels_at_random 600 [seed] [--strict] [--check] [--traces] [--sanitize] [--schedules] \
        [--clusters]

does so for 600 seconds (with `tests` on the path) and prints the source of a kernel on which the engines differ.
--strict: errors of the vectorised engine itself come out; --check: variables have the compiler's types; --traces: the
engines also make the same traces; --sanitize: the scheduler finds nothing where the other engine has proved that there
is nothing to find; --schedules: threads take turns in other orders; --clusters: kernels have clusters of blocks, and
teams of warps.

The kernels have nested loops, divergence, break, continue and return, shared, dynamic and local memory, barriers (in
branches that whole blocks take, too) and grid syncs, shuffles, votes and matches of whole warps and of halves, atomics,
device functions, tuples, complex numbers, records in all kinds of memory and numbers of several types; some have races,
on purpose.
"""

import linecache
import random
import sys
import time
from itertools import count

import numpy as np
from numba import cuda
from sim.vectorised.engines import VECTORISED, bits_of, lines_of, outcomes, traced

from normlab import engine as intrinsics
from normlab.sim import SimulationError, sanitize
from normlab.sim.vectorised import engine

_numbers = count()
ENGINES = "vectorised", "scheduler"
FLOATS, INTS, COMPLEX = ("f0", "f1", "f2"), ("i0", "i1", "i2"), ("z0", "z1")
RECORD = np.dtype([("a", np.float32), ("b", np.int32), ("c", np.float64), ("v", np.float32, 2), ("z", np.complex64)])


INTEGERS = (
    *("(`I` + `I`)", "(`I` - `I`)", "(`I` * `I`)", "(`I` // `I`)", "(`I` % `I`)", "(`I` & `I`)", "(`I` ^ `I`)"),
    *("(`I` | `I`)", "(`I` >> #)", "(`I` << #)", "(-`I`)"),
    *("max(`I`, `I`)", "min(`I`, `I`)", "int32(`I`)", "uint8(`I`)"),
    *("uint32(`I`)", "(`I` if `C` else `I`)", "k[abs(int64(`I`)) % 5]"),
    *("abs(`I`)", "int32(`F`)", "helper_int(`I`, `I`)"),
    *("cuda.popc(`I`)", "int64(`I` > `I`)", "(`I` // 3)", "(`I` % 7)", "(`I` * 2)", "cuda.selp(`C`, `I`, `I`)"),
    *("pair(`I`, `F`)[0]", "(3, `I`, t)[1]", "uint64(`I`)", "int16(`I`)", "nested(`I`, `F`)", "(~`I`)"),
    *("m[abs(int64(`I`)) % 2, abs(int64(`I`)) % 3]", "g[i].b", "(`I` + g[i].b)", "(g[i].b * g[i].b)", "p[t].b"),
)
FLOATINGS = (
    *("(`F` + `F`)", "(`F` - `F`)", "(`F` * `F`)", "(`F` / `F`)", "(`F` * `I`)", "max(`F`, `F`)", "min(`F`, `F`)"),
    *("float32(`F`)", "math.sqrt(abs(`F`))", "math.exp(-abs(`F`))"),
    *("(`F` if `C` else `F`)", "helper(`F`, `F`)", "(-`F`)"),
    *("math.floor(`F`)", "(`F` // `F`)", "(`F` % `F`)", "(`F` ** 2)", "l[abs(int64(`I`)) % 4]", "float64(`I`)"),
    *("cuda.fma(`F`, `F`, `F`)", "float16(`F`)", "(`F` / 3)", "(`I` / `I`)", "math.tanh(`F`)"),
    *("pair(`I`, `F`)[1]", "halved(`F`)", "float(`I`)", "(`F` + `I`)", "g[i].a", "g[i].c", "g[i].v[t % 2]", "p[t].c"),
    *("`Z`.real", "`Z`.imag", "abs(`Z`)"),
    *("np.sqrt(`F`)", "np.fmax(`F`, a)", "(a, float32(`F`), a)[abs(int64(`I`)) % 3]"),
)
COMPLEXES = (
    *("(`Z` + `Z`)", "(`Z` - `Z`)", "(`Z` * `Z`)", "(`Z` / `Z`)"),
    *("(`Z` * `F`)", "(`F` - `Z`)", "(`I` * `Z`)", "(-`Z`)"),
    *("complex(`F`, `F`)", "complex64(`Z`)", "complex128(`F`)", "`Z`.conjugate()", "np.conj(`Z`)", "cmath.sqrt(`Z`)"),
    *("(`Z` if `C` else `Z`)", "u[i % n]", "e[t % 2]", "(`Z` ** 2)", "g[i].z", "mirrored(`Z`)"),
)
CONDITIONS = (
    *("(`C` and `C`)", "(`C` or `C`)", "not `C`", "(`I` < `I` <= `I`)", "(`I` < `I`)", "(`I` >= `I`)", "(`I` == `I`)"),
    *("(`F` < `F`)", "(`F` >= `F`)", "(`F` != `F`)", "`I`", "(`Z` == `Z`)", "(`I` in (1, `I`, t))"),
)
HELPERS = """
def helper(p, q):
    if p > q:
        return p - q * 0.5
    return q

def helper_int(p, q):
    total = 0
    for c in range(3):
        if q == c:
            return p
        total += p
    return total

def pair(p, q):
    if p > 2:
        return p + 1, q
    return p, q * 2

def halved(p):
    turns = 0
    while p > 1 or p < -1:
        p *= 0.25
        turns += 1
        if turns == 5:
            break
    return p

def mirrored(p):
    if p.real > 1:
        return p.conjugate() - 1
    return 1j * p

def nested(p, q):
    total = p
    for c in range(4):
        for e in range(c):
            if e == 2:
                continue
            if q < c:
                return helper_int(total, e)
            total += e
    return total
"""


MEETINGS = (  # of clusters, and of teams: R is the rank of a block, TEAM a barrier of a team
    ("s[t] = `F`", "cluster_sync()", "f0 = load_from_block(s, (t + #) % W, R)", "cluster_sync()"),
    ("cluster_sync()", "store_to_block(d, (t + #) % W, `F`, 1 - cluster_rank())", "cluster_sync()", "f1 = d[t]"),
    ("cluster_sync()", "if cluster_rank() == #:", "    store_to_block(w, t, `I`, R)", "cluster_sync()"),
    ("cluster_arrive()", "i2 += `I`", "s[t] = `F`", "cuda.syncthreads()", "f2 += s[(t + #) % W]", "cluster_wait()"),
    ("d[t] = `F`", "cluster_arrive_shared()", "f2 = `F`", "cluster_wait()", "f1 += load_from_block(d, t, R)"),
    ("s[t] = `F`", "TEAM", "f0 = s[FIRST + (t + #) % SIZE]", "TEAM"),
    (
        *("for c8 in range(1 + 2 * (t // 32 == #)):", "    w[t] = `I`", "    TEAM"),
        *("    i0 += w[FIRST + (t ^ 5) % SIZE]", "    TEAM"),
    ),
    (
        *("if t < 32:", "    i1 += cuda.atomic.add(counts, 5, 1)", "    team_sync(1, 32)"),
        "    f1 = cuda.shfl_sync(0xFFFFFFFF, f1, #)",
    ),
    ("f1 = `F`", "for c8 in range(2):", "    TEAM", "    out[i, 2] = f1", "cuda.atomic.add(sums, 2, f1)"),
)
TEAMS = (  # which number each thread's team has, its first thread, and its size
    ("t // 32 + 1", "t // 32 * 32", "32"), ("1", "0", "W"),
    ("(t >= 32) + 3", "32 * (t >= 32)", "32 + (t >= 32) * (W - 64)"),
)  # fmt: skip
RECORDS = (
    *("p, o = cuda.shared.array(W, RECORD), cuda.local.array(2, RECORD)", "p[t], o[0] = g[i], g[i]", "o[1] = o[0]"),
)


class Writer:
    """Writes one kernel."""

    def __init__(self, seed, clusters=False):
        self.random = random.Random(seed)
        self.lines, self.cluster = [], 1 + clusters
        self.threads = self.random.choice([16, 32, 33, 64, 96])
        self.blocks = self.random.choice([1, 2, 3])
        if clusters:
            self.threads, self.blocks = self.choose(64, 96), self.choose(2, 4)
        self.racy = self.random.random() < 0.15
        self.columns = self.random.choice([self.threads, self.threads, 1, 8 if self.threads % 8 == 0 else 3])
        self.loops = 0
        self.records = bool(seed % 2)  # a traced kernel with records is the scheduler's

    def of(self, templates):
        """Return one of the templates of expressions."""
        return self.choose(*(one for one in templates if self.records or ("g[i]" not in one and "p[t]" not in one)))

    def choose(self, *options):
        return self.random.choice(options)

    def line(self, depth, text):
        self.lines.append("    " * depth + text)

    # --- expressions -------------------------------------------------------------------------------------------------

    def filled(self, template, depth):
        """Return a template with expressions put in: I for an integer, F for a float, C for a condition."""
        made = {"I": self.integer, "F": self.floating, "C": self.condition, "Z": self.complex}
        return "".join(made[part](depth + 1) if part in made else part for part in template.split("`"))

    def integer(self, depth=0):
        r = self.random
        if depth > 2 or r.random() < 0.3:
            return self.choose(*INTS, "t", "i", "b", "n", str(r.randint(-3, 9)), "y[i % n]", f"y[{r.randint(0, 5)}]")
        return self.filled(self.of(INTEGERS), depth).replace("#", str(r.randint(0, 5)))

    def floating(self, depth=0):
        r = self.random
        if depth > 2 or r.random() < 0.3:
            return self.choose(
                *FLOATS, "x[i % n]", "z[i % n]", "h[i % n]", "a", f"{r.randint(-9, 9) / 4}", "l[0]", "l[3]"
            )
        return self.filled(self.of(FLOATINGS), depth)

    def complex(self, depth=0):
        if depth > 2 or self.random.random() < 0.3:
            return self.choose(*COMPLEX, "u[i % n]", "1j", "(2 - 1j)", "e[1]")
        return self.filled(self.of(COMPLEXES), depth)

    def condition(self, depth=0):
        if depth > 2:
            return self.choose("t < 9", "i0 > 3", "f0 < 1", "t % 2 == 0", "b == 1", "y[i % n] > 0")
        return self.filled(self.choose(*CONDITIONS), depth)

    # --- statements --------------------------------------------------------------------------------------------------

    def body(self, depth, many, uniform, loop=False):
        """Write statements; `uniform`: all threads of a block are here."""
        for _ in range(self.random.randint(1, many)):
            self.statement(depth, uniform, loop)

    def statement(self, depth, uniform, loop):
        if self.cluster > 1 and depth == 1 and self.random.random() < 0.4:
            self.meeting_of_clusters()
        kind = self.random.random()
        if kind < 0.3 or depth > 4:
            self.assignment(depth)
        elif kind < 0.45:
            self.line(depth, f"if {self.condition()}:")
            self.body(depth + 1, 3, False, loop)
            if self.random.random() < 0.5:
                self.line(depth, "else:")
                self.body(depth + 1, 3, False, loop)
        elif kind < 0.6 and self.loops < 4:
            self.loop(depth, uniform)
        elif kind < 0.63 and loop:
            self.line(depth, f"if {self.condition()}:")
            self.line(depth + 1, self.choose("break", "continue"))
        elif kind < 0.65 and not uniform:
            self.line(depth, f"if {self.condition()}:")
            self.line(depth + 1, "return")
        elif kind < 0.72:
            self.line(depth, f"l[{self.choose('0', '3', 'abs(int64(i0)) % 4')}] = {self.floating()}")
        elif kind < 0.74 and self.records:
            self.record(depth)
        elif kind < 0.78:
            self.atomic(depth)
        elif uniform and depth == 1 and kind < 0.79:
            for text in (
                f"out[i, 1] = {self.floating()}", "cuda.cg.this_grid().sync()",
                f"f1 = out[(i + {self.random.randint(0, 99)}) % (W * cuda.gridDim.x), 1]", "cuda.cg.this_grid().sync()",
            ):  # fmt: skip
                self.line(depth, text)
        elif uniform and kind < 0.84:
            self.line(depth, f"if {self.choose('b == 1', 'n > 3', 'y[0] > 0', 'b % 2 == 0 and x[3] > 0')}:")
            self.body(depth + 1, 3, True, False)
        elif uniform and kind < 0.88 and self.threads % 32 == 0:
            self.line(depth, f"if {self.choose('t // 32 == 1', 't // 32 != 1', 't < 32')}:")
            self.meeting_of_a_warp(depth + 1)
            self.assignment(depth + 1)
        elif uniform:
            self.meeting(depth)
        else:
            self.assignment(depth)

    def assignment(self, depth):
        kind = self.random.random()
        if kind < 0.15:
            self.line(depth, f"{self.choose(*COMPLEX, 'e[t % 2]')} = {self.complex()}")
        elif kind < 0.2:
            self.line(depth, f"{self.choose(*COMPLEX)} {self.choose('+', '-', '*', '/')}= {self.complex(1)}")
        elif kind < 0.4:
            self.line(depth, f"{self.choose(*FLOATS)} = {self.floating()}")
        elif kind < 0.8:
            self.line(depth, f"{self.choose(*INTS)} = {self.integer()}")
        elif kind < 0.9:
            self.line(depth, f"{self.choose(*FLOATS)} {self.choose('+', '-', '*', '/')}= {self.floating(1)}")
        elif kind < 0.95:
            self.line(depth, f"{self.choose(*INTS)}, f0 = {self.integer(1)}, {self.floating(1)}")
        else:
            self.line(depth, f"out[i, {self.random.randint(0, 2)}] {self.choose('', '+', '*')}= {self.floating(1)}")

    def record(self, depth):
        """Write a store into a record of the thread's own."""
        self.line(depth, self.choose(
            f"g[i].a = {self.floating()}", f"g[i].b = {self.integer()}", f"g[i].c *= {self.floating(1)}",
            f"g[i].v[t % 2] = {self.floating()}", f"g[i]['z'] = {self.complex()}", f"o[t % 2].c = {self.floating()}",
            "g[i] = o[t % 2]", "o[1] = g[i]", f"o[0].b += {self.integer(1)}", "o[t % 2].v[:] = g[i].v",
        ))  # fmt: skip

    def loop(self, depth, uniform):
        self.loops += 1
        counter = f"c{depth}"
        kind = self.random.random()
        if kind < 0.1:
            self.line(depth, f"for {counter} in ({self.integer(2)}, 4, {self.integer(2)}):")
            self.body(depth + 1, 3, uniform, True)
        elif kind < 0.15:
            self.line(depth, f"for {counter}, f0 in enumerate({self.choose('x[:3]', 'z[i % n : i % n + 1]')}):")
            self.body(depth + 1, 3, uniform, True)
        elif kind < 0.5:
            bounds = self.choose("3", "t % 4", "1, 6, 2", "b, 5", "5, t % 3, -1", "i % 5, 4")
            self.line(depth, f"for {counter} in range({bounds}):")
            self.body(depth + 1, 3, uniform and bounds in ("3", "1, 6, 2"), True)
        else:
            self.line(depth, f"{counter} = {self.choose('0', 't % 3', 'int32(0)')}")
            self.line(depth, f"while {counter} < {self.choose('4', 'b + 2', 'i % 6')} and {self.condition(1)}:")
            self.line(depth + 1, f"{counter} += 1")
            self.body(depth + 1, 3, False, True)
        if self.random.random() < 0.2:
            self.line(depth, "else:")
            self.body(depth + 1, 2, False, False)
        if self.random.random() < 0.3:
            self.line(depth, f"i2 = {counter} if b >= 0 and n > 99 else i2")

    def atomic(self, depth):
        self.line(depth, self.choose(
            f"cuda.atomic.add(counts, abs(int64({self.integer(1)})) % 4, {self.choose('1', 'y[i % n]', '3')})",
            f"cuda.atomic.max(counts, {self.random.randint(4, 5)}, {self.integer(1)})",
            f"cuda.atomic.add(sums, abs(int64({self.integer(1)})) % 4, {self.floating(1)})",
            "i1 = cuda.atomic.add(counts, 6, 1)",
            f"i0 = cuda.atomic.cas(counts, {self.random.randint(6, 7)}, {self.choose('0', 't')}, {self.integer(2)})",
            f"f2 = cuda.atomic.exch(sums, 3, {self.floating(2)})",
        ) if self.random.random() < 0.7 else f"cuda.atomic.xor(counts, 7, {self.integer(2)})")  # fmt: skip

    def meeting(self, depth):
        """Write threads of a block that exchange values: through shared memory or within a warp."""
        r = self.random
        kind = r.random()
        if kind < 0.25:
            array = self.choose("s", "d")
            self.line(depth, f"{array}[t] = {self.floating()}")
            if not (self.racy and r.random() < 0.5):
                self.line(depth, "cuda.syncthreads()")
            self.line(depth, f"f0 = {array}[(t + {r.randint(0, 40)}) % {self.threads}]")
            self.line(depth, "cuda.syncthreads()")
        elif kind < 0.35:
            self.line(
                depth, f"i0 = cuda.syncthreads_{self.choose('count', 'and', 'or')}(1 if {self.condition()} else 0)"
            )
        elif kind < 0.4 and self.records:
            for text in ("p[t] = g[i]", "cuda.syncthreads()", f"g[i] = p[{self.random.randint(1, 9)} - t]"):
                self.line(depth, text)
            self.line(depth, "cuda.syncthreads()")
        elif kind < 0.45:
            self.line(depth, f"k[t % 5] = {self.choose('7', 'b', 't' if self.racy else 'n')}")
            self.line(depth, "cuda.syncthreads()")
        elif kind < 0.55:
            self.sums_of_the_block(depth)
        else:
            self.meeting_of_a_warp(depth)
            self.line(depth, "cuda.syncthreads()")

    def meeting_of_clusters(self):
        """Write blocks of a cluster, or teams of warps, that exchange values, perhaps in a loop."""
        depth = self.choose(1, 1, 2)
        if depth == 2:
            self.line(1, "for c7 in range(2):")
        number, first, size = self.choose(*TEAMS)
        words = {"TEAM": f"team_sync({number}, {size})", "FIRST": f"({first})", "SIZE": f"({size})"}
        words |= {"R)": self.choose("1 - cluster_rank())", "t % 2)", "0)"), "#": str(self.random.randint(0, 2))}
        for text in self.choose(*MEETINGS):
            for word, meaning in words.items():
                text = text.replace(word, meaning)
            self.line(depth, self.filled(text, 1))
        if self.random.random() < 0.8:
            self.line(depth, self.choose("cuda.syncthreads()", "cluster_sync()"))

    def sums_of_the_block(self, depth):
        """Write atomic operations on shared memory."""
        for text in ("if t < 3:", "    q[t], r[t] = 0, 0.0", "cuda.syncthreads()"):
            self.line(depth, text)
        inner = depth
        if self.random.random() < 0.5:
            inner += 1
            self.line(depth, f"if {self.condition()}:")
        self.line(inner, f"cuda.atomic.{self.choose('add', 'max', 'xor')}(q, abs(int64({self.integer(1)})) % 3, t)")
        self.line(inner, f"cuda.atomic.add(r, t % 3, {self.floating(1)})")
        self.line(depth, "cuda.syncthreads()")
        self.line(depth, "i2, f1 = q[t % 3], r[(t + 1) % 3]")
        self.line(depth, "cuda.syncthreads()")

    def meeting_of_a_warp(self, depth):
        """Write lanes that exchange values."""
        r, full = self.random, "0xFFFFFFFF"
        kind = r.random()
        if kind < 0.3 and self.threads % 32 == 0:
            value, target = (self.floating(), "f1") if r.random() < 0.5 else (self.integer(), "i1")
            self.line(depth, self.shuffled(full, value, target, self.choose("1", "t % 32", "16")))
        elif kind < 0.5 and self.threads % 32 == 0:  # half of the lanes of a warp
            low = r.random() < 0.5
            self.line(depth, f"if t % 32 {'<' if low else '>='} 16:")
            self.line(depth + 1, self.shuffled("0xFFFF" if low else "0xFFFF0000", self.floating(), "f2", "1", "xor_"))
            if r.random() < 0.5:
                self.atomic(depth)
        elif kind < 0.65:
            vote = self.choose("all_sync", "any_sync", "ballot_sync", "eq_sync")
            self.line(depth, f"i2 = int64(cuda.{vote}({full}, {self.condition()}))")
        elif kind < 0.75:
            self.line(depth, f"i2 = int64(cuda.match_any_sync({full}, int64({self.integer()})))")
        elif kind < 0.8:
            self.line(depth, f"i0 = int64(cuda.match_all_sync({full}, int64({self.integer()}))[{r.randint(0, 1)}])")
        else:
            self.line(depth, f"w[t] = {self.integer()}")
            self.line(depth, "cuda.syncwarp()")
            self.line(depth, "i1 = w[t ^ 1 if (t ^ 1) < W else t]")
            self.line(depth, "cuda.syncwarp()")

    def shuffled(self, mask, value, target, by, kind=None):
        """Return a shuffle of a value into a variable."""
        name = self.choose("up_", "down_", "xor_", "") if kind is None else kind
        return f"{target} = cuda.shfl_{name}sync({mask}, {'int64' if target[0] == 'i' else 'float32'}({value}), {by})"

    def source(self):
        """Return the source of a module with the kernel."""
        for text in (
            "t, b = cuda.threadIdx.x + cuda.threadIdx.y * COLUMNS, cuda.blockIdx.x", "i = b * W + t",
            "s = cuda.shared.array(W, float32)", "w = cuda.shared.array(W, int32)",
            "k = cuda.shared.array(5, int32)", "l = cuda.local.array(4, float32)",
            "d = cuda.shared.array(0, float32)", "q = cuda.shared.array(3, int32)", "r = cuda.shared.array(3, float32)",
            "m = cuda.local.array((2, 3), int16)", "e = cuda.local.array(2, complex64)",
            "e[0], e[1], z0, z1 = 1, a, u[i % n], 0j",
            "f0, f1, f2 = float32(0), 0.0, x[i % n]", "i0, i1, i2 = 0, y[i % n], t",
            "for c in range(4):", "    l[c] = a", "for c in range(6):", "    m[c // 3, c % 3] = t * c",
            "if t < 5:", "    k[t] = t", *(RECORDS if self.records else ()), "cuda.syncthreads()",
        ):  # fmt: skip
            self.line(1, text)
        for _ in range(self.random.randint(2, 7)):
            self.statement(1, True, False)
        if self.cluster > 1:
            self.line(1, "cluster_sync()")
        for column, name in enumerate((*FLOATS, *INTS)):
            self.line(1, f"out[i, {column}] = {name}")
        for column, name in enumerate(COMPLEX):
            self.line(1, f"oz[i, {column}] = {name}")
        return "\n".join([HELPERS, "def kernel(x, z, h, y, a, n, out, counts, sums, u, oz, g):", *self.lines]) + "\n"


def made(seed, clusters=False):
    """Return the kernel of a seed, its configuration, and its source."""
    writer = Writer(seed, clusters)
    source = writer.source()
    name = f"<kernel at random {next(_numbers)}>"
    linecache.cache[name] = len(source), None, source.splitlines(True), name
    import cmath
    import math

    from numba import complex64, complex128, float32, float64, from_dtype, int16, int32, int64, uint8, uint32, uint64

    names = {name: getattr(intrinsics, name) for name in intrinsics.__all__}
    names |= {"cuda": cuda, "math": math, "W": writer.threads, "COLUMNS": writer.columns}
    names |= {"cmath": cmath, "np": np, "complex64": complex64, "complex128": complex128, "RECORD": from_dtype(RECORD)}
    names |= {"float16": np.float16, "float32": float32, "float64": float64}
    names |= {"int16": int16, "int32": int32, "int64": int64, "uint8": uint8, "uint32": uint32, "uint64": uint64}
    exec(compile(source, name, "exec", dont_inherit=True), names)
    for helper in ("helper", "helper_int", "pair", "halved", "nested", "mirrored"):
        names[helper] = cuda.jit(device=True)(names[helper])
    block = writer.columns, writer.threads // writer.columns
    return cuda.jit(names["kernel"]), (writer.blocks, block, 0, 4 * writer.threads), source


def arguments(seed, threads):
    """Return arguments for `threads` threads."""
    draw = np.random.default_rng(seed)
    n = 50
    x, z = draw.normal(size=n).astype(np.float32), draw.normal(size=n)
    y = draw.integers(-20, 20, n).astype(draw.choice([np.int32, np.int64, np.int8, np.uint16, np.uint32, np.uint64]))
    out = np.zeros((threads, 6), draw.choice([np.float64, np.float32]))
    u = (x + 1j * z).astype(draw.choice([np.complex64, np.complex128]))
    g = np.zeros(threads, RECORD)
    g["a"], g["b"], g["z"] = draw.normal(size=threads), draw.integers(-9, 9, threads), 1 + 2j
    g = g if Writer(seed).records else None
    counts, sums = np.zeros(8, np.int32), np.zeros(4, np.float32)
    out_of_z = np.zeros((threads, 2), u.dtype)
    return [x, z, x.astype(np.float16), y, np.float32(1.25), n, out, counts, sums, u, out_of_z, g]


def differ(seed, check=False, traces=False, schedule="forward", clusters=False):
    """Return what both engines make of a seed's kernel if they differ, else None; and what the first says.

    `check`: with the compiler's types of variables; `traces`: compare traces, too. `schedule`: of both.
    `clusters`: with clusters of two blocks, and teams of warps.
    """
    kernel, configuration, source = made(seed, clusters)
    blocks, (columns, rows), *_ = configuration
    given, cluster = arguments(seed, blocks * columns * rows), 1 + clusters
    options = {"check": check, "schedule": schedule, "cluster": cluster}
    (said, one), (other_said, other) = outcomes(kernel, configuration, *given, **options)
    if not isinstance(said, str):
        one, other, said = said, other_said, "error"
    if one == other and traces and said == VECTORISED and not Writer(seed).records:
        keep = lines_of(kernel)
        one, other = (traced(kernel, configuration, given, which, keep, cluster=cluster) for which in ENGINES)
        one, other = one[0], other[0]  # the memory holds NaNs, whose bits differ
    return None if one == other else (source, configuration, one, other), said


def disprove(seed, clusters=False):
    """Return what the scheduler finds in a seed's kernel in which the other engine has proved that nothing is wrong.

    And whether there was a proof. Every other kernel runs in chunks of a block or a cluster. `clusters`: as `differ`'s.
    """
    kernel, configuration, source = made(seed, clusters)
    blocks, (columns, rows), *_ = configuration
    proved, watched = (arguments(seed, blocks * columns * rows) for _ in range(2))
    lanes, engine.LANES = engine.LANES, columns * rows if seed % 2 else engine.LANES
    try:
        sanitize(kernel, [proved[6]], "forward", 1 + clusters, engine="vectorised")[configuration](*proved)
    except SimulationError:
        return None, False
    finally:
        engine.LANES = lanes
    report = sanitize(kernel, [watched[6]], "forward", 1 + clusters, engine="scheduler")[configuration](*watched)
    results, others = ([bits_of(one) for one in given if isinstance(one, np.ndarray)] for given in (proved, watched))
    return None if not report.findings and results == others else (source, configuration, str(report), ""), True


def main(seconds, first=0):
    """Compare kernels for so many seconds; stop at the first on which the engines differ."""
    end, seed, ran, why, clusters = time.monotonic() + seconds, first, 0, {}, "--clusters" in sys.argv
    while time.monotonic() < end:
        if "--sanitize" in sys.argv:
            found, proved = disprove(seed, clusters)
            said = VECTORISED if proved else "the scheduler ran"
        else:
            schedule = ("reverse", seed)[seed % 2] if "--schedules" in sys.argv else "forward"
            flags = (flag in sys.argv for flag in ("--check", "--traces"))
            found, said = differ(seed, *flags, schedule, clusters)
        if found:
            print(f"seed {seed}: the engines differ\n{found[0]}\n{found[1]}\n{found[2]!r:.600}\n{found[3]!r:.600}")
            return 1
        ran += said == VECTORISED
        if said.startswith("the scheduler"):
            reason = said.split(": ")[-1]
            why[reason] = why.get(reason, 0) + 1
        seed += 1
    print(f"{seed - first} kernels, {ran} of them by the vectorised engine; the engines agree on all")
    for reason, times in sorted(why.items(), key=lambda pair: -pair[1])[:20]:
        print(f"  {times} {reason}")
    return 0


if __name__ == "__main__":
    engine.STRICT = "--strict" in sys.argv
    sys.exit(main(float(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 and sys.argv[2].isdigit() else 0))
