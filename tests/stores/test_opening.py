"""Opening a store: what is refused, and that refusing leaves no trace."""

from __future__ import annotations

import hashlib
import shutil
import sqlite3
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest

from counterfoil.core.events import FORMAT
from counterfoil.errors import CounterfoilError, FormatTooNew, JournalDamaged, StoreUnavailable, UnsafeStore
from counterfoil.stores import migrate, sql
from counterfoil.stores.filesystem import mount_of
from counterfoil.stores.open import open_store, path_of
from counterfoil.stores.sqlite import SqliteStore
from counterfoil.testing.clock import ManualClock
from counterfoil.testing.journals import fresh
from tests.stores.processes import ROOT, worker


def fingerprints(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def change(path: Path, statement: str, *values: object) -> None:
    connection = sqlite3.connect(path)
    with connection:
        connection.execute(statement, values)
    connection.close()


async def made(path: Path) -> None:
    store = SqliteStore(path)
    await fresh(store, "r")
    await store.close()


# Where.


@pytest.mark.parametrize(
    "place,path",
    [
        ("runs.db", "runs.db"),
        ("/var/runs.db", "/var/runs.db"),
        ("sqlite:///runs.db", "runs.db"),
        ("sqlite:////var/runs.db", "/var/runs.db"),
        ("sqlite:///a%20folder/runs.db", "a folder/runs.db"),
        ("sqlite:///C:/runs.db", "C:/runs.db"),
    ],
)
def test_a_place_names_a_file(place: str, path: str) -> None:
    assert path_of(place) == path


@pytest.mark.parametrize(
    "place,what",
    [
        ("postgresql://host/db", "PostgreSQL store comes in a later release"),
        ("postgres://host/db", "PostgreSQL store comes in a later release"),
        ("mysql://host/db", "mysql: is no place"),
        ("sqlite://runs.db", "sqlite: is no place"),
        ("sqlite:///", "sqlite: is no place"),
        ("sqlite:///:memory:", "sqlite: is no place"),
        (":memory:", "would forget"),
        ("", "would forget"),
    ],
)
def test_a_place_that_is_none_is_refused_with_the_forms_that_are(place: str, what: str) -> None:
    with pytest.raises(UnsafeStore, match=what) as refusal:
        open_store(place)
    assert refusal.value.remedy


async def test_without_a_place_the_environment_says_where_or_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("COUNTERFOIL_STORE", raising=False)
    await open_store().close()
    monkeypatch.setenv("COUNTERFOIL_STORE", "sqlite:///other.db")
    await open_store().close()
    assert set(fingerprints(tmp_path)) == {"counterfoil.db", "other.db"}


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match="nowhere is no folder"):
        SqliteStore(tmp_path / "nowhere" / "store.db")


async def test_a_link_and_its_target_are_one_store(tmp_path: Path) -> None:
    (tmp_path / "link.db").symlink_to(tmp_path / "store.db")
    await made(tmp_path / "store.db")
    store = SqliteStore(tmp_path / "link.db")
    assert len(await store.find()) == 1
    assert store.path == tmp_path / "store.db"
    await store.close()


# What.


@pytest.mark.parametrize("name", ["format", "schema"])
@pytest.mark.parametrize("left", ["closed", "with a log"])
async def test_a_newer_format_is_refused_with_both_numbers_and_not_a_byte_changes(
    name: str, left: str, tmp_path: Path
) -> None:
    folder = tmp_path / "kept"
    folder.mkdir()
    await made(folder / "store.db")
    change(folder / "store.db", "UPDATE meta SET value = 99 WHERE name = ?", name)
    if left == "with a log":  # As a kill leaves it: the newest pages stand in the log only.
        holder = sqlite3.connect(folder / "store.db")
        holder.execute("INSERT INTO meta (name, value) VALUES ('by', 'a newer one')")
        holder.commit()
        shutil.copytree(folder, tmp_path / "copy")
        holder.close()
        folder = tmp_path / "copy"
        assert (folder / "store.db-wal").stat().st_size > 0
    else:
        assert {path.name for path in folder.iterdir()} == {"store.db", "store.db.owners"}
    before = fingerprints(folder)
    known = FORMAT if name == "format" else migrate.SCHEMA
    with pytest.raises(FormatTooNew, match=rf"{name} 99 is newer than {known}\b"):
        SqliteStore(folder / "store.db")
    after = fingerprints(folder)
    after.pop("store.db-shm", None)  # The index of the log is rebuilt by whoever reads; it holds nothing of its own.
    before.pop("store.db-shm", None)
    assert after == before


