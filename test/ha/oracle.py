"""The oracle of test/ha/run: judges by what the clients have written down.

A message is known by its key, which only one push has.  What counts:

lost        The push was acknowledged, and no client was ever to delete it: there
            is no claim_complete, messages_delete or claim_next with the message
            that was acknowledged or whose result is unknown; and it is not in
            its queue at the end.  A job is lost if it also did not run.
duplicate   Two claims held the message at the same time.  A claim certainly
            holds its messages from when its client got the answer until the
            client asked to complete or to release it, or until the earliest
            time when its ttl can have ended: counted from when the claim, or
            the last renewal that was acknowledged, was called.  Also: a
            completed message that was claimed later, and a job that took
            effect twice.
ended       A claim was not live (QU001, or a renewal of NULL) at a time when it
            certainly held its messages.
phantom     A message came out whose push had failed.
stuck       Is in a queue at the end, although workers had nothing else to do.
fate        queue_await has returned something else than what happened to the
            message, or nothing within 30 seconds; or the history does not have
            a message that was completed once, as completed.

What is in the queues and in the history at the end, and which jobs have run, is all
that the oracle is told by a server.  If none could be asked, it does not judge what
is lost.
"""
import collections
import glob
import json
import os


FIRST_CLAIM = 10        # seconds after the promotion, at most
# Wake-ups and jobs: from the promotion too, or from when the clients that they
# need are connected to the new leader.  Those that try the old one first lose up
# to connect_timeout, which is at least 2 s in libpq.
OTHERS = 2
NEEDED = {"wake": ["waiter", "ticker"], "notify": ["listener", "ticker"],
          "job": ["ticker"]}


def read(directory):
    """All calls, in the order in which they ended."""
    calls = []
    for name in glob.glob(os.path.join(directory, "*.json")):
        with open(name) as file:
            calls += map(json.loads, file)
    return sorted(calls, key=lambda call: call["t1"])


class Claim:
    """From start to end it certainly holds its messages."""

    def __init__(self, call):
        self.start = call["t1"]
        self.end = call["t0"] + call["ttl"]
        self.over = False       # its client has asked to end it


