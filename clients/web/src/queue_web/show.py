"""Values as HTML.  All that comes from the database is escaped here or in a template."""
import html
import json
import re
from datetime import datetime
from urllib.parse import urlencode

from .settings import OLD, site

# A state of a message or a queue: its name for people, a sign, and how it stands out.  The
# sign and the word tell the same as the color.
STATES = {
    "free": ("ready", "●", "good"), "claimed": ("claimed", "▶", "busy"),
    "delayed": ("delayed", "◷", "calm"), "retry": ("waits for retry", "↻", "warn"),
    "waiting": ("waits for a batch", "⋯", "calm"),
    "canceled": ("cancel pending", "⊘", "warn"), "dead": ("dead letter", "✕", "bad"),
    "completed": ("completed", "✓", "good"), "expired": ("expired", "⊘", "warn"),
    "duplicate": ("duplicate", "≡", "calm"), "deleted": ("deleted", "✓", "calm"),
    "gone": ("gone", "–", "calm"),
    "paused": ("paused", "‖", "warn"), "stopped": ("handler stopped", "■", "bad"),
    "running": ("handler runs", "▶", "busy"), "idle": ("handler idle", "○", "calm"),
    "open": ("goes on", "▶", "busy"), "finished": ("finished", "✓", "good"),
    "failed": ("finished with failures", "✕", "bad"), "letters": ("dead letters", "✕", "calm"),
}
UNITS = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))


class Html(str):
    """Text that is HTML already.  All else is escaped."""


def escape(value):
    return value if isinstance(value, Html) else html.escape(str(value))


def url(path, /, **values):
    """An address of a page, under the path where the program is mounted."""
    values = {k: v for k, v in values.items() if v not in ("", None, 0)}
    return site.prefix + path + ("?" + urlencode(values, doseq=True) if values else "")


def link(label, path, /, css="", **values):
    css = f' class="{css}"' if css else ""
    return Html(f'<a href="{html.escape(url(path, **values))}"{css}>{escape(label)}</a>')


def text(value):
    """Text of any direction.  What would turn its surroundings around is kept inside."""
    return "–" if value in (None, "") else Html(f"<bdi>{escape(value)}</bdi>")


def number(value):
    return "–" if value is None else f"{value:,}"


def short(value):
    """A number of at most three digits after which come no others."""
    if value is None:
        return "–"
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.2g}"


def age(seconds):
    """ "42 s", "3.5 min", "2 h" """
    if seconds is None:
        return "–"
    unit, size = next(u for u in UNITS if abs(seconds) >= u[1] or u[1] == 1)
    return f"{round(seconds / size, 1):g} {unit}"


def old(seconds):
    """Whether something has waited for so long that a person should look."""
    return seconds is not None and seconds >= OLD


def parsed(value):
    return datetime.fromisoformat(re.sub(r"([+-]\d\d)$", r"\1:00", value)) if value else None


def zone(value):
    offset = value.strftime("%z")
    return "UTC" if offset in ("+0000", "") else f"{offset[:3]}:{offset[3:5]}"


def clock(value):
    """A time with its zone: "2026-11-29 22:07:12 UTC" """
    at = parsed(value)
    return f"{at:%Y-%m-%d %H:%M:%S} {zone(at)}"


def away(value, now):
    """How far a time is from now: "in 4 min", "3 s ago" """
    seconds = (parsed(value) - parsed(now)).total_seconds()
    return f"in {age(round(seconds))}" if seconds > 0 else f"{age(round(-seconds))} ago"


def when(value, now=None):
    """A time, and how far it is."""
    if not value:
        return "–"
    if value in ("infinity", "-infinity"):
        return "never"
    if not now:
        return Html(f'<time datetime="{escape(value)}"><span>{clock(value)}</span></time>')
    shown = clock(value)
    if parsed(value).date() == parsed(now).date():
        shown = shown[11:]          # of today
    return Html(f'<time datetime="{escape(value)}" title="{clock(value)}">'
                f"<b>{away(value, now)}</b> <span>{shown}</span></time>")


def chip(state, more=""):
    """A state, by a sign, a word and a color."""
    word, sign, css = STATES.get(state, (state, "", "calm"))
    return Html(f'<span class="chip {css}"><span aria-hidden="true">{sign}</span> '
                f'{escape(word)}{" " + escape(more) if more else ""}</span>')


def progress(done, total, note=""):
    """A bar, and the same in numbers."""
    return Html(f'<span class="progress"><progress max="{max(total or 0, 1):d}" '
                f'value="{min(done or 0, max(total or 0, 1)):d}" aria-label="progress"></progress>'
                f" {done or 0:,} of {total or 0:,} {text(note) if note else ''}</span>")


def line(value, css="snippet"):
    """The beginning of a text, on one line."""
    if value in (None, ""):
        return "–"
    return Html(f'<bdi class="{css}">{escape(" ".join(str(value).split())[:300])}</bdi>')


def filter_of(typed):
    """What was typed into a search, as JSON that a body is to contain; ValueError if it is none.

    Beside JSON there is "to: ann@example.org" or "to=ann@example.org".
    """
    try:
        return json.dumps(json.loads(typed))
    except ValueError:
        found = re.fullmatch(r"\s*([\w.$-]+)\s*[:=]\s*(.+?)\s*", typed)
        if not found:
            raise ValueError("This is neither JSON nor “name: value”.") from None
    value = found[2]
    try:
        value = json.loads(value)
    except ValueError:
        pass                        # a text without quotation marks
    for key in reversed(found[1].split(".")):
        value = {key: value}
    return json.dumps(value)
