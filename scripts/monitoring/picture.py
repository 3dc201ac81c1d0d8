"""Draws a dashboard as SVG: the panels of Grafana's JSON, each with the results of its queries in Prometheus.

The places, titles, units and colours are those of the JSON as far as they matter here; the look is this file's own. Text and
background follow the reader's choice of a light or a dark page.
"""

import math
from html import escape

CELL_WIDTH, CELL_HEIGHT, GAP, MARGIN, HEAD = 46, 24, 8, 12, 40
# Distinct on light and dark backgrounds, also for the colour-blind.
COLOURS = ["#3b82d6", "#e08a1e", "#2aa198", "#c0509a", "#8a6fd1", "#8a9a1f", "#d0453e", "#5ab4e0", "#9a6b45"]
COMMANDS = ["sliding", "fixed", "throttle", "acquire", "all", "peek", "refund", "release", "reset"]
STATES = {"green": "#2e9e5b", "red": "#d0453e", "orange": "#e08a1e", "blue": "#3b82d6"}

STYLE = """
  svg { font-family: sans-serif; }
  .page { fill: #f4f5f5; } .panel { fill: #ffffff; stroke: #dfe1e4; }
  text { fill: #24292e; } .faint { fill: #6a737d; } .grid { stroke: #e4e6e9; }
  @media (prefers-color-scheme: dark) {
    .page { fill: #111217; } .panel { fill: #181b1f; stroke: #2c3235; }
    text { fill: #d8d9da; } .faint { fill: #9aa0a8; } .grid { stroke: #2a2e34; }
  }
"""


def figure(value, unit):
    """A value in its unit, short."""
    if unit == "percentunit":
        return f"{value * 100:.3g} %"
    if unit == "s":
        for factor, name in ((1, "s"), (1e3, "ms"), (1e6, "µs")):
            if abs(value) * factor >= 1:
                return f"{value * factor:.3g} {name}"
        return "0 s" if value == 0 else f"{value * 1e6:.2g} µs"
    if unit == "bytes":
        for factor, name in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
            if abs(value) >= factor:
                return f"{value / factor:.3g} {name}"
        return f"{value:.0f} B"
    suffix = "/s" if unit == "reqps" else ""
    if abs(value) >= 10000:
        return f"{value / 1000:.3g} k{suffix}"
    return (f"{value:.0f}" if value == int(value) or abs(value) >= 100 else f"{value:.2g}") + suffix


def steps(top, bottom, unit):
    """Round values for an axis, from bottom to top."""
    span = (top - bottom) or 1
    base, factors = (2, (1, 2)) if unit == "bytes" else (10, (1, 2, 5, 10))
    size = base ** math.floor(math.log(span / 3, base))
    size = next((size * factor for factor in factors if span / (size * factor) <= 4.5), size * factors[-1])
    first = math.ceil(bottom / size - 1e-9)
    return [step * size for step in range(first, math.floor(top / size + 1e-9) + 1)]


def text(x, y, words, size=11, kind="", anchor="start", more=""):
    kind = f' class="{kind}"' if kind else ""
    return f'<text x="{x:.0f}" y="{y:.0f}" font-size="{size}" text-anchor="{anchor}"{kind}{more}>{escape(words)}</text>'


def colour(index, name):
    """A command has the same colour in all graphs."""
    command = name.rpartition("rl.")[2]
    return COLOURS[COMMANDS.index(command) if command in COMMANDS else index % len(COLOURS)]


def legend(target, labels, names):
    words = target["legendFormat"]
    for label, value in labels.items():
        words = words.replace("{{" + label + "}}", value)
    # The role of a server says more than 127.0.0.1:40123.
    for instance, name in names.items():
        words = words.replace(instance, name)
    return words


def stat(panel, answers, x, y, width, height):
    defaults = panel["fieldConfig"]["defaults"]
    ((_, series),) = answers
    value = series[0][1][-1][1]
    if "decimals" in defaults:
        scale = 100 if defaults["unit"] == "percentunit" else 1
        value = round(value * scale, defaults["decimals"]) / scale
    state = [
        step["color"] for step in defaults["thresholds"]["steps"] if step["value"] is None or value >= step["value"]
    ][-1]
    style = f' style="fill: {STATES[state]}" font-weight="bold"'
    return [text(x + width / 2, y + height - 24, figure(value, defaults["unit"]), 28, anchor="middle", more=style)]


