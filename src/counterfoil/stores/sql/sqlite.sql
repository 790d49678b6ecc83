-- The statements of the SQLite store, by name. `boottime_us()` reads the clock when the statement runs.

-- The rule of the house in one statement: fence, lease, position and mailbox mark, or nothing is written.
-- name: append
UPDATE runs
SET position = ?, link = ?, status = ?, due_us = ?, incident = ?, updated_us = ?
WHERE run_id = ? AND fence = ? AND position = ? AND mail = ? AND owner = ?
  AND EXISTS (
    SELECT 1 FROM leases
    WHERE incarnation = ? AND boot_id = ? AND ended = '' AND expires_us > boottime_us()
  )
RETURNING run_no;

-- name: insert_event
INSERT INTO events (run_no, position, at_us, fence, kind, link, body) VALUES (?, ?, ?, ?, ?, ?, ?);

-- name: insert_run
INSERT INTO runs (
  position, link, status, due_us, incident, updated_us, verify_first, created_us,
  run_id, flow, entry, fingerprint, input_digest, labels
) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
RETURNING run_no;

-- name: head
SELECT run_no, run_id, flow, entry, fingerprint, status, position, link, fence, owner, mail, due_us, lives,
  incident, verify_first, input_digest, labels, created_us, updated_us
FROM runs WHERE run_id = ?;

-- name: heads
SELECT run_no, run_id, flow, entry, fingerprint, status, position, link, fence, owner, mail, due_us, lives,
  incident, verify_first, input_digest, labels, created_us, updated_us
FROM runs
WHERE (? = 0 OR status IN (SELECT value FROM json_each(?))) AND (? = 0 OR flow = ?)
ORDER BY run_no DESC LIMIT ?;

-- name: tombstone
SELECT run_id, flow, input_digest, status, output, keys, pruned_us FROM tombstones WHERE run_id = ?;

-- name: events
SELECT position, at_us, fence, kind, link, body FROM events WHERE run_no = ? AND position >= ? ORDER BY position;

-- name: written
SELECT position, fence, link FROM events WHERE run_no = ? AND position > ? ORDER BY position LIMIT ?;

-- name: epoch
SELECT value FROM meta WHERE name = 'epoch';

-- name: claim
UPDATE runs SET fence = ?, owner = ?, lives = lives + 1, due_us = NULL, updated_us = ?
WHERE run_no = ? AND fence = ? AND owner = ?;

-- name: insert_life
INSERT INTO lives (run_no, fence, incarnation) VALUES (?, ?, ?);

-- name: release
UPDATE runs SET owner = '' WHERE run_id = ? AND fence = ? AND owner = ?;

-- name: release_all
UPDATE runs SET owner = '' WHERE owner = ?;

-- name: posted
SELECT number FROM mailbox WHERE run_no = ? AND item_id = ?;

-- name: insert_mail
INSERT INTO mailbox (run_no, number, item_id, posted_us, body) VALUES (?, ?, ?, ?, ?);

-- name: mark
UPDATE runs SET mail = ?, due_us = ? WHERE run_no = ?;

-- name: mail
SELECT number, item_id, body, posted_us FROM mailbox
WHERE run_no = (SELECT run_no FROM runs WHERE run_id = ?) AND number > ? ORDER BY number;

-- name: insert_lease
INSERT INTO leases (
  incarnation, boot_id, expires_us, host, pid, pid_namespace, owner_file, device, inode, token, taken_us
) VALUES (?, ?, boottime_us() + ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- An expired lease is never renewed.
-- name: renew_lease
UPDATE leases SET expires_us = boottime_us() + ?
WHERE incarnation = ? AND boot_id = ? AND ended = '' AND expires_us > boottime_us();

-- name: lease
SELECT incarnation, boot_id, expires_us, ended, host, pid, pid_namespace, owner_file, device, inode, token, taken_us
FROM leases WHERE incarnation = ?;

-- name: leases
SELECT incarnation, boot_id, expires_us, ended, host, pid, pid_namespace, owner_file, device, inode, token, taken_us
FROM leases ORDER BY taken_us, incarnation;

-- name: end_lease
UPDATE leases SET ended = ?, ended_us = ? WHERE incarnation = ? AND ended = '';