async def test_a_format_that_became_newer_since_the_look_is_refused_too(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    await made(path)
    change(path, "UPDATE meta SET value = 99 WHERE name = 'format'")
    connection = sqlite3.connect(path, isolation_level=None)
    with pytest.raises(FormatTooNew):
        migrate.bring_up_to_date(connection, path, ManualClock(), None)
    connection.close()


async def test_another_programs_database_is_refused_untouched(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    change(path, "CREATE TABLE meta (name, value)")
    before = fingerprints(tmp_path)
    with pytest.raises(UnsafeStore, match="another program's database"):
        SqliteStore(path)
    assert fingerprints(tmp_path) == before


def test_what_is_no_database_is_refused_untouched(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("not a database, " * 100)
    before = fingerprints(tmp_path)
    with pytest.raises(JournalDamaged, match="not a database") as refusal:
        SqliteStore(path)
    assert "counterfoil verify" in refusal.value.remedy
    assert fingerprints(tmp_path) == before


async def test_an_empty_file_becomes_a_store(tmp_path: Path) -> None:
    (tmp_path / "store.db").touch()
    await made(tmp_path / "store.db")


async def test_the_settings_keep_the_promises(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "store.db")
    info = await store.info()
    assert (info.journal_mode, info.synchronous) == ("wal", "full")
    assert (info.schema, info.format) == (migrate.SCHEMA, FORMAT)
    assert info.bytes_used["database"] > 0
    assert info.bytes_free > 0
    await store.close()


# Namespace.


async def test_a_namespace_is_random_and_stays(tmp_path: Path) -> None:
    stores = [SqliteStore(tmp_path / name) for name in ("one.db", "other.db", "one.db")]
    assert len(stores[0].namespace) == migrate.NAMESPACE_BYTES
    assert stores[0].namespace == stores[2].namespace != stores[1].namespace
    for store in stores:
        await store.close()


@pytest.mark.parametrize("named", ["our agents", b"our agents"])
async def test_a_named_namespace_makes_a_lost_store_mint_the_same_keys(named: str | bytes, tmp_path: Path) -> None:
    for name in ("lost.db", "new.db", "new.db"):
        store = SqliteStore(tmp_path / name, namespace=named)
        assert store.namespace == b"our agents"
        await store.close()


async def test_another_namespace_than_the_stores_is_refused(tmp_path: Path) -> None:
    await made(tmp_path / "store.db")
    before = fingerprints(tmp_path)
    with pytest.raises(UnsafeStore, match="another namespace"):
        SqliteStore(tmp_path / "store.db", namespace="mine")
    with pytest.raises(UnsafeStore, match="empty namespace"):
        SqliteStore(tmp_path / "store.db", namespace="")
    assert fingerprints(tmp_path) == before


# Migrations.


def test_migrations_are_numbered_without_gaps() -> None:
    numbers = list(sql.migrations("sqlite"))
    assert numbers == list(range(1, len(numbers) + 1))
    assert numbers[-1] == migrate.SCHEMA


def test_every_statement_is_used_and_every_used_one_is_there() -> None:
    sources = "".join(path.read_text() for path in (ROOT / "src" / "counterfoil" / "stores").glob("*.py"))
    unused = {name for name in sql.statements("sqlite") if f'"{name}"' not in sources}
    assert unused == set()
    assert not any("--" in text for text in sql.statements("sqlite").values())


def test_a_script_that_ends_in_the_middle_is_refused() -> None:
    assert list(sql.split("-- a comment; with a semicolon\nSELECT 1;\nSELECT\n 2;\n")) == ["SELECT 1;", "SELECT\n 2;"]
    with pytest.raises(ValueError, match="middle of a statement"):
        list(sql.split("SELECT 1;\nSELECT 2"))


def test_many_processes_make_one_store(tmp_path: Path) -> None:
    code = (
        "import sys; from counterfoil.stores.sqlite import SqliteStore; print(SqliteStore(sys.argv[1]).namespace.hex())"
    )
    running = [
        subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "store.db")], stdout=subprocess.PIPE, text=True)
        for _ in range(6)
    ]
    answers = {process.communicate()[0].strip() for process in running}
    assert [process.returncode for process in running] == [0] * 6
    assert len(answers) == 1, "two of them made it"


