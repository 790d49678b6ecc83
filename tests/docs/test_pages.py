"""The documentation says what the code does: files run, commands show what is shown, links lead somewhere."""

from __future__ import annotations

import re
from enum import StrEnum
from pathlib import Path
from typing import get_args

import pytest

import counterfoil
from counterfoil.core import events
from counterfoil.core.events import Answer, Ending, Proof, SenderProof, Status, Verdict
from counterfoil.runtime.agent import EXIT_CODES
from counterfoil.stores.migrate import SCHEMA
from tests.docs import pages, reference

REFERENCE = pages.DOCS / "reference"
RENEW = "run `python -m tests.docs.reference` and read what changed"

TRIED = [page for page in pages.pages() if any(block.tried or block.file for block in pages.blocks(page))]


def name(page: Path) -> str:
    return page.relative_to(pages.DOCS).as_posix()


@pytest.mark.parametrize("page", TRIED, ids=name)
def test_what_a_page_shows_is_what_happens(page: Path, tmp_path: Path) -> None:
    otherwise = pages.try_page(page, tmp_path)
    assert not otherwise, "\n\n".join(otherwise)


def test_every_link_leads_somewhere() -> None:
    lost = []
    for page in pages.pages():
        for link in pages.links(page):
            target, _, anchor = link.partition("#")
            there = (page.parent / target).resolve() if target else page
            if not there.exists() or (anchor and anchor not in pages.anchors(there)):
                lost.append(f"{name(page)}: {link}")
    assert lost == []


def test_every_public_name_has_its_line() -> None:
    listed = [re.fullmatch(r"`(\w+)`", row[0]) for row in pages.rows(REFERENCE / "api.md")]
    names = [found[1] for found in listed if found]
    assert sorted(names) == sorted(counterfoil.__all__)
    assert all(len(row) == 2 and row[1] for row in pages.rows(REFERENCE / "api.md")[1:] if row[0] != "name")


def test_the_command_line_is_as_its_page_says() -> None:
    text = reference.CLI.read_text(encoding="utf-8")
    sections = {part.partition("\n")[0]: part for part in text.split("\n## ")[1:]}
    assert sorted(sections) == sorted(reference.commands()), RENEW
    for name, command in reference.commands().items():
        cells = [cell.replace("\\|", "|") for cell in re.findall(r"^\| `(.+?)` \| ", sections[name], re.MULTILINE)]
        assert sorted(cells) == sorted(reference.options(command)), f"{name}: {RENEW}"
        codes = re.findall(r"^\| (\d+) \| ", sections[name], re.MULTILINE)
        assert sorted(codes) == sorted(reference.exits(command)), f"{name}: {RENEW}"
        assert codes, name


def test_the_exit_codes_are_those_of_the_code() -> None:
    head = reference.CLI.read_text(encoding="utf-8").split("\n## ")[0]
    said = {int(code): meaning for code, meaning in re.findall(r"^\| (\d+) \| (.+) \|$", head, re.MULTILINE)}
    assert said.keys() == {int(code) for code in reference.exits(reference.commands()["resume"])}
    of_status = {
        Status[word.upper()]: code
        for code, text in said.items()
        for word in re.findall(r"^\w+", text)
        if word.upper() in Status.__members__
    }
    assert of_status.items() <= EXIT_CODES.items()
    assert {one.exit_code for one in reference.error_classes()} <= said.keys()


def test_the_errors_are_as_their_page_says() -> None:
    told = [[cell.replace("\\|", "|") for cell in row] for row in pages.rows(reference.ERRORS)]
    assert [row for row in reference.error_rows() if row not in told] == [], RENEW


@pytest.mark.parametrize("words", [Status, Ending, Proof, Answer, SenderProof, Verdict])
def test_every_word_is_explained(words: type[StrEnum]) -> None:
    text = (REFERENCE / "statuses.md").read_text(encoding="utf-8")
    assert [word.value for word in words if f"| `{word.value}` |" not in text] == []


def test_every_status_has_its_exit_code() -> None:
    rows = {row[0].strip("`"): row for row in pages.rows(REFERENCE / "statuses.md") if len(row) == 4}
    assert {status.value: int(rows[status.value][2]) for status in Status} == {
        status.value: code for status, code in EXIT_CODES.items()
    }


def test_every_event_and_column_stands_in_the_format() -> None:
    rows = {row[0].strip("`"): row for row in pages.rows(REFERENCE / "events-and-journal-format.md") if len(row) == 3}
    for event in get_args(events.Event):
        fields = re.findall(r"`(\w+)`", rows[str(event.__struct_config__.tag)][2])
        assert fields == list(event.__struct_fields__), event.__name__
    for table, columns in reference.tables().items():
        assert re.findall(r"`(\w+)`", rows[table][2]) == columns, table
    text = (REFERENCE / "events-and-journal-format.md").read_text(encoding="utf-8")
    assert f"Journal format **{events.FORMAT}**, schema **{SCHEMA}**." in text


def test_every_promise_names_tests_that_exist() -> None:
    sources = [path.read_text(encoding="utf-8") for path in (pages.ROOT / "tests").rglob("*.py")]
    sources += [path.read_text(encoding="utf-8") for path in (pages.ROOT / "src/counterfoil/testing").rglob("*.py")]
    defined = set(re.findall(r"^ *(?:async )?def (\w+)", "\n".join(sources), re.MULTILINE))
    text = (pages.DOCS / "explanation" / "promises.md").read_text(encoding="utf-8")
    promises = re.split(r"^## ", text, flags=re.MULTILINE)[1:]
    assert [promise.split(".")[0] for promise in promises[:13]] == [str(number) for number in range(1, 14)]
    for promise in promises[:13]:
        named = re.findall(r"^- `(\w+)`", promise, re.MULTILINE)
        assert named, f"no test proves: {promise.splitlines()[0]}"
        assert [one for one in named if one not in defined] == [], promise.splitlines()[0]


def test_every_page_is_reached_from_the_index() -> None:
    linked = {(pages.DOCS / link.partition("#")[0]).resolve() for link in pages.links(pages.DOCS / "index.md")}
    left_out = [page for page in pages.pages() if page not in linked and page.name != "index.md"]
    assert [name(page) for page in left_out if page.parent.name != "decisions"] == []


@pytest.mark.parametrize("says,said,agree", [
    ("a ... d", "a b\n c d", True), ("pid 7 on vm", "pid 12 on host-2", True), ("0.1 s later", "12.25 s later", True),
    ("a b", "a c", False), ("one effect", "one effect, two", False), ("key cf_" + "0" * 32, "key", False),
])  # fmt: skip
def test_an_output_is_compared(says: str, said: str, agree: bool) -> None:
    assert pages.same(says, said) is agree
