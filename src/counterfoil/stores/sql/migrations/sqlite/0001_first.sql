-- Times are microseconds: since 1970 (UTC) where a person reads them, since boot where a lease is judged by them.
-- No column that a check compares may be NULL: a comparison with NULL is neither true nor false.

CREATE TABLE meta (
    name TEXT PRIMARY KEY NOT NULL,
    value NOT NULL
) WITHOUT ROWID;

-- The heads. What an append changes stands first.
CREATE TABLE runs (
    run_no INTEGER PRIMARY KEY NOT NULL,
    position INTEGER NOT NULL,
    link BLOB NOT NULL,
    status TEXT NOT NULL,
    due_us INTEGER,
    incident INTEGER NOT NULL,
    updated_us INTEGER NOT NULL,
    fence INTEGER NOT NULL DEFAULT 0,
    owner TEXT NOT NULL DEFAULT '',
    mail INTEGER NOT NULL DEFAULT 0,
    lives INTEGER NOT NULL DEFAULT 0,
    verify_first INTEGER NOT NULL DEFAULT 0,
    created_us INTEGER NOT NULL,
    run_id TEXT NOT NULL UNIQUE,
    flow TEXT NOT NULL,
    entry TEXT NOT NULL,
    fingerprint TEXT NOT NULL,
    input_digest TEXT NOT NULL,
    labels BLOB NOT NULL
);

-- Who holds runs. Partial, so that the rows of runs that nobody holds cost nothing.
CREATE INDEX runs_owned ON runs (owner) WHERE owner <> '';

CREATE TABLE events (
    run_no INTEGER NOT NULL REFERENCES runs,
    position INTEGER NOT NULL,
    at_us INTEGER NOT NULL,
    fence INTEGER NOT NULL,
    kind TEXT NOT NULL,
    link BLOB NOT NULL,
    body BLOB NOT NULL,
    PRIMARY KEY (run_no, position)
) WITHOUT ROWID;

CREATE TABLE mailbox (
    run_no INTEGER NOT NULL REFERENCES runs,
    number INTEGER NOT NULL,
    item_id TEXT NOT NULL,
    posted_us INTEGER NOT NULL,
    body BLOB NOT NULL,
    PRIMARY KEY (run_no, number),
    UNIQUE (run_no, item_id)
) WITHOUT ROWID;

-- One row for each worker incarnation, whatever the number of its runs.
CREATE TABLE leases (
    incarnation TEXT PRIMARY KEY NOT NULL,
    boot_id TEXT NOT NULL,
    length_us INTEGER NOT NULL,
    expires_us INTEGER NOT NULL,
    ended TEXT NOT NULL DEFAULT '' CHECK (ended IN ('', 'released', 'dead')),
    ended_us INTEGER NOT NULL DEFAULT 0,
    host TEXT NOT NULL,
    pid INTEGER NOT NULL,
    pid_namespace TEXT NOT NULL,
    owner_file TEXT NOT NULL,
    device INTEGER NOT NULL,
    inode INTEGER NOT NULL,
    token TEXT NOT NULL,
    taken_us INTEGER NOT NULL
) WITHOUT ROWID;

-- Which incarnation held a run under which fence: as long as the run is there, what is known of that one is kept.
CREATE TABLE lives (
    run_no INTEGER NOT NULL REFERENCES runs,
    fence INTEGER NOT NULL,
    incarnation TEXT NOT NULL,
    PRIMARY KEY (run_no, fence)
) WITHOUT ROWID;

-- What pruning leaves of a run.
CREATE TABLE tombstones (
    run_id TEXT PRIMARY KEY NOT NULL,
    flow TEXT NOT NULL,
    input_digest TEXT NOT NULL,
    status TEXT NOT NULL,
    output BLOB,
    keys BLOB NOT NULL,
    effects INTEGER NOT NULL,
    pruned_us INTEGER NOT NULL
) WITHOUT ROWID;
