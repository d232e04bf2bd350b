#!/usr/bin/env python3
"""Checks a trace of `Sconce.Monitor.trace/2` (`to: FILE`) and draws a part of it.

    bench/trace.py trace.json trace.svg --name "training step" --count 2

Each event has to be of the Trace Event Format: a complete event (`X`) with the fields `pid`, `tid`, `ts`, `dur`, `name`
and `cat`, or the name of a process or thread (`M`). On each thread, spans lie within each other or one after the other,
as Chrome and Perfetto require. The exit status is 1 otherwise. The picture begins with the last `--count` spans of this
name and shows all threads until their end.
"""

import argparse
import html
import json
import sys
from collections import defaultdict

COLOURS = {
    "job": "#9aa5b1", "step": "#2455c9", "forward": "#17703f", "backward": "#8a5a00", "shards": "#7b61c4",
    "wait": "#c9ced6", "call": "#b3261e", "decision": "#0b7285", "launch": "#5c940d",
}
WIDTH, ROW, LEFT = 1000, 18, 120
# Spans may differ by the rounding of their times, in microseconds.
SLACK = 0.002


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", help="the file of a trace")
    parser.add_argument("svg", nargs="?", help="the picture")
    parser.add_argument("--name", default="training step", help="the span whose part is drawn")
    parser.add_argument("--count", type=int, default=2, help="the number of such spans (default 2)")
    options = parser.parse_args()
    with open(options.trace, encoding="utf-8") as file:
        events = json.load(file)["traceEvents"]
    threads, spans = read(events)
    rows = {thread: nested(spans[thread], threads[thread]) for thread in spans}
    print(f"{sum(map(len, spans.values()))} spans of {len(spans)} threads, all nested")
    if options.svg:
        chosen = [s for own in spans.values() for s in own if s["name"] == options.name][-options.count :]
        if not chosen:
            sys.exit(f"no span {options.name}")
        begin = min(s["ts"] for s in chosen)
        end = max(s["ts"] + s["dur"] for s in chosen)
        with open(options.svg, "w", encoding="utf-8") as file:
            file.write(picture(threads, rows, begin, end))


def read(events):
    threads, spans = {}, defaultdict(list)
    for event in events:
        match event:
            case {"ph": "M", "name": "process_name", "pid": int(), "args": {"name": str()}}:
                pass
            case {"ph": "M", "name": "thread_name", "tid": int(tid), "args": {"name": str(name)}}:
                threads[tid] = name
            case {"ph": "X", "pid": int(), "tid": int(tid), "ts": ts, "dur": dur, "name": str(), "cat": str(cat)}:
                if tid not in threads or cat not in COLOURS or ts < 0 or dur < 0:
                    sys.exit(f"no such thread, kind or time: {event}")
                spans[tid].append(event)
            case _:
                sys.exit(f"no event of the format: {event}")
    return threads, spans


def nested(spans, thread):
    """The spans with their depths."""
    rows, open_ = [], []
    for span in sorted(spans, key=lambda s: (s["ts"], -s["dur"])):
        end = span["ts"] + span["dur"]
        while open_ and open_[-1] <= span["ts"] + SLACK:
            open_.pop()
        if open_ and end > open_[-1] + SLACK:
            sys.exit(f"{thread}: a span ends after the one around it: {span}")
        rows.append((len(open_), span))
        open_.append(end)
    return rows


def picture(threads, rows, begin, end):
    parts, top, scale = [], 24, (WIDTH - LEFT) / (end - begin)
    for thread, own in rows.items():
        shown = [(d, s) for d, s in own if s["ts"] < end and s["ts"] + s["dur"] > begin and s["cat"] != "job"]
        if not shown:
            continue
        least = min(d for d, _ in shown)
        parts.append(f'<text x="0" y="{top + 13}">{html.escape(threads[thread])}</text>')
        for depth, span in shown:
            x = max(span["ts"] - begin, 0) * scale
            width = (min(span["ts"] + span["dur"], end) - max(span["ts"], begin)) * scale
            y = top + (depth - least) * ROW
            parts.append(drawn(LEFT + x, y, width, span))
        top += (max(d for d, _ in shown) - least + 1) * ROW + 10
    milliseconds = (end - begin) / 1000
    parts.append(f'<text x="{LEFT}" y="14">{milliseconds:.1f} ms</text>')
    style = "text{font:11px system-ui,sans-serif;fill:#59636e}.in{fill:#fff}"
    size = f'viewBox="0 0 {WIDTH} {top}" width="{WIDTH}" height="{top}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}><style>{style}</style>\n' + "\n".join(parts) + "\n</svg>\n"


def drawn(x, y, width, span):
    name = html.escape(span["name"])
    title = f"<title>{name}, {span['dur'] / 1000:.2f} ms</title>"
    size = f'x="{x:.1f}" y="{y}" width="{max(width, 0.3):.1f}" height="{ROW - 2}"'
    text = f'<text class="in" x="{x + 3:.1f}" y="{y + 12}">{name}</text>' if width > 6.4 * len(name) + 6 else ""
    return f'<g>{title}<rect {size} fill="{COLOURS[span["cat"]]}"/>{text}</g>'


main()
