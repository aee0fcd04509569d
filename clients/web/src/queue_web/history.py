"""The numbers of the queues for a day, for the plots.

There are three spans, each a ring of points: five minutes, an hour and a day.  A point of the
first is a sample; a point of the next ones sums up those of the span before it, so nothing
else is kept.  A number takes two bytes, on a logarithmic scale with an error of at most
0.03 %: ten thousand queues take less than ten megabytes (the tests measure it).
"""
import array
import math
import threading
import time

COLUMNS = ("ready", "oldest_ready_age", "pushed", "completed")
RATES = 2, 3                        # columns that count: kept as numbers per second

# Seconds between two points, and how many there are
SPANS = {"5m": (10, 30), "1h": (120, 30), "1d": (2400, 36)}
LABELS = {"5m": "5 minutes", "1h": "1 hour", "1d": "1 day"}
SAMPLE = SPANS["5m"][0]

PAGE = 256                          # queues whose points are allocated at once
NONE = 0xFFFF                       # there is no point
LEAST, MOST = 1e-3, 1e12
STEP = math.log(MOST / LEAST) / (NONE - 2)


def encode(value):
    """A number in two bytes."""
    if value is None:
        return NONE
    if value < LEAST:
        return 0
    return min(1 + round(math.log(value / LEAST) / STEP), NONE - 1)


# What each code stands for
DECODED = array.array("f", [0] + [LEAST * math.exp(STEP * code) for code in range(NONE - 1)])


def decode(code, column):
    """The number that a code stands for; None if there is none."""
    if code == NONE:
        return None
    return float(f"{DECODED[code]:.3g}") if column in RATES else round(DECODED[code])


class Ring:
    """The points of one span, of all queues: for each queue and column, "points" numbers."""

    def __init__(self, step, points):
        self.step, self.points = step, points
        self.pages = []             # of PAGE queues each
        self.last = None            # the number of the newest point, since the epoch

    def at(self, slot, column):
        """Where the numbers of this queue are: an array, and their place in it."""
        while slot // PAGE >= len(self.pages):
            size = PAGE * len(COLUMNS) * self.points
            self.pages.append(array.array("H", b"\xff\xff") * size)
        return (self.pages[slot // PAGE],
                ((slot % PAGE) * len(COLUMNS) + column) * self.points)

    def go_to(self, number):
        """The next points are of this time.  Those between, if any, are missing."""
        if self.last is not None and number > self.last:
            for missing in range(self.last + 1, min(number, self.last + self.points) + 1):
                for page in self.pages:
                    fill = array.array("H", [NONE]) * (len(page) // self.points)
                    page[missing % self.points::self.points] = fill
        self.last = max(number, self.last or 0)

    def put(self, slot, column, number, code):
        page, place = self.at(slot, column)
        page[place + number % self.points] = code

    def codes(self, slot, column, numbers):
        page, place = self.at(slot, column)
        return [page[place + n % self.points] if self.last - self.points < n <= self.last
                else NONE for n in numbers]

    def forget(self, slot):
        for column in range(len(COLUMNS)):
            page, place = self.at(slot, column)
            page[place:place + self.points] = array.array("H", [NONE]) * self.points


def summed_up(codes, column):
    """The point that stands for these: the most of a number, the mean of a rate."""
    known = [code for code in codes if code != NONE]
    if not known:
        return NONE
    if column not in RATES:
        return max(known)           # the codes have the order of the numbers
    return encode(sum(DECODED[code] for code in known) / len(known)) if any(known) else 0


class History:
    """What was sampled, by project and queue."""

    def __init__(self, clock=time.time):
        self.clock = clock
        self.lock = threading.Lock()
        self.rings = {span: Ring(*size) for span, size in SPANS.items()}
        self.slots, self.free = {}, []
        self.counts = array.array("d")          # the counters as they were, two for each queue
        self.counted = array.array("d")         # and when
        self.sampled = 0

    def due(self):
        return self.clock() - self.sampled >= SAMPLE * 0.9

    def keep(self, rows, project=None, complete=False):
        """A sample of these queues.  If it is complete, others are forgotten."""
        with self.lock:
            now = self.clock()
            if complete:
                self.sampled = now
                self.forget_others({self.name(row, project) for row in rows})
            fine = self.rings["5m"]
            number = int(now // fine.step)
            if fine.last is not None and number > fine.last:
                self.sum_up(number)
            fine.go_to(number)
            for row in rows:
                if row.get("ready") is not None:
                    self.sample(self.slot(self.name(row, project)), row, number, now)

    @staticmethod
    def name(row, project):
        return f"{row.get('project', project)}\0{row['name']}"

    def slot(self, name):
        slot = self.slots.get(name)
        if slot is None:
            slot = self.slots[name] = self.free.pop() if self.free else len(self.counted)
            if slot == len(self.counted):
                self.counts.extend((0, 0))
                self.counted.append(0)
        return slot

    def sample(self, slot, row, number, now):
        fine, took = self.rings["5m"], now - self.counted[slot]
        fine.put(slot, 0, number, encode(row["ready"]))
        fine.put(slot, 1, number, encode(row["oldest_ready_age"] or 0))
        known = self.counted[slot] and took < 10 * SAMPLE
        for i, column in enumerate(RATES):
            count = row[COLUMNS[column]]
            if count is None:
                continue
            if known and took >= 1:
                rate = max(0, count - self.counts[2 * slot + i]) / took
                fine.put(slot, column, number, encode(rate))
            if not known or took >= 1:
                self.counts[2 * slot + i] = count
        if not known or took >= 1:
            self.counted[slot] = now

    def sum_up(self, number):
        """Points of the longer spans, for the times that are over now."""
        spans = list(self.rings.values())
        for finer, ring in zip(spans, spans[1:]):
            each = ring.step // finer.step
            done, number = finer.last // each, number // each
            if done == number:
                return              # that time goes on
            ring.go_to(done)
            numbers = range(done * each, done * each + each)
            for slot in self.slots.values():
                for column in range(len(COLUMNS)):
                    ring.put(slot, column, done,
                             summed_up(finer.codes(slot, column, numbers), column))

    def forget_others(self, names):
        for name in self.slots.keys() - names:
            slot = self.slots.pop(name)
            for ring in self.rings.values():
                ring.forget(slot)
            self.counted[slot] = 0
            self.free.append(slot)

    def points(self, project, name, column, span="5m"):
        """Pairs of a time and a number, None where there is none; the oldest first."""
        ring = self.rings[span]
        with self.lock:
            slot = self.slots.get(f"{project}\0{name}")
            if slot is None or ring.last is None:
                return []
            end = int(self.clock() // ring.step)
            if span != "5m" or ring.last < end:
                end -= 1            # a point of the present is not there yet
            numbers = range(end - ring.points + 1, end + 1)
            codes = ring.codes(slot, column, numbers)
        now = self.clock()
        return [(min((n + 1) * ring.step, now), decode(code, column))
                for n, code in zip(numbers, codes)]

    def rate(self, project, name, column):
        """The latest number of a column; None if there is none."""
        known = [v for _, v in self.points(project, name, column)[-3:] if v is not None]
        return known[-1] if known else None