async def test_a_worker_that_was_killed_while_it_wrote_leaves_a_store_that_opens(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    with worker(path) as other:
        other.do("fresh", "r")
        other.ask("write_for_ever", "r")
        told = [other.hear() for _ in range(50)][-1]
        other.kill()
        while True:  # What it could still say before it died was durable too.
            try:
                told = other.hear()
            except AssertionError:
                break
    store = SqliteStore(path)
    assert len(await store.events("r")) >= told
    assert await store.verify() == []
    await store.close()


# Network file systems.

MOUNTINFO = r"""
22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw,discard
30 27 0:26 / /tmp rw,relatime - tmpfs tmpfs rw
40 27 0:40 / /mnt/net rw,relatime shared:7 master:2 - {type} server:/export rw,vers=4
41 40 8:1 / /mnt/net/local rw,relatime - xfs /dev/sdb1 rw
42 27 0:42 / /mnt/with\040a\040space rw,relatime - {type} server:/export rw
43 27 8:2 / /mnt/hidden rw,relatime - ext4 /dev/sdc1 rw
44 27 0:44 / /mnt/hidden rw,relatime - {type} server:/export rw
45 27 0:45 / /mnt/netting rw,relatime - overlay overlay rw
"""

REMOTE = [
    "nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "virtiofs", "fuse", "fuse.sshfs", "fuse.glusterfs", "fuse.s3fs",
    "ceph", "glusterfs", "lustre", "vboxsf", "vmhgfs", "fuse.vmhgfs-fuse", "afs", "gpfs", "beegfs", "drvfs",
]  # fmt: skip


def mountinfo(tmp_path: Path, kind: str, *more: str) -> Path:
    path = tmp_path / "mountinfo"
    path.write_text(MOUNTINFO.strip().replace("{type}", kind) + "\n" + "\n".join(more) + "\n")
    return path


@pytest.mark.parametrize("kind", REMOTE)
@pytest.mark.parametrize("place", ["/mnt/net/a/store.db", "/mnt/with a space/store.db", "/mnt/hidden/store.db"])
def test_a_remote_mount_is_recognised(kind: str, place: str, tmp_path: Path) -> None:
    mount = mount_of(Path(place), mountinfo(tmp_path, kind))
    assert mount is not None
    assert mount.remote
    assert mount.type == kind
    assert Path(place).is_relative_to(mount.point)


@pytest.mark.parametrize("kind", ["ext4", "xfs", "btrfs", "tmpfs", "zfs", "overlay", "apfs", "ext3", "f2fs", "fuseblk"])
def test_a_local_mount_is_fine(kind: str, tmp_path: Path) -> None:
    mount = mount_of(Path("/mnt/net/store.db"), mountinfo(tmp_path, kind))
    assert mount is not None
    assert not mount.remote


@pytest.mark.parametrize(
    "place,point",
    [("/mnt/net/local/x", "/mnt/net/local"), ("/mnt/netting/x", "/mnt/netting"), ("/srv/x", "/"), ("/tmp/x", "/tmp")],
)
def test_the_longest_mount_point_counts_and_by_whole_names(place: str, point: str, tmp_path: Path) -> None:
    mount = mount_of(Path(place), mountinfo(tmp_path, "nfs"))
    assert mount is not None
    assert mount.point == point
    assert not mount.remote


def test_a_platform_that_lists_no_mounts_is_not_checked(tmp_path: Path) -> None:
    assert mount_of(tmp_path, tmp_path / "nothing") is None
    (tmp_path / "odd").write_text("a line\n\nof something else - nfs\n")
    assert mount_of(tmp_path, tmp_path / "odd") is None


@pytest.mark.incident("9c")
@pytest.mark.parametrize("kind", ["nfs4", "virtiofs", "9p", "fuse.sshfs"])
def test_incident_9c_a_network_file_system_is_refused_by_name_before_anything_is_written(
    kind: str, tmp_path: Path
) -> None:
    folder = tmp_path / "shared"
    folder.mkdir()
    mounts = mountinfo(tmp_path, "ext4", f"99 27 0:99 / {folder} rw - {kind} server:/export rw")
    with pytest.raises(UnsafeStore) as refusal:
        SqliteStore(folder / "store.db", mounts=mounts)
    assert str(folder) in refusal.value.message
    assert kind in refusal.value.message
    assert "local disk" in refusal.value.remedy
    assert list(folder.iterdir()) == []


@pytest.mark.incident("9c")
async def test_incident_9c_a_link_to_a_network_file_system_is_seen_through(tmp_path: Path) -> None:
    folder = tmp_path / "shared"
    folder.mkdir()
    (tmp_path / "link").symlink_to(folder)
    mounts = mountinfo(tmp_path, "ext4", f"99 27 0:99 / {folder} rw - nfs server:/export rw")
    with pytest.raises(UnsafeStore, match="nfs"):
        SqliteStore(tmp_path / "link" / "store.db", mounts=mounts)
    local = SqliteStore(tmp_path / "store.db", mounts=mounts, lease=timedelta(seconds=5))
    await local.close()


async def test_a_folder_and_a_link_to_itself_are_named_for_what_they_are(tmp_path: Path) -> None:
    with pytest.raises(UnsafeStore, match="is a folder, not a file"):
        SqliteStore(tmp_path)
    link = tmp_path / "link.db"
    link.symlink_to(link)
    with pytest.raises(CounterfoilError):
        SqliteStore(link)