class Oracle:
    def __init__(self, calls, left, ran, history):
        self.calls = calls
        self.left = left                # keys in the queues; None: not known
        self.pushed = {}                # key: result of the push
        self.queue = {}                 # key: queue
        self.claims = {}                # id: Claim
        self.holds = collections.defaultdict(list)      # key: its claims
        self.deleted = {}               # key: when that was acknowledged
        self.maybe_deleted = set()
        self.found = {kind: [] for kind in (
            "lost", "duplicate", "ended", "phantom", "stuck", "fate")}
        self.canceled = {key for call in calls if call["op"] == "cancel"
                         for key in call["keys"]}
        self.maybe_deleted.update(self.canceled)
        for call in calls:
            self.read_push(call)
        for call in calls:
            self.read_claim(call)
        self.judge_messages()
        if left is not None:
            self.found["stuck"] = sorted(left)
            ran = collections.Counter(key for key, _, _ in ran)
            self.judge_jobs(ran)
            self.judge_fates(ran, history)

    def read_push(self, call):
        if call["op"] == "push":
            for key in call["keys"]:
                self.pushed[key] = call["result"]
                self.queue[key] = call["q"]

    def read_claim(self, call):
        op, result = call["op"], call["result"]
        claim = self.claims.get(call.get("claim"))
        if op == "claim" and result == "ok" and "claim" in call:
            claim = self.claims[call["claim"]] = Claim(call)
            for key in call["keys"]:
                self.holds[key].append(claim)
        elif op == "renew":
            if result == "ok" and call["live"]:
                claim.end = call["t0"] + call["ttl"]
            elif result == "ok" and not claim.over and call["t1"] < claim.end:
                self.found["ended"].append(call)
        elif op in ("complete", "release"):
            if (result == "failed" and "QU001" in call.get("error", "") and
                    not claim.over and call["t1"] < claim.end):
                self.found["ended"].append(call)
            if result != "failed":
                claim.over = True
                claim.end = min(claim.end, call["t0"])
                if op == "complete":
                    self.maybe_deleted.update(call["keys"])
                    if result == "ok":
                        self.deleted.update(dict.fromkeys(call["keys"],
                                                          call["t1"]))

    def judge_messages(self):
        for key, result in self.pushed.items():
            if (self.left is not None and result == "ok" and
                    self.queue[key] != "jobs" and key not in self.left and
                    key not in self.maybe_deleted):
                self.found["lost"].append(key)
        for key, claims in self.holds.items():
            if self.pushed.get(key, "failed") == "failed":
                self.found["phantom"].append(key)
            claims.sort(key=lambda claim: claim.start)
            end = 0
            for claim in claims:
                if claim.start < min(end, claim.end):
                    self.found["duplicate"].append(key)
                    break
                end = max(end, claim.end)
            else:
                if claims[-1].start > self.deleted.get(key, 1e12):
                    self.found["duplicate"].append(key)

    def judge_jobs(self, ran):
        for key, result in self.pushed.items():
            if self.queue[key] != "jobs":
                continue
            if (result == "ok" and not ran[key] and key not in self.left and
                    key not in self.canceled):
                self.found["lost"].append(key)
            if result == "failed" and ran[key]:
                self.found["phantom"].append(key)
            if ran[key] > 1:
                self.found["duplicate"].append(key)

    def judge_fates(self, ran, history):
        for call in self.calls:
            if call["op"] == "await" and call["result"] == "ok":
                key, = call["keys"]
                if call["outcome"] != ("completed" if ran[key] else "canceled"):
                    self.found["fate"].append(call)
        kept = collections.defaultdict(list)
        for key, outcome in history:
            kept[key].append(outcome)
        for key in set(kept).union(ran, self.deleted):
            if self.queue.get(key) == "wake":
                continue
            certain = ran[key] or key in self.deleted
            possible = certain or key in self.maybe_deleted
            if (len(kept[key]) > 1 or certain and kept[key] != ["completed"] or
                    not possible and "completed" in kept[key] or
                    kept[key] and key in self.left):
                self.found["fate"].append((key, kept[key]))

    def at(self, time):
        """How many acknowledged messages wait, and how many are certainly
        claimed, at this time."""
        gone = set()
        claimed = set()
        known = set()
        for call in self.calls:
            if call["op"] == "push" and call["q"] == "work":
                if call["result"] == "ok" and call["t1"] < time:
                    known.update(call["keys"])
            elif (call["op"] == "complete" and call["result"] != "failed" and
                    call["t0"] < time):
                gone.update(call["keys"])
        for key in known:
            if any(claim.start < time < claim.end for claim in self.holds[key]):
                claimed.add(key)
        return len(known - gone - claimed), len(claimed - gone)


def times(oracle, ran, row):
    """Of a round: seconds from the promotion to the first claim, wake-up,
    notification and job on the new leader, and for the last three the same from
    when the clients were connected that each of them needs."""
    promoted = row["promoted"]
    first = dict.fromkeys(("claim", *NEEDED))
    connected = {}

    def note(what, time):
        if first[what] is None or time < first[what]:
            first[what] = max(time, promoted)

    calls = [call for call in oracle.calls if call.get("port") == row["new"] and
             call["result"] == "ok" and row["t0"] < call["t1"] < promoted + 60]
    pushes = [call for call in calls if call["op"] == "push" and
              call["q"] == "wake"]
    for call in calls:
        if call["op"] == "connect":
            connected.setdefault(call["role"], call["t1"])
        elif call["op"] == "claim":
            note("claim", call["t1"])
        elif call["op"] == "notified":
            note("notify", call["t1"])
        elif call["op"] == "wait" and call["ready"] and any(
                call["t0"] < push["t0"] < call["t1"] for push in pushes):
            note("wake", call["t1"])
    for _, at, _ in ran:
        if promoted < at < promoted + 60:
            note("job", at)
    row["waiting"], row["claimed"] = oracle.at(row["t0"])
    after = {}
    for what, time in first.items():
        if time is not None:
            first[what] = time - promoted
            if what in NEEDED:
                after[what] = time - max(
                    promoted, *(connected.get(role, 0) for role in NEEDED[what]))
    return first, after


def print_lost(oracle, row, since):
    """What the fault has lost, of what was acknowledged before it was over."""
    lost = set(oracle.found["lost"])
    acknowledged = [(call["t1"], len(lost.intersection(call["keys"])))
                    for call in oracle.calls
                    if call["op"] == "push" and call["result"] == "ok" and
                    since < call["t1"] < row["promoted"]]
    times = [time for time, count in acknowledged if count]
    last = max((time for time, _ in acknowledged), default=0)
    print("      lost %d messages, acknowledged in the old leader's last %.3f s" %
          (sum(count for _, count in acknowledged),
           last - min(times, default=last)))


