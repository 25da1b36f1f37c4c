"""Plant small defects in the core, one at a time, and report which of them the tests catch.

    python -m tests.tools.mutants --num 40 --seed 0 --depth test

Each defect is planted in a copy of the repository that has an environment of its own, so that
commands which tests start see it, too.  The tests run in stages, the likeliest first, and stop at
the first failure:

    near  the doctests of the module, and the test files that import it
    core  the other tests of the core, and the recorded runs
    test  all that `make test` runs besides
    all   the exhaustive tests that `make test-all` adds

A defect that no stage catches survives: either a test is missing, or the defect changes nothing
that anybody can see.  Which of the two it is takes a reader.
"""

import argparse
import ast
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from random import Random
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
DEPTHS = ("near", "core", "test", "all")
FLAGS = ("--hypothesis-profile", "fast", "-p", "no:cacheprovider", "--timeout", "120")

COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult,
    ast.FloorDiv: ast.Div, ast.Mod: ast.FloorDiv,
}  # fmt: skip
OPPOSITES = {"min": "max", "max": "min", "any": "all", "all": "any"}


class Defect(NamedTuple):
    """A piece of a source file, and what is written in its place."""

    path: str  # relative to the repository
    line: int
    start: int  # offsets in the file's bytes
    stop: int
    kind: str
    before: str
    after: str

    def __str__(self) -> str:
        before, after = (" ".join(text.split()) for text in (self.before, self.after))
        return f"{self.path}:{self.line} {self.kind}: {before[:80]} -> {after[:80]}"


class Verdict(NamedTuple):
    """The end of one defect."""

    defect: Defect
    stage: str | None  # the one that caught it; None: it survives
    test: str
    seconds: float


# ------------------------------------------------------------------------------------- defects


def defects(path: Path, fields: dict[str, list[str]]) -> Iterator[Defect]:
    """Every defect that can be planted in a file."""
    source = path.read_bytes()
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    tree = ast.parse(source)
    passive = {id(inner) for outer in _passive(tree) for inner in ast.walk(outer)}
    for node in ast.walk(tree):
        if id(node) in passive or not isinstance(node, ast.expr | ast.stmt):
            continue
        for kind, other in _others(node, fields):
            start = starts[node.lineno - 1] + node.col_offset
            stop = starts[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0)
            yield Defect(
                path=str(path.relative_to(ROOT)),
                line=node.lineno,
                start=start,
                stop=stop,
                kind=kind,
                before=source[start:stop].decode(),
                after=other,
            )


def _passive(tree: ast.Module) -> Iterator[ast.AST]:
    """The parts of a module that do nothing when it runs, or say only what a thing is."""
    for node in ast.walk(tree):
        match node:
            case ast.arg(annotation=ast.expr() as said) | ast.AnnAssign(annotation=said):
                yield said
            case ast.FunctionDef(returns=ast.expr() as said):
                yield said
            case ast.Expr(value=ast.Constant(value=str())) | ast.JoinedStr():
                yield node
            case ast.ClassDef(bases=bases, keywords=words, decorator_list=decorators):
                yield from (*bases, *words, *decorators)


def _others(node: ast.AST, fields: dict[str, list[str]]) -> Iterator[tuple[str, str]]:
    """Defective replacements of a piece of code: (kind of the defect, source)."""
    match node:
        case ast.Compare(left=left, ops=[op], comparators=[right]):
            flipped = ast.Compare(left, [COMPARISONS[type(op)]()], [right])
            yield "comparison", f"({ast.unparse(flipped)})"
        case ast.BoolOp(op=op, values=values):
            other = ast.Or() if isinstance(op, ast.And) else ast.And()
            yield "and/or", f"({ast.unparse(ast.BoolOp(other, values))})"
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield "not", f"({ast.unparse(operand)})"
        case ast.BinOp(left=left, op=op, right=right) if type(op) in ARITHMETIC:
            yield "arithmetic", f"({ast.unparse(ast.BinOp(left, ARITHMETIC[type(op)](), right))})"
        case ast.Constant(value=bool(value)):
            yield "constant", repr(not value)
        case ast.Constant(value=int(value)):
            yield "constant", repr(value + 1)
        case ast.IfExp(body=body, orelse=orelse):
            yield "branch", f"({ast.unparse(body)})"
            yield "branch", f"({ast.unparse(orelse)})"
        case ast.If(test=test, orelse=[]) if not _binds(test):
            yield "branch", "pass"
        case ast.Call(func=ast.Name(id=name), args=args, keywords=words) if name in OPPOSITES:
            call = ast.Call(ast.Name(OPPOSITES[name]), args, words)
            yield "min/max", ast.unparse(call)
        case ast.Call(func=func, args=[one, two, *rest], keywords=words) if _are_swappable(
            func, one, two
        ):
            yield "arguments", ast.unparse(ast.Call(func, [two, one, *rest], words))
        case ast.Attribute(value=value, attr=name, ctx=ast.Load()) if name in fields:
            for other_field in fields[name]:
                yield "field", f"{ast.unparse(value)}.{other_field}"
        case ast.Return(value=ast.expr() as value) if not isinstance(value, ast.Constant):
            yield "return", "return None"


