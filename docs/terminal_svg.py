"""Make an animated SVG of a terminal session from screens captured by tmux.

    tmux capture-pane -t SESSION -p -e > frame-01.txt    # again and again, while the session runs
    python docs/terminal_svg.py frame-*.txt > docs/demo.svg

Screens that look alike are shown once; the last one stays longest.
"""

import sys
from pathlib import Path
from xml.sax.saxutils import escape

from rich.console import Console
from rich.text import Text

CELL_W, CELL_H, PAD = 8.4, 18, 14
SECONDS, LAST_SECONDS = 1.2, 8.0
BACK, FORE, DIM = "#16181d", "#d8dbe2", "#8a90a0"
COLORS = {"green": "#5fd38d", "red": "#ff7b72", "yellow": "#e3b341", "cyan": "#56d4dd", "blue": "#79c0ff"}


def screen(frame: str) -> list[Text]:
    """The lines of a captured screen, without the empty ones at its end."""
    lines = [Text.from_ansi(line) for line in frame.splitlines()]
    while lines and not lines[-1].plain.strip():
        lines.pop()
    return lines


def line_svg(line: Text, row: int, console: Console) -> str:
    """One line as text elements, one for each run of cells of the same style."""
    parts, column = [], 0
    for segment in line.render(console):
        if segment.text.strip():
            style = segment.style
            color = DIM if style and style.dim else _color(style.color.name if style and style.color else "")
            weight = ' font-weight="bold"' if style and style.bold else ""
            x, y = PAD + column * CELL_W, PAD + (row + 1) * CELL_H - 4
            length = len(segment.text.rstrip()) * CELL_W
            parts.append(
                f'<text x="{x:.1f}" y="{y}" fill="{color}"{weight} textLength="{length:.1f}" xml:space="preserve">'
                f"{escape(segment.text.rstrip())}</text>"
            )
        column += len(segment.text)
    return "".join(parts)


def _color(name: str) -> str:
    return next((code for word, code in COLORS.items() if word in name), COLORS["green"] if "70" in name else FORE)


def animation(frames: list[list[Text]], columns: int = 80) -> str:
    """The whole picture."""
    console = Console(width=columns, color_system="standard", force_terminal=True)
    rows = max(len(frame) for frame in frames)
    width, height = columns * CELL_W + 2 * PAD, rows * CELL_H + 2 * PAD
    total = SECONDS * (len(frames) - 1) + LAST_SECONDS
    rules, groups = [], []
    for number, frame in enumerate(frames):
        begin = number * SECONDS / total * 100
        end = 100.0 if number == len(frames) - 1 else (number + 1) * SECONDS / total * 100
        rules.append(
            f"@keyframes f{number}{{0%,{begin:.2f}%{{opacity:0}}{begin + 0.01:.2f}%,{end:.2f}%{{opacity:1}}"
            f"{min(end + 0.01, 100):.2f}%,100%{{opacity:{int(end == 100.0)}}}}}"
            f".f{number}{{animation:f{number} {total:.1f}s step-end infinite}}"
        )
        lines = "".join(line_svg(line, row, console) for row, line in enumerate(frame))
        groups.append(f'<g class="f{number}">{lines}</g>')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" '
        f'font-family="ui-monospace,Menlo,Consolas,monospace" font-size="14">'
        f"<style>{''.join(rules)}</style>"
        f'<rect width="100%" height="100%" rx="8" fill="{BACK}"/>{"".join(groups)}</svg>\n'
    )


def main() -> None:
    frames: list[list[Text]] = []
    for name in sys.argv[1:]:
        lines = screen(Path(name).read_text())
        if lines and (not frames or [line.plain for line in lines] != [line.plain for line in frames[-1]]):
            frames.append(lines)
    sys.stdout.write(animation(frames))


if __name__ == "__main__":
    main()
