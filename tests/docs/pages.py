"""The pages as data: their code blocks and links, and a shell that tries a page's commands one after the other.

A page says what is tried:

- a ```python block whose first line is ``# NAME.py`` is a whole file. It is written into the page's folder when its
  turn comes; if nothing on the page names it, it is run;
- a ```console block behind ``<!-- run -->`` is typed into one shell per page, and what it shows must be what comes out.

In what is shown, ``...`` stands for any text. Times, spans, pids, hosts and keys are compared as words for themselves.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PORT = "8321"
"""The port that pages name; a free one takes its place."""

_BLOCK = re.compile(r"^(?P<mark><!-- run -->\n)?```(?P<kind>\w+)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"# ([\w-]+\.py)\n")
_LINK = re.compile(r"(?<!!)\[[^\]]+\]\(([^)\s]+)\)")
_MARK = "::command::"

_KILLED = re.compile(r"^\S*bash: .*Killed.*$", re.MULTILINE)
_VARIES = (
    (re.compile(r"pid \d+ on [\w.-]+"), "pid P on HOST"),
    (re.compile(r"\d{4}-\d\d-\d\d"), "DATE"),
    (re.compile(r"\d\d:\d\d:\d\d"), "TIME"),
    (re.compile(r"\d+ (?:second|minute)s? ago|just now"), "AGO"),
    (re.compile(r"\+?\d+\.\d+ s\b|\b\d+ s\b"), "SPAN"),
    (re.compile(r"\bcf_[0-9a-f]{32}"), "KEY"),
    (re.compile(r"\b[0-9a-f]{64}\b"), "DIGEST"),
    (re.compile(r"\d+ bytes"), "N bytes"),
    (re.compile(r"─+"), "─"),
    (re.compile("[\N{BALLOT X}\N{BOX DRAWINGS LIGHT DIAGONAL CROSS}]"), "x"),
)


@dataclass(frozen=True)
class Block:
    kind: str
    body: str
    tried: bool

    @property
    def file(self) -> str:
        """Its name, if it is a whole file."""
        named = _FILE.match(self.body) if self.kind == "python" else None
        return named[1] if named else ""

    @property
    def commands(self) -> list[tuple[str, str]]:
        """Each command and what it shows."""
        found: list[tuple[str, str]] = []
        for line in self.body.splitlines():
            if line.startswith("$ "):
                found.append((line[2:], ""))
            elif line.startswith("> ") and found and not found[-1][1]:
                found[-1] = (f"{found[-1][0]}\n{line[2:]}", "")
            elif found:
                found[-1] = (found[-1][0], f"{found[-1][1]}{line}\n")
        return found


def pages() -> list[Path]:
    return sorted(DOCS.rglob("*.md"))


def blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    return [Block(found["kind"], found["body"], bool(found["mark"])) for found in _BLOCK.finditer(text)]


def links(page: Path) -> list[str]:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    return [target for target in _LINK.findall(text) if "://" not in target]


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub gives to headings."""
    heads = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


def rows(page: Path) -> list[list[str]]:
    """The rows of all tables, cell by cell."""
    lines = page.read_text(encoding="utf-8").splitlines()
    split = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines if line.startswith("|")]
    return [row for row in split if not all(set(cell) <= set("-: ") for cell in row)]


def try_page(page: Path, folder: Path) -> list[str]:
    """Type a page's commands into a shell; return what came out otherwise than the page says."""
    found = blocks(page)
    typed = "\n".join(command for block in found if block.tried for command, _ in block.commands)
    port, script, shown = free_port(), [], []
    for number, block in enumerate(found):
        if block.file:
            (folder / f"{number}.part").write_text(block.body.replace(PORT, port), encoding="utf-8")
            script.append(f"cp {number}.part {block.file}")
            others = [other.body for other in found if other is not block and other.kind == "python"]
            imported = any(
                f"from {block.file[:-3]} import" in body or f'"{block.file[:-3]}:' in body for body in others
            )
            if block.file not in typed and not imported:
                script.append(f"echo '{_MARK}'\npython {block.file}")
                shown.append((f"python {block.file}", "..."))
        for command, output in block.commands if block.tried and block.kind == "console" else []:
            script.append(f"echo '{_MARK}'\n{command.replace(PORT, port)}")
            shown.append((command, output))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("COUNTERFOIL")}
    environment |= {"COLUMNS": "100", "NO_COLOR": "1", "TERM": "dumb", "PYTHONUNBUFFERED": "1"}
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    ended = "trap 'jobs -p | xargs -r kill 2>/dev/null' EXIT\n"
    shell = subprocess.run(
        ["bash", "-c", ended + "\n".join(script)],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=100,
        check=False,
    )
    came = shell.stdout.split(f"{_MARK}\n")[1:]
    assert len(came) == len(shown), shell.stdout
    return [
        f"$ {command}\n--- the page says\n{says}\n--- it says\n{said}"
        for (command, says), said in zip(shown, came, strict=True)
        if not same(says, said.replace(port, PORT))
    ]


def same(says: str, said: str) -> bool:
    """Whether an output is what a page shows of it."""
    pattern = ".*?".join(re.escape(part) for part in _plain(says).split("..."))
    return re.fullmatch(pattern, _plain(said)) is not None


def _plain(text: str) -> str:
    text = " ".join(_KILLED.sub("", text).split())
    for varies, word in _VARIES:
        text = varies.sub(word, text)
    return text


def free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])