def _binds(test: ast.expr) -> bool:
    return any(isinstance(node, ast.NamedExpr) for node in ast.walk(test))


def _are_swappable(func: ast.expr, one: ast.expr, two: ast.expr) -> bool:
    is_cast = isinstance(func, ast.Name) and func.id in ("isinstance", "cast", "getattr", "zip")
    starred = isinstance(one, ast.Starred) or isinstance(two, ast.Starred)
    return not is_cast and not starred and ast.dump(one) != ast.dump(two)


def fields_of(paths: Sequence[Path]) -> dict[str, list[str]]:
    """For each field of a record, the fields of the same record and type that follow it."""
    found: dict[str, list[str]] = {}
    owners: Counter[str] = Counter()
    for path in paths:
        for node in ast.walk(ast.parse(path.read_bytes())):
            if not isinstance(node, ast.ClassDef):
                continue
            typed: dict[str, list[str]] = defaultdict(list)
            for part in node.body:
                if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name):
                    typed[ast.unparse(part.annotation)].append(part.target.id)
            for names in typed.values():
                owners.update(names)
                for at, name in enumerate(names):
                    found[name] = names[at + 1 : at + 2] or names[:1]
    return {
        name: others for name, others in found.items() if owners[name] == 1 and others != [name]
    }


def draw(num: int, seed: int, folders: Sequence[str]) -> list[Defect]:
    """A sample of `num` defects, no two on a line; the same `seed` draws the same ones."""
    every = sorted((ROOT / "nip_fn").rglob("*.py"))
    fields = fields_of(every)
    chosen = [path for path in every if str(path.relative_to(ROOT)).startswith(tuple(folders))]
    found = [defect for path in chosen for defect in defects(path, fields)]
    Random(seed).shuffle(found)
    lines: dict[tuple[str, int], Defect] = {}
    for defect in found:
        lines.setdefault((defect.path, defect.line), defect)
    return list(lines.values())[:num]


# ------------------------------------------------------------------------------------- tests


@cache
def _imports(path: Path) -> frozenset[str]:
    """The modules that a test file imports, and from where their names come."""
    found = set()
    for node in ast.walk(ast.parse(path.read_bytes())):
        match node:
            case ast.Import(names=names):
                found.update(alias.name for alias in names)
            case ast.ImportFrom(module=str(module), names=names):
                found.add(module)
                found.update(f"{module}.{alias.name}" for alias in names)
    return frozenset(found)


def stages(defect: Defect, depth: str) -> Iterator[tuple[str, list[str]]]:
    """The stages up to a depth, each with pytest's arguments; none repeats another's tests."""
    name = Path(defect.path).stem
    module = defect.path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    core = sorted((ROOT / "tests/core").glob("test_*.py"))
    near = [path for path in core if path.stem == f"test_{name}" or module in _imports(path)]
    others = [path for path in core if path not in near]
    seen = ["nip_fn", "tests/core", "tests/recorded"]
    quick = [*FLAGS, "-m", "not exhaustive"]
    plans = {
        # With one test file at least: it brings the settings of all tests along.
        "near": [*quick, "-x", defect.path, "tests/core/test_house.py", *_relative(near)],
        "core": [*quick, "-x", "-n", "2", "tests/recorded", *_relative(others)],
        "test": [*quick, "-x", "-n", "4", "--dist", "loadgroup", "tests"]
        + [f"--ignore={folder}" for folder in seen],
        "all": [*FLAGS, "-m", "exhaustive", "-x", "-n", "4", "--dist", "loadgroup", "tests"],
    }
    for stage in DEPTHS[: DEPTHS.index(depth) + 1]:
        yield stage, plans[stage]


def baseline(depth: str) -> list[str]:
    """Pytest's arguments for all tests that a defect may be put to, up to a depth."""
    marks = [] if depth == "all" else ["-m", "not exhaustive"]
    places = ["tests/core", "tests/recorded"] if depth in ("near", "core") else ["tests"]
    return [*FLAGS, *marks, "-x", "-n", "4", "--dist", "loadgroup", "nip_fn", *places]


