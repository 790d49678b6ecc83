-- The statements of the SQLite store, by name. `boottime_us()` reads the clock when the statement runs.

-- The rule of the house in one statement: fence, lease, position and mailbox mark, or nothing is written.
-- name: append
UPDATE runs
SET position = ?, link = ?, status = ?, due_us = ?, incident = ?, updated_us = ?
WHERE run_id = ? AND fence = ? AND position = ? AND mail = ? AND owner = ?
  AND EXISTS (
    SELECT 1 FROM leases
    WHERE incarnation = ? AND boot_id = ? AND ended = '' AND expires_us > boottime_us()
  );

-- name: insert_event
INSERT INTO events (run_no, position, at_us, fence, kind, link, body)
VALUES ((SELECT run_no FROM runs WHERE run_id = ?), ?, ?, ?, ?, ?, ?);

-- name: insert_run
INSERT INTO runs (
  position, link, status, due_us, incident, updated_us, verify_first, created_us,
  run_id, flow, entry, fingerprint, input_digest, labels
) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

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
  incarnation, boot_id, length_us, expires_us, host, pid, pid_namespace, owner_file, device, inode, token, taken_us
) VALUES (?, ?, ?, boottime_us() + ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- An expired lease is never renewed.
-- name: renew_lease
UPDATE leases SET expires_us = boottime_us() + ?
WHERE incarnation = ? AND boot_id = ? AND ended = '' AND expires_us > boottime_us();

-- name: lease
SELECT incarnation, boot_id, length_us, expires_us, ended, host, pid, pid_namespace, owner_file, device, inode, token
FROM leases WHERE incarnation = ?;

-- name: leases
SELECT incarnation, boot_id, length_us, expires_us, ended, host, pid, pid_namespace, owner_file, device, inode, token
FROM leases ORDER BY taken_us, incarnation;

-- name: end_lease
UPDATE leases SET ended = ?, ended_us = ? WHERE incarnation = ? AND ended = '';

-- name: raise_epoch
UPDATE meta SET value = ? WHERE name = 'epoch';

-- Every fence moves to the new epoch, so that no owner from before the restore can write.
-- name: move_fences
UPDATE runs SET fence = ? | (fence & ?), owner = '';

-- name: void_leases
UPDATE leases SET expires_us = 0 WHERE ended = '' AND incarnation <> ?;

-- name: verify_open_runs
UPDATE runs SET verify_first = 1 WHERE status NOT IN ('completed', 'failed', 'cancelled');

-- name: prunable
SELECT run_id FROM runs
WHERE status IN ('completed', 'failed', 'cancelled') AND incident = 0 AND updated_us < ?
ORDER BY run_no;

-- name: insert_tombstone
INSERT INTO tombstones (run_id, flow, input_digest, status, output, keys, effects, pruned_us)
VALUES (?, ?, ?, ?, ?, ?, ?, ?);

-- name: delete_events
DELETE FROM events WHERE run_no = ?;

-- name: delete_mailbox
DELETE FROM mailbox WHERE run_no = ?;

-- name: delete_lives
DELETE FROM lives WHERE run_no = ?;

-- name: delete_run
DELETE FROM runs WHERE run_no = ?;

-- Those of runs with effects stay for good.
-- name: forget_tombstones
DELETE FROM tombstones WHERE effects = 0 AND pruned_us < ?;

-- name: unnamed_leases
SELECT incarnation, boot_id, length_us, expires_us, ended, host, pid, pid_namespace, owner_file, device, inode, token
FROM leases
WHERE incarnation <> ? AND incarnation NOT IN (SELECT incarnation FROM lives)
  AND incarnation NOT IN (SELECT owner FROM runs WHERE owner <> '');

-- name: delete_lease
DELETE FROM leases WHERE incarnation = ?;

-- name: run_ids
SELECT run_id FROM runs ORDER BY run_no;

-- name: mailbox_span
SELECT count(*), coalesce(min(number), 1), coalesce(max(number), 0) FROM mailbox WHERE run_no = ?;

-- name: stray_events
SELECT DISTINCT run_no FROM events WHERE run_no NOT IN (SELECT run_no FROM runs);

-- name: meta
SELECT name, value FROM meta;

-- name: count_runs
SELECT status, count(*), sum(incident) FROM runs GROUP BY status;

-- name: count_tombstones
SELECT count(*) FROM tombstones;

-- name: count_owned
SELECT owner, count(*) FROM runs WHERE owner <> '' GROUP BY owner;
