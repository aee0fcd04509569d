"""Numbers over time, as SVG: a small line in a table, and a plot with axes."""
import html
import math
import time

from .history import LABELS, SPANS
from .show import Html, age, short

WIDTH, HEIGHT = 340, 150            # of a plot
LEFT, RIGHT, TOP, BOTTOM = 46, 10, 10, 24       # its margins


def spark(points, name, width=72, height=20):
    """A line without axes, with its numbers in words."""
    numbers = [(i, v) for i, (_, v) in enumerate(points) if v is not None]
    if len(numbers) < 2:
        return ""
    most, step = max(v for _, v in numbers), (width - 2) / (len(points) - 1)
    line = " ".join(f"{1 + step * i:.1f},{height - 1 - (height - 3) * v / (most or 1):.1f}"
                    for i, v in numbers)
    words = html.escape(f"{name}: now {short(numbers[-1][1])}, most {short(most)}")
    return Html(f'<svg class="spark" role="img" aria-label="{words}" width="{width}" '
                f'height="{height}" viewBox="0 0 {width} {height}"><title>{words}</title>'
                f'<polyline points="{line}"/></svg>')


def nice(most):
    """The end of an axis: 1, 2 or 5 and zeros, and not below this."""
    if most <= 0:
        return 1
    size = 10 ** math.floor(math.log10(most))
    return next(n * size for n in (1, 2, 5, 10) if n * size >= most * 0.9999)


def nice_age(most):
    """The end of an axis of seconds: a round number of its unit."""
    size = next(s for s in (86400, 3600, 60, 1) if most >= s or s == 1)
    return nice(most / size) * size


def at(seconds):
    return time.strftime("%H:%M:%S UTC", time.gmtime(seconds))


def plot(points, label, unit, span):
    """A plot with axes; each point says its value under the pointer, and to the keyboard."""
    known = [v for _, v in points if v is not None]
    if not known:
        return Html(f'<p class="none">{label}: nothing was kept in the last {LABELS[span]}'
                    " yet.</p>")
    say = age if unit == "age" else short
    top = nice_age(max(known)) if unit == "age" else nice(max(known))
    wide, high = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
    step = wide / max(len(points) - 1, 1)

    def y(value):
        return TOP + high - high * value / top

    lines, hits, line = [], [], []
    for i, (when, value) in enumerate(points + [(0, None)]):
        if value is None:
            if line and 0 < i < len(points) - 1 and points[i + 1][1] is not None:
                continue                # a sample that came late is no gap
            if line:                    # one point alone is a short line
                line += [f"{float(line[0].split(',')[0]) + 2:.1f},{line[0].split(',')[1]}"] * (
                    len(line) == 1)
                lines.append(f'<polyline points="{" ".join(line)}"/>')
            line = []
            continue
        x = LEFT + step * i
        line.append(f"{x:.1f},{y(value):.1f}")
        words = f"{at(when)}: {say(value)}{'' if unit == 'age' else ' ' + unit}"
        hits.append(f'<g class="point" data-words="{words}"><title>{words}</title>'
                    f'<rect x="{x - step / 2:.1f}" y="{TOP}" width="{step:.1f}" height="{high}"/>'
                    f'<circle cx="{x:.1f}" cy="{y(value):.1f}" r="3"/></g>')
    words = (f"{label} over {LABELS[span]}, {'time' if unit == 'age' else unit}: "
             f"now {say(known[-1])}, most {say(max(known))}")
    return Html(
        f'<figure class="plot"><figcaption>{label} <span class="unit">'
        f'{"time" if unit == "age" else unit}</span> <output>now {say(known[-1])}</output>'
        f'</figcaption><svg role="img" aria-label="{words}" viewBox="0 0 {WIDTH} {HEIGHT}">'
        f'{axes(top, say, span, y)}{"".join(lines)}{"".join(hits)}</svg></figure>')


def axes(top, say, span, y):
    """Three lines with the numbers that they stand for, and the times below."""
    parts = []
    for value in (0, top / 2, top):
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(value):.1f}" '
                     f'y2="{y(value):.1f}"/><text x="{LEFT - 5}" y="{y(value) + 4:.1f}" class="end">{say(value)}</text>')
    step, count = SPANS[span]
    for part, css in ((0, ""), (0.5, "middle"), (1, "end")):
        x = LEFT + (WIDTH - LEFT - RIGHT) * part
        words = "now" if part == 1 else "−" + age(step * count * (1 - part))
        parts.append(f'<text x="{x:.1f}" y="{HEIGHT - 6}" class="{css}">{words}</text>')
    return "".join(parts)