def spread(values):
    values = sorted(values)
    return "%5.2f  %5.2f  %5.2f" % (values[0], values[len(values) // 2],
                                    values[-1])


def figure(seconds):
    return "      -" if seconds is None else "%7.2f" % seconds


def print_times(oracle, rounds, ran, mode):
    """Returns whether a limit was exceeded."""
    failed = False
    print("\nSeconds from the promotion to the first claim, end of a queue_wait,"
          " notification, and job;\nthe last three from when the clients were"
          " connected;\nacknowledged messages that waited and that were claimed at"
          " the fault")
    print("round fault        claim   wake notify    job    wake notify    job"
          "  waiting claimed")
    spreads = collections.defaultdict(list)
    for number, row in enumerate(rounds, 1):
        first, after = times(oracle, ran, row)
        print("%5d %-10s %s  %s %8d %7d" % (
            number, row["fault"],
            "".join(map(figure, first.values())),
            "".join(figure(after.get(what)) for what in NEEDED),
            row["waiting"], row["claimed"]))
        for what, time in first.items():
            if time is None:
                failed = True
                print("round %d: no %s on the new leader" % (number, what))
            else:
                spreads[what].append(time)
        for what, time in after.items():
            spreads[what + ", connected"].append(time)
        if row["waiting"] < 1000 or row["claimed"] < 100:
            failed = True
            print("round %d: too few messages" % number)
        if (first["claim"] or 0) > FIRST_CLAIM or any(
                time > OTHERS for time in after.values()):
            failed = True
            print("round %d: too slow" % number)
        if mode != "synchronous":
            print_lost(oracle, row, rounds[number - 2]["promoted"] if number > 1 else 0)
    print("\nminimum, median and maximum:")
    for what, values in spreads.items():
        print("%-18s %s" % (what, spread(values)))
    if rounds:
        print("at least %d messages waited, and %d were claimed" % (
            min(row["waiting"] for row in rounds),
            min(row["claimed"] for row in rounds)))
    return failed


def print_calls(oracle, ran):
    results = collections.Counter(
        (call["op"], call["result"]) for call in oracle.calls)
    print("\ncalls       ok  failed  unknown")
    for op in ("push", "claim", "renew", "complete", "release", "wait", "cancel",
               "await"):
        print("%-9s %6d %6d  %6d" % (op, *(
            results[op, result] for result in ("ok", "failed", "unknown"))))
    print("\n%d messages acknowledged, of %d; %d jobs run" % (
        sum(result == "ok" for result in oracle.pushed.values()),
        len(oracle.pushed), len(ran)))


def planted_found(oracle, planted):
    """Whether what was found is what was planted, and no more."""
    found = {kind: set(keys) for kind, keys in oracle.found.items()
             if kind not in ("ended", "fate")}
    claims = {call["claim"] for call in oracle.found["ended"]}
    return (found["lost"] == {planted["lost"]} and
            found["duplicate"] and found["duplicate"] <= set(planted["keys"]) and
            claims <= {planted["claim"]} and
            not found["phantom"] and not found["stuck"] and
            not oracle.found["fate"])


def main(directory, rounds, left, ran, history, mode, planted):
    """Prints what was found; returns whether the run has failed.  left: the keys
    in the queues at the end, ran: the jobs that have run, history: keys and
    outcomes, all None if no server could be asked."""
    oracle = Oracle(read(directory), left, ran, history)
    failed = print_times(oracle, rounds, ran or [], mode)
    print_calls(oracle, ran or [])
    for kind, found in oracle.found.items():
        print("%-9s %s%s" % (
            kind, "not known" if left is None and kind in ("lost", "stuck", "fate")
            else len(found),
            "".join("\n          %.150s" % (example,) for example in found[:5])))
    if planted:
        caught = planted_found(oracle, planted)
        print("the planted loss and duplicate were %s" % (
            "found, and nothing else" if caught else "NOT all that was found"))
        failed = failed or not caught
    elif mode == "synchronous":
        failed = failed or any(oracle.found.values())
    return failed
