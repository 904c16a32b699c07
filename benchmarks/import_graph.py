"""The modules of a package and what they import: counts, circles, lines, and a picture of the rooms.

    git worktree add ../before c657483
    python -m benchmarks.import_graph ../before/zoo zoo --titles before now --out rooms.png

Every import counts, lazy ones too, but for those that only type checkers see. A room is a module or a package
at the top level. An arrow goes from what imports to what is imported.
"""

from __future__ import annotations

import argparse
import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

from matplotlib.figure import Figure

Graph = Mapping[str, frozenset[str]]


def module_name(file: Path, root: Path) -> str:
    """zoo/nn/linear.py -> nn.linear; "" for the package itself."""
    return ".".join(file.relative_to(root).with_suffix("").parts).removesuffix("__init__").rstrip(".")


def running(node: ast.AST) -> Iterator[ast.AST]:
    """All nodes but those under `if TYPE_CHECKING`."""
    for child in ast.iter_child_nodes(node):
        if not (isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING"):
            yield child
            yield from running(child)


def imported(tree: ast.AST, package: str, modules: frozenset[str]) -> Iterator[str]:
    """The modules of a package that a source imports; of `from p.a import b` that is p.a.b if it is one."""
    for node in running(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == package:
            parent = (node.module or "")[len(package) + 1 :]
            names = [f"{parent}.{alias.name}".lstrip(".") for alias in node.names]
            yield from [name for name in names if name in modules] or [parent]
        elif isinstance(node, ast.Import):
            yield from (a.name.removeprefix(f"{package}.") for a in node.names)


def module_graph(root: Path) -> Graph:
    """What every module of a package imports of it."""
    files = {module_name(file, root): file for file in sorted(root.rglob("*.py"))}
    modules = frozenset(files)
    trees = {name: ast.parse(file.read_text(encoding="utf-8")) for name, file in files.items()}
    return {
        name: frozenset(imported(tree, root.name, modules)) & modules - {name} for name, tree in trees.items()
    }


def room_graph(modules: Graph) -> Graph:
    """What every room imports of others; the package itself, which names all, aside."""
    rooms: dict[str, set[str]] = {}
    for name, targets in modules.items():
        if name:
            room = name.split(".")[0]
            rooms.setdefault(room, set()).update(t.split(".")[0] for t in targets if t)
    return {room: frozenset(targets - {room}) for room, targets in rooms.items()}


def reached(graph: Graph, start: str) -> frozenset[str]:
    """Everything that an arrow leads to from `start`, directly or not."""
    seen: set[str] = set()
    waiting = [*graph[start]]
    while waiting:
        name = waiting.pop()
        if name not in seen:
            seen.add(name)
            waiting += graph[name]
    return frozenset(seen)


def circles(graph: Graph) -> list[frozenset[str]]:
    """The largest groups of which every member reaches every other."""
    reach = {name: reached(graph, name) for name in graph}
    groups = {
        frozenset(other for other in reach[name] if name in reach[other])
        for name in graph
        if name in reach[name]
    }
    return sorted(groups, key=sorted)


def levels(rooms: Graph) -> dict[str, int]:
    """The height of every room above those that it imports; the rooms of a circle have one height."""
    members = {name: {name} for name in rooms}
    for circle in circles(rooms):
        members.update({name: set(circle) for name in circle})
    height: dict[str, int] = {}

    def level(name: str) -> int:
        if name not in height:
            group = members[name]
            below = {target for member in group for target in rooms[member]} - group
            height.update(dict.fromkeys(group, 1 + max(map(level, below), default=-1)))
        return height[name]

    return {name: level(name) for name in rooms}


def counts(modules: Graph) -> list[int]:
    """Modules, arrows and circles between them; rooms, arrows and circles between them."""
    rooms = room_graph(modules)
    return [n for g in (modules, rooms) for n in (len(g), sum(map(len, g.values())), len(circles(g)))]


def room_lines(root: Path) -> dict[str, int]:
    """The lines of Python in every room, blank ones and docstrings included, most first."""
    lines: dict[str, int] = {}
    for file in root.rglob("*.py"):
        room = module_name(file, root).split(".")[0] or root.name
        lines[room] = lines.get(room, 0) + len(file.read_text(encoding="utf-8").splitlines())
    return dict(sorted(lines.items(), key=lambda item: -item[1]))


def picture(graphs: Mapping[str, Graph]) -> Figure:
    """The rooms of each package by their height; arrows upwards, which close a circle, are red."""
    figure = Figure(figsize=(9, 6.5 * len(graphs)), layout="constrained")
    for axes, (title, modules) in zip(
        figure.subplots(len(graphs), squeeze=False)[:, 0], graphs.items(), strict=True
    ):
        rooms = room_graph(modules)
        heights = levels(rooms)
        place: dict[str, tuple[float, int]] = {}
        for height in set(heights.values()):
            row = sorted(name for name in rooms if heights[name] == height)
            place |= {name: ((i + 1) / (len(row) + 1), height) for i, name in enumerate(row)}
        for room, targets in rooms.items():
            for target in targets:
                rises = heights[target] >= heights[room]
                axes.annotate(
                    "",
                    place[target],
                    place[room],
                    arrowprops={"arrowstyle": "-|>", "color": "tab:red" if rises else "0.8", "lw": 0.6},
                )
        for room, (x, y) in place.items():
            box = {"boxstyle": "round", "facecolor": "white", "edgecolor": "0.4"}
            axes.text(x, y, room, ha="center", va="center", fontsize=7, bbox=box)
        axes.set(xlim=(0, 1), ylim=(-0.5, max(heights.values()) + 0.5), title=title)
        axes.axis("off")
    return figure


def main() -> None:
    """Print a table of the packages, and draw their rooms."""
    parser = argparse.ArgumentParser()
    parser.add_argument("packages", type=Path, nargs="+")
    parser.add_argument("--titles", nargs="+")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    titles = arguments.titles or [str(package) for package in arguments.packages]
    graphs = {title: module_graph(package) for title, package in zip(titles, arguments.packages, strict=True)}
    print("| | modules | arrows | circles | rooms | arrows between rooms | circles of rooms |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for title, modules in graphs.items():
        print(f"| {title} | {' | '.join(map(str, counts(modules)))} |")
    for title, package in zip(titles, arguments.packages, strict=True):
        lines = room_lines(package)
        rooms = ", ".join(f"{room} {count:,}" for room, count in lines.items())
        print(f"\n{title}: {sum(lines.values()):,} lines of Python: {rooms}")
    if arguments.out is not None:
        picture(graphs).savefig(arguments.out, dpi=75)


if __name__ == "__main__":
    main()
