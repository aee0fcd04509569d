"""What a visitor may change: the call, the question before it, and where it is offered."""
from dataclasses import dataclass

from .data import ADMIN, CLAIM


@dataclass(frozen=True)
class Action:
    """A change.  In the texts, {what} is "message 7" or "3 messages", {q} the queue."""
    label: str
    call: str                       # gives the number of messages, or a word
    question: str
    effect: str                     # what will happen
    done: str                       # and what is said when it has: {n} is what the call gave
    needs: str                      # what a role needs that may not
    states: frozenset = frozenset()     # of the messages that it is offered for
    field: str = ""                 # what may be written: the name of a value, and its label
    danger: bool = False            # what it removes is gone


def states(*names):
    return frozenset(names)


ACTIONS = {
    # Of messages: the values are "q" and "ids"
    "run_now": Action(
        "Run now", "@messages_run_now(%(q)s::text, %(ids)s::bigint[])",
        "Run {what} of queue {q} now?", "What is delayed can be claimed at once.",
        "{n} of queue {q}: can be claimed now.", CLAIM, states("delayed")),
    "redrive": Action(
        "Redrive", "@queue_redrive(%(q)s::text, NULL::text, NULL::int, %(ids)s::bigint[])",
        "Redrive {what} of queue {q}?",
        "A dead letter goes back to the queue that it came from, as a new message whose attempts"
        " are counted anew.",
        "{n} redriven from queue {q}.",
        "the privilege to claim from this queue, and to push to the queue that each came from",
        states("dead")),
    "bury": Action(
        "Make dead letter",
        "@messages_bury(%(q)s::text, %(ids)s::bigint[], %(text)s::text)",
        "Make {what} of queue {q} dead letters?",
        "Nothing claims a dead letter; it can be redriven later.",
        "{n} of queue {q}: now dead letters.", CLAIM, states("free", "delayed"), "Error"),
    "cancel": Action(
        "Cancel", "@messages_cancel(%(q)s::text, %(ids)s::bigint[], %(text)s::text)",
        "Cancel {what} of queue {q}?",
        "They are removed. If a claim holds one, nothing that is done for it takes effect. This"
        " cannot be undone.",
        "{n} of queue {q}: canceled.", CLAIM,
        states("free", "claimed", "delayed", "waiting", "dead"), "Reason", danger=True),
    # Of a queue: the value is "q"
    "pause": Action(
        "Pause", "@queue_pause(%(q)s::text)", "Pause queue {q}?",
        "Pushes go on. Nothing is claimed any more until the queue is resumed.",
        "Queue {q} is paused.", ADMIN),
    "resume": Action(
        "Resume", "@queue_resume(%(q)s::text)", "Resume queue {q}?",
        "Its messages can be claimed again.", "Queue {q} is resumed.", ADMIN),
    "purge": Action(
        "Purge", "@queue_purge(%(q)s::text)", "Purge queue {q}?",
        "All its messages are removed, claimed and delayed ones too. This cannot be undone.",
        "Queue {q} is purged: {n} removed.", ADMIN, danger=True),
    # Of a batch: the value is "id"
    "cancel_batch": Action(
        "Cancel batch", "@batch_cancel(%(id)s::bigint)", "Cancel batch {id}?",
        "All its members that are not finished are canceled. This cannot be undone.",
        "Batch {id}: {n} canceled.",
        "to own the batch, or membership in the role that does", danger=True),
}
OF_MESSAGES = [name for name, action in ACTIONS.items() if action.states]


def offered(state):
    """The names of the actions for messages in a state."""
    return [name for name in OF_MESSAGES if state in ACTIONS[name].states]


def label(name, state=None, attempts=0):
    """What a button says.  A delayed message that has failed is retried."""
    if name == "run_now" and attempts:
        return "Retry now"
    if name == "cancel" and state == "dead":
        return "Remove"
    return ACTIONS[name].label


def counted(n, noun="message"):
    """ "1 message", "1,234 messages" """
    return f"{n:,} {noun}{'' if n == 1 else 's'}"


def push(db, values):
    """Pushes a message; gives its id.  A queue that was dropped meanwhile is not made again."""
    return db.value("""@queue_push(%(q)s::text, %(body)s::jsonb, delay => %(delay)s::int,
            priority => %(priority)s::int, group_key => %(group)s::text)
        WHERE @queue_exists(%(q)s::text)""", **values)


def run(db, name, values):
    """Does it, and says what was done."""
    action = ACTIONS[name]
    result = db.value(action.call, **values)
    if isinstance(result, int) and not isinstance(result, bool):
        result = counted(result, "member" if name == "cancel_batch" else "message")
    return action.done.format(**values, n=result)