def _relative(paths: Sequence[Path]) -> list[str]:
    return [str(path.relative_to(ROOT)) for path in paths]


class Laboratory:
    """A copy of the repository with an environment of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
        names = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout
        for name in names.splitlines():
            if (ROOT / name).is_file():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, folder / name)
        self._make_environment()
        self._clock = 10**9

    def _make_environment(self) -> None:
        """The packages of the environment that runs this, but the copy in the place of ours."""
        venv = self.folder / ".venv"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
        site = next(venv.glob("lib/python*/site-packages"))
        ours = [self.folder, self.folder / "adapters", self.folder / "cli"]
        installed = [
            path
            for path in dict.fromkeys([sysconfig.get_path("purelib"), *sys.path])
            if path.endswith("site-packages")
        ]
        (site / "copy.pth").write_text("\n".join(map(str, [*ours, *installed])) + "\n")
        for script in Path(sys.executable).parent.iterdir():
            if script.is_file() and not (venv / "bin" / script.name).exists():
                content = script.read_bytes()
                if content.startswith(b"#!") and b"python" in content.splitlines()[0]:
                    _, _, rest = content.partition(b"\n")
                    copy = venv / "bin" / script.name
                    copy.write_bytes(b"#!%s\n%s" % (bytes(venv / "bin/python"), rest))
                    copy.chmod(0o755)

    def write(self, path: str, content: bytes) -> None:
        """Write a file with a time of its own: compiled files are told apart by time and size."""
        self._clock += 10
        (self.folder / path).write_bytes(content)
        os.utime(self.folder / path, (self._clock, self._clock))

    def run(self, arguments: Sequence[str], limit: float) -> str:
        """The first test that fails, or "" if none does."""
        process = subprocess.Popen(
            [self.folder / ".venv/bin/python", "-m", "pytest", "--no-header", *arguments],
            cwd=self.folder,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            output, _ = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return f"no end within {limit:.0f} s"
        if process.returncode in (0, 5):  # all passed, or none was selected
            return ""
        named = re.search(r"^(?:FAILED|ERROR) (\S+)", output, re.MULTILINE)
        return named[1] if named else output.strip().splitlines()[-1]

    def judge(self, defect: Defect, depth: str, limit: float) -> Verdict:
        """Plant a defect, run the stages until one catches it, and remove it."""
        source = (ROOT / defect.path).read_bytes()
        start = time.monotonic()
        self.write(
            defect.path, source[: defect.start] + defect.after.encode() + source[defect.stop :]
        )
        try:
            for stage, arguments in stages(defect, depth):
                if test := self.run(arguments, limit):
                    return Verdict(defect, stage, test, time.monotonic() - start)
            return Verdict(defect, None, "", time.monotonic() - start)
        finally:
            self.write(defect.path, source)


def main() -> None:
    """Plant the defects that the options name, and print the verdict on each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--num", type=int, default=40, help="number of defects")
    parser.add_argument("--seed", type=int, default=0, help="draws them")
    parser.add_argument("--depth", choices=DEPTHS, default="core", help="last stage to run")
    parser.add_argument("--limit", type=float, default=1800, help="seconds that a stage may take")
    parser.add_argument("--in", dest="folders", nargs="*", default=["nip_fn/"], help="paths")
    parser.add_argument("--list", action="store_true", help="print the defects, and run nothing")
    parser.add_argument("--json", type=Path, help="write the verdicts to this file, too")
    options = parser.parse_args()
    drawn = draw(options.num, options.seed, options.folders)
    if options.list:
        print(*drawn, sep="\n")
        return
    verdicts = []
    with tempfile.TemporaryDirectory() as folder:
        laboratory = Laboratory(Path(folder).resolve())
        # Tests that fail anyway would catch every defect.
        if failing := laboratory.run(baseline(options.depth), options.limit):
            sys.exit(f"without any defect, {failing} fails")
        for defect in drawn:
            verdict = laboratory.judge(defect, options.depth, options.limit)
            verdicts.append(verdict)
            ending = f"caught ({verdict.stage})" if verdict.stage else "SURVIVED"
            print(f"{ending:14} {verdict.seconds:5.0f} s  {defect}  {verdict.test}", flush=True)
            if options.json:
                table = [{**v._asdict(), "defect": v.defect._asdict()} for v in verdicts]
                options.json.write_text(json.dumps(table, indent=1), "utf-8")
    counts = Counter(verdict.stage or "survived" for verdict in verdicts)
    print(", ".join(f"{counts[end]} {end}" for end in (*DEPTHS, "survived") if counts[end]))


if __name__ == "__main__":
    main()