def graph(panel, answers, names, x, y, width, height):
    defaults = panel["fieldConfig"]["defaults"]
    unit, stacked = defaults["unit"], defaults["custom"]["stacking"]["mode"] == "normal"
    log = defaults["custom"]["scaleDistribution"]["type"] == "log"
    lines = [(legend(target, labels, names), dict(samples)) for target, series in answers for labels, samples in series]
    lines.sort(key=lambda line: line[0])
    times = sorted({at for _, samples in lines for at in samples})
    left, right, top = x + 62, x + width - 14, y + 32
    keys, wide, rows = [], 0, 1
    for name, _ in lines:
        length = 24 + 5.4 * len(name)
        if wide + length > right - left + 40:
            wide, rows = 0, rows + 1
        keys.append((wide, rows))
        wide += length
    bottom = y + height - 26 - 14 * rows
    below = [0.0] * len(times)
    drawn = []
    for name, samples in lines:
        points = []
        for index, at in enumerate(times):
            value = samples.get(at)
            if stacked:
                below[index] += value or 0
                points.append((at, below[index]))
            elif value is not None and math.isfinite(value):
                points.append((at, value))
        drawn.append((name, points))
    values = [value for _, points in drawn for _, value in points]
    high = max(values + [0.0])
    low = min([0.0] + values) if "min" not in defaults else 0.0
    if low < 0:
        high = max(high, -low / 4)
    high = high * 1.08 or 1.0
    low *= 1.08
    marks = steps(high, low, unit)
    if log:
        above = [value for value in values if value > 0]
        low, high = 10 ** math.floor(math.log10(min(above))), 10 ** math.ceil(math.log10(max(above)))
        marks = [low * 10**power for power in range(round(math.log10(high / low)) + 1)]
    scale = (lambda value: math.log10(max(value, low))) if log else (lambda value: value)
    begin, end = times[0], times[-1]
    across = lambda at: left + (at - begin) / (end - begin) * (right - left)
    up = lambda value: bottom - (scale(value) - scale(low)) / (scale(high) - scale(low)) * (bottom - top)

    out = []
    for value in marks:
        out.append(f'<path class="grid" d="M{left:.0f} {up(value):.1f}H{right:.0f}"/>')
        out.append(text(left - 6, up(value) + 4, figure(value, unit), 10, "faint", "end"))
    for minute in range(int((end - begin) // 60) + 1):
        out.append(text(across(begin + 60 * minute), bottom + 14, f"{minute} min", 10, "faint", "middle"))
    for index, (name, points) in reversed(list(enumerate(drawn))):
        paint = colour(index, name)
        line = " ".join(f"{across(at):.1f},{up(value):.1f}" for at, value in points)
        dash = ' stroke-dasharray="5 4"' if name.endswith(" maxmemory") else ""
        if stacked:
            under = drawn[index - 1][1] if index else [(at, 0.0) for at in times]
            back = " ".join(f"{across(at):.1f},{up(value):.1f}" for at, value in reversed(under))
            out.append(f'<polygon points="{line} {back}" fill="{paint}" fill-opacity="0.35"/>')
        out.append(f'<polyline points="{line}" fill="none" stroke="{paint}" stroke-width="1.5"{dash}/>')
    for index, ((name, _), (at, row)) in enumerate(zip(drawn, keys, strict=True)):
        at, place = left - 40 + at, bottom + 16 + 14 * row
        out.append(f'<rect x="{at:.0f}" y="{place - 8:.0f}" width="9" height="9" fill="{colour(index, name)}"/>')
        out.append(text(at + 12, place, name, 10))
    return out


def draw(title, panels, names):
    """The picture as text. panels: each panel's JSON with its results; names: display names of the instances."""
    bottom = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel, _ in panels)
    width, height = 24 * CELL_WIDTH + 2 * MARGIN, HEAD + bottom * CELL_HEIGHT + MARGIN
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}">',
        f"<title>{escape(title)}</title>",
        f"<style>{STYLE}</style>",
        f'<rect class="page" width="{width}" height="{height}"/>',
        text(MARGIN + 4, 27, title, 17, more=' font-weight="bold"'),
    ]
    for panel, answers in panels:
        place = panel["gridPos"]
        x, y = MARGIN + place["x"] * CELL_WIDTH, HEAD + place["y"] * CELL_HEIGHT
        w, h = place["w"] * CELL_WIDTH - GAP, place["h"] * CELL_HEIGHT - GAP
        if panel["type"] == "row":
            out.append(text(x + 4, y + 16, panel["title"], 14, more=' font-weight="bold"'))
            continue
        out.append(f'<rect class="panel" x="{x}" y="{y}" width="{w}" height="{h}" rx="3"/>')
        out.append(text(x + 10, y + 20, panel["title"], 12, more=' font-weight="bold"'))
        if panel["type"] == "stat":
            out += stat(panel, answers, x, y, w, h)
        else:
            out += graph(panel, answers, names, x, y, w, h)
    return "\n".join([*out, "</svg>"]) + "\n"
