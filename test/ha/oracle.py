"""The oracle of test/ha/run: judges by what the clients have written down.

A message is known by its key, which only one push has.  What counts:

lost        The push was acknowledged, and no client was ever to delete it: there
            is no claim_complete, messages_delete or claim_next with the message
            that was acknowledged or whose result is unknown.  All queues were
            worked off before.  A job is lost if it did not run.
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
"""
import collections
import glob
import json
import os


FIRST_CLAIM = 10        # seconds after the promotion, at most
# Wake-ups and jobs after that: two seconds, and what a client may need to
# find the new leader, if it tries the old one first (connect_timeout).
OTHERS = 2 + 2


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
    def __init__(self, calls, left, ran):
        self.calls = calls
        self.pushed = {}                # key: result of the push
        self.queue = {}                 # key: queue
        self.claims = {}                # id: Claim
        self.holds = collections.defaultdict(list)      # key: its claims
        self.deleted = {}               # key: when that was acknowledged
        self.maybe_deleted = set()
        self.found = {kind: [] for kind in (
            "lost", "duplicate", "ended", "phantom", "stuck")}
        self.found["stuck"] = list(left)
        for call in calls:
            self.read_push(call)
        for call in calls:
            self.read_claim(call)
        self.judge_messages()
        self.judge_jobs(collections.Counter(key for key, _, _ in ran))

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
            if (result == "ok" and self.queue[key] != "jobs" and
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
            if result == "ok" and not ran[key]:
                self.found["lost"].append(key)
            if result == "failed" and ran[key]:
                self.found["phantom"].append(key)
            if ran[key] > 1:
                self.found["duplicate"].append(key)

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
    notification and job on the new leader; and what there was at the fault."""
    promoted = row["promoted"]
    first = dict.fromkeys(("claim", "wake", "notify", "job"))

    def note(what, time):
        if first[what] is None or time - promoted < first[what]:
            first[what] = max(time - promoted, 0)

    pushes = [call for call in oracle.calls if call["op"] == "push" and
              call["q"] == "wake" and call["result"] == "ok" and
              row["t0"] < call["t0"] < promoted + 60]
    for call in oracle.calls:
        if (call["t1"] < row["t0"] or call["t1"] > promoted + 60 or
                call.get("port") != row["new"] or call["result"] != "ok"):
            continue
        if call["op"] == "claim":
            note("claim", call["t1"])
        elif call["op"] == "notified":
            note("notify", call["t1"])
        elif call["op"] == "wait" and call["ready"] and any(
                call["t0"] < push["t0"] < call["t1"] for push in pushes):
            note("wake", call["t1"])
    for _, at, _ in ran:
        if at > promoted:
            note("job", at)
    row["waiting"], row["claimed"] = oracle.at(row["t0"])
    return first


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


def main(directory, rounds, left, ran, mode, plant):
    """Prints what was found; returns the exit status."""
    oracle = Oracle(read(directory), left, ran)
    failed = False
    columns = ("claim", "wake", "notify", "job")
    print("\nSeconds from the promotion to the first claim, end of a queue_wait,"
          " notification, and job;\nacknowledged messages that waited and that"
          " were claimed at the fault")
    print("round fault        claim   wake notify    job  waiting claimed")
    all_times = collections.defaultdict(list)
    for number, row in enumerate(rounds, 1):
        first = times(oracle, ran, row)
        for what in columns:
            if first[what] is None:
                failed = True
                print("round %d: no %s on the new leader" % (number, what))
            else:
                all_times[what].append(first[what])
        print("%5d %-10s %7s%7s%7s%7s %8d %7d" % (
            number, row["fault"],
            *("-" if first[what] is None else "%.2f" % first[what]
              for what in columns), row["waiting"], row["claimed"]))
        if row["waiting"] < 1000 or row["claimed"] < 100:
            failed = True
            print("round %d: too few messages" % number)
        if None not in first.values() and (
                first["claim"] > FIRST_CLAIM or
                max(first.values()) > first["claim"] + OTHERS):
            failed = True
            print("round %d: too slow" % number)
        if mode != "synchronous":
            print_lost(oracle, row, rounds[number - 2]["promoted"] if number > 1 else 0)
    print("\nminimum, median and maximum:")
    for what in columns:
        if all_times[what]:
            print("%-7s %s" % (what, spread(all_times[what])))

    results = collections.Counter(
        (call["op"], call["result"]) for call in oracle.calls)
    print("\ncalls       ok  failed  unknown")
    for op in ("push", "claim", "renew", "complete", "release", "wait"):
        print("%-9s %6d %6d  %6d" % (op, *(
            results[op, result] for result in ("ok", "failed", "unknown"))))
    print("\n%d messages acknowledged, of %d; %d jobs run" % (
        sum(result == "ok" for result in oracle.pushed.values()),
        len(oracle.pushed), len(ran)))
    for kind, found in oracle.found.items():
        print("%-9s %d%s" % (kind, len(found), "".join(
            "\n          %.150s" % (example,) for example in found[:5])))
    if plant == "yes":
        caught = len(oracle.found["lost"]) == 1 and oracle.found["duplicate"]
        print("the planted loss and duplicate were %sfound" %
              ("" if caught else "NOT "))
        failed = failed or not caught
    elif mode == "synchronous":
        failed = failed or any(oracle.found.values())
    print("FAILED" if failed else "passed")
    return int(failed)
