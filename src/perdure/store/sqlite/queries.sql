-- Every statement of the SQLite store, each with a name and what it is for.
--
-- INDEXED BY is where SQLite would guess: without statistics it takes the wrong one of several indexes.

-- ================================================================ clients

-- name: store_id
-- What tells this store from every other.
SELECT value FROM meta WHERE name = 'store_id';

-- name: store_id_insert
-- The store has an id from now on.
INSERT OR IGNORE INTO meta VALUES ('store_id', ?);

-- name: session_key
-- The key of a session.
SELECT session_key FROM sessions WHERE session_id = ?;

-- name: session_for_client
-- What a client's write must know of its session.
SELECT session_key, fingerprint, first_turn_id, status, closing, closed, blocked, open_turn_key, await_step_id
FROM sessions WHERE session_id = ?;

-- name: session_insert
-- A new session.  Its fence starts above those of all deleted sessions: a lease of an earlier session of the same id
-- must never fit.
INSERT INTO sessions (session_id, incarnation, fingerprint, first_turn_id, flow_type, app_name, user_id, status,
                      await_step_id, step_count, event_capacity, created_at_ms, updated_at_ms, fence)
VALUES (?, ?, ?, ?, ?, ?, ?, 'idle', ?, 1, ?, ?, ?, (SELECT CAST(value AS INTEGER) FROM meta WHERE name = 'fence_floor'))
RETURNING session_key;

-- name: fence_floor_raise
-- The session is about to be deleted: later ones start above its fence.
UPDATE meta SET value = max(CAST(value AS INTEGER), (SELECT fence FROM sessions WHERE session_key = ?))
WHERE name = 'fence_floor';

-- name: session_take_position
-- The session has a new inbox item: gives it a position, and, if the session can go on with the item, wakes it unless it
-- is owned (its owner looks by itself).  A blocked session goes on with a cancel or a close only, one that waits with
-- anything but a message; it is seen to go on unless more answers are needed (?4).
UPDATE sessions
SET inbox_count = inbox_count + 1,
    status = CASE
        WHEN status = 'idle' OR (status = 'waiting' AND ?2 <> 'message' AND NOT ?4)
          OR (status = 'blocked' AND ?2 IN ('cancel', 'close')) THEN 'running'
        ELSE status END,
    due_since_ms = CASE
        WHEN owner IS NOT NULL OR closed OR (blocked IS NOT NULL AND ?2 NOT IN ('cancel', 'close')) THEN due_since_ms
        WHEN ?2 = 'message' AND EXISTS (SELECT 1 FROM turns AS t WHERE t.turn_key = open_turn_key
                                        AND t.status = 'waiting') THEN due_since_ms
        ELSE coalesce(due_since_ms, ?3) END,
    updated_at_ms = ?3
WHERE session_key = ?1
RETURNING inbox_count;

-- name: inbox_insert
-- A new inbox item.
INSERT INTO inbox (session_key, position, kind, turn_id, interrupt_id, accepted_at_ms, content)
VALUES (?, ?, ?, ?, ?, ?, ?);

-- name: inbox_has_message
-- Whether a message of this turn is queued.
SELECT 1 FROM inbox WHERE session_key = ? AND kind = 'message' AND turn_id = ?;

-- name: inbox_moves
-- Whether something is in the inbox that a session can go on with: anything when it is idle, all but a message when it
-- waits, a cancel or a close when it is blocked.
SELECT 1 FROM inbox
WHERE session_key = ?1 AND (?2 = 'idle' OR kind IN ('cancel', 'close') OR (?2 = 'waiting' AND kind = 'answer')) LIMIT 1;

-- name: request_find
-- An earlier request under this id.
SELECT fingerprint, turn_id FROM requests WHERE session_key = ? AND request_id = ?;

-- name: request_insert
-- Remembers a request and what it returned.
INSERT INTO requests (session_key, request_id, fingerprint, turn_id, created_at_ms) VALUES (?, ?, ?, ?, ?);

-- name: session_closing
-- From now on the session takes no messages.
UPDATE sessions SET closing = 1 WHERE session_key = ?;

-- name: session_close
-- Closes a session that has nothing to do.  The fence moves on, so that an owner that only keeps it loses it, and so
-- that the closing event has a cursor of its own.
UPDATE sessions
SET closing = 1, closed = 1, status = 'closed', await_step_id = NULL, due_since_ms = NULL, wake_at_ms = NULL,
    owner = NULL, fence = fence + 1, updated_at_ms = ?2
WHERE session_key = ?1
RETURNING fence, event_capacity, event_bytes, trimmed_fence, trimmed_number;

-- name: session_count_events
-- New counters of a session's ring.
UPDATE sessions SET event_bytes = ?, trimmed_fence = ?, trimmed_number = ? WHERE session_key = ?;

-- name: turn_id_of
-- The id of a turn.
SELECT turn_id FROM turns WHERE turn_key = ?;

-- name: interrupt_answer
-- Answers an interrupt if it is still pending: the compare-and-set that makes an answer final.
UPDATE interrupts SET status = ?, resolved_by = ?, resolved_at_ms = ?, response = ?
WHERE session_key = ? AND interrupt_id = ? AND status = 'pending';

-- name: pending_ids
-- What a session asks, oldest first.
SELECT interrupt_id FROM interrupts WHERE session_key = ? AND status = 'pending' ORDER BY interrupt_key;

-- name: question_wait
-- Who waits for the answer to a question, and whether it needs more answers: to its group, or to the whole frontier.
SELECT q.wait, EXISTS (
    SELECT 1 FROM questions AS other
    JOIN interrupts AS i ON i.session_key = other.session_key AND i.interrupt_id = other.interrupt_id
    WHERE other.turn_key = q.turn_key AND other.leg = q.leg AND other.wait = q.wait AND i.status = 'pending'
      AND (q.wait <> 'live' OR other.call_group = q.call_group))
FROM questions AS q WHERE q.session_key = ? AND q.interrupt_id = ?;

-- name: late_withdraw
-- Nobody may answer what outlived its turn any more.
UPDATE interrupts SET status = 'withdrawn', resolved_at_ms = ?2
WHERE status = 'pending' AND session_key = ?1;

-- name: delete_calls
-- With its session.
DELETE FROM calls WHERE turn_key IN (SELECT turn_key FROM turns WHERE session_key = ?);

-- name: delete_model_calls
-- With its session.
DELETE FROM model_calls WHERE turn_key IN (SELECT turn_key FROM turns WHERE session_key = ?);

-- name: delete_legs
-- With its session.
DELETE FROM legs WHERE turn_key IN (SELECT turn_key FROM turns WHERE session_key = ?);

-- name: delete_questions
-- With its session.
DELETE FROM questions WHERE session_key = ?;

-- name: delete_turns
-- With its session.
DELETE FROM turns WHERE session_key = ?;

-- name: delete_steps
-- With its session.
DELETE FROM steps WHERE session_key = ?;

-- name: delete_interrupts
-- With its session.
DELETE FROM interrupts WHERE session_key = ?;

-- name: delete_messages
-- With its session.
DELETE FROM messages WHERE session_key = ?;

-- name: delete_inbox
-- With its session.
DELETE FROM inbox WHERE session_key = ?;

-- name: delete_requests
-- With its session.
DELETE FROM requests WHERE session_key = ?;

-- name: delete_events
-- With its session.
DELETE FROM events WHERE session_key = ?;

-- name: delete_session_state
-- With its session.
DELETE FROM session_state WHERE session_key = ?;

-- name: delete_payloads
-- The long texts that no other session refers to.
DELETE FROM payloads WHERE sha256 IN (
    SELECT sha256 FROM payload_refs AS mine WHERE session_key = ?1
    AND NOT EXISTS (SELECT 1 FROM payload_refs AS other WHERE other.sha256 = mine.sha256 AND other.session_key <> ?1));

-- name: delete_payload_refs
-- With its session.
DELETE FROM payload_refs WHERE session_key = ?;

-- name: delete_session
-- The row itself.
DELETE FROM sessions WHERE session_key = ?;

-- ================================================================ appended messages, forks

-- name: inbox_has_items
-- Whether anything is in the inbox.
SELECT 1 FROM inbox WHERE session_key = ? LIMIT 1;

-- name: session_append
-- One more turn with one message, of a session at rest.  The fence moves on, so that no owner goes on from what it has in
-- memory, and so that the events of the turn have cursors of their own.
UPDATE sessions
SET turn_count = turn_count + 1, message_count = message_count + 1, owner = NULL, fence = fence + 1, lost = 0,
    wake_at_ms = (SELECT min(deadline_ms) FROM interrupts AS w
                  WHERE w.session_key = sessions.session_key AND w.status = 'pending'),
    updated_at_ms = ?2
WHERE session_key = ?1
RETURNING app_name, user_id, turn_count, message_count - 1, step_count, fence,
          event_capacity, event_bytes, trimmed_fence, trimmed_number;

-- name: turn_append
-- A turn that is over as it begins.
INSERT INTO turns (session_key, turn_id, number, status, started_at_ms, ended_at_ms, first_message, first_step, message,
                   shared_state)
VALUES (?1, ?2, ?3, 'completed', ?4, ?4, ?5, ?6, ?7, ?8)
RETURNING turn_key;

-- name: fork_point
-- A turn by its id, and the messages before it; a dropped turn is none.
SELECT number, first_message FROM turns WHERE session_key = ? AND turn_id = ? AND number IS NOT NULL;

-- name: fork_session
-- A session like another one as it was before a turn.
INSERT INTO sessions (session_id, incarnation, fingerprint, flow_type, app_name, user_id, status, await_step_id,
                      event_capacity, turn_count, message_count, step_count, input_tokens, output_tokens, model_calls,
                      created_at_ms, updated_at_ms, fence)
SELECT ?2, ?3, ?4, s.flow_type, s.app_name, s.user_id, 'idle', ?5, s.event_capacity, ?6 - 1, ?7, 1,
       (SELECT coalesce(sum(t.input_tokens), 0) FROM turns AS t WHERE t.session_key = ?1 AND t.number < ?6),
       (SELECT coalesce(sum(t.output_tokens), 0) FROM turns AS t WHERE t.session_key = ?1 AND t.number < ?6),
       (SELECT coalesce(sum(t.model_calls), 0) FROM turns AS t WHERE t.session_key = ?1 AND t.number < ?6),
       ?8, ?8, (SELECT CAST(value AS INTEGER) FROM meta WHERE name = 'fence_floor')
FROM sessions AS s WHERE s.session_key = ?1
RETURNING session_key;

-- name: fork_turns
-- The turns before a number, for another session.
INSERT INTO turns (session_key, turn_id, number, status, started_at_ms, ended_at_ms, first_message, first_step,
                   input_tokens, output_tokens, model_calls, error, message, shared_state)
SELECT ?2, turn_id, number, status, started_at_ms, ended_at_ms, first_message, 0,
       input_tokens, output_tokens, model_calls, error, message, shared_state
FROM turns WHERE session_key = ?1 AND number < ?3 ORDER BY number;

-- name: fork_messages
-- The messages before a position, for another session that has their turns.
INSERT INTO messages (session_key, position, turn_key, role, author, tool_name, tool_call_id, images, created_at_ms, text, item)
SELECT ?2, m.position, copy.turn_key, m.role, m.author, m.tool_name, m.tool_call_id, m.images, m.created_at_ms, m.text, m.item
FROM messages AS m
JOIN turns AS t ON t.turn_key = m.turn_key
JOIN turns AS copy ON copy.session_key = ?2 AND copy.turn_id = t.turn_id
WHERE m.session_key = ?1 AND m.position < ?3;

-- name: fork_state
-- The values that a session's keys had before a turn, for another session.
INSERT INTO session_state (session_key, name, turn_number, leg, value)
SELECT ?2, name, turn_number, leg, value FROM session_state WHERE session_key = ?1 AND turn_number < ?3;

-- name: last_turn_before
-- The id of the last turn before a number.
SELECT turn_id FROM turns WHERE session_key = ? AND number < ? ORDER BY number DESC LIMIT 1;

-- ================================================================ long texts and state

-- name: payload_insert
-- A long text, unless it is there.
INSERT OR IGNORE INTO payloads (sha256, text) VALUES (?, ?);

-- name: payload_ref_insert
-- Who refers to it.
INSERT OR IGNORE INTO payload_refs (session_key, sha256) VALUES (?, ?);

-- name: payload_refs_share
-- Another session refers to the same long texts.
INSERT INTO payload_refs (session_key, sha256) SELECT ?2, sha256 FROM payload_refs WHERE session_key = ?1;

-- name: payload_text
-- A long text.
SELECT text FROM payloads WHERE sha256 = ?;

-- name: session_state_put
-- The value that a key has at the end of a leg.
INSERT INTO session_state (session_key, name, turn_number, leg, value) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (session_key, name, turn_number, leg) DO UPDATE SET value = excluded.value;

-- name: session_state_before
-- The newest value of each key from before a leg of a turn.  Jumps from key to key, so old values cost nothing.
WITH RECURSIVE names (name) AS (
    SELECT min(name) FROM session_state WHERE session_key = ?1
    UNION ALL
    SELECT (SELECT min(name) FROM session_state WHERE session_key = ?1 AND name > names.name)
    FROM names WHERE names.name IS NOT NULL
)
SELECT names.name,
       (SELECT value FROM session_state AS version
        WHERE version.session_key = ?1 AND version.name = names.name AND (version.turn_number, version.leg) < (?2, ?3)
        ORDER BY version.turn_number DESC, version.leg DESC LIMIT 1) AS value
FROM names WHERE names.name IS NOT NULL AND value IS NOT NULL;

-- name: shared_state_put
-- A shared value.
INSERT INTO shared_state (app_name, scope, user_id, name, value) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (app_name, scope, user_id, name) DO UPDATE SET value = excluded.value;

-- name: shared_state_of
-- The shared values that a session sees, by key: those of its application, and those of its user in it.
SELECT 'app:' || name, value FROM shared_state WHERE app_name = ?1 AND scope = 'app' AND user_id = ''
UNION ALL
SELECT 'user:' || name, value FROM shared_state WHERE app_name = ?1 AND scope = 'user' AND user_id = ?2;

-- ================================================================ the owner's write

-- name: owned_session
-- The session that a lease gives the right to write, and the last event that is stored under it; nothing when the lease
-- is lost.
SELECT s.session_key, s.app_name, s.user_id, s.status, s.closed, s.blocked, s.await_step_id, s.definition,
       s.open_turn_key, t.turn_id, t.number, t.leg, t.first_message,
       s.turn_count, s.message_count, s.step_count, s.input_tokens, s.output_tokens, s.model_calls, s.lost,
       s.event_capacity, s.event_bytes, s.trimmed_fence, s.trimmed_number,
       max(coalesce((SELECT max(number) FROM events AS e WHERE e.session_key = s.session_key AND e.fence = s.fence), 0),
           iif(s.trimmed_fence = s.fence, s.trimmed_number, 0))
FROM sessions AS s LEFT JOIN turns AS t ON t.turn_key = s.open_turn_key
WHERE s.session_id = ? AND s.owner = ? AND s.fence = ?;

-- name: session_count
-- New counters of a session, and nothing else.
UPDATE sessions
SET message_count = ?, step_count = ?, input_tokens = ?, output_tokens = ?, model_calls = ?,
    event_bytes = ?, trimmed_fence = ?, trimmed_number = ?
WHERE session_key = ?;

-- name: session_put
-- New facts of a session, and its counters.
UPDATE sessions
SET status = ?, closed = ?, closing = max(closing, ?), blocked = ?, await_step_id = ?, definition = ?,
    open_turn_key = ?, turn_count = ?, updated_at_ms = ?,
    message_count = ?, step_count = ?, input_tokens = ?, output_tokens = ?, model_calls = ?,
    event_bytes = ?, trimmed_fence = ?, trimmed_number = ?
WHERE session_key = ?;

-- name: session_release
-- Gives a session up.  It is due at once if there is something to do, or if its owner left in the middle of something.
UPDATE sessions
SET owner = NULL,
    lost = 0,
    wake_at_ms = ?3,
    due_since_ms = CASE
        WHEN closed THEN NULL
        WHEN ?4 AND open_turn_key IS NOT NULL THEN ?2
        WHEN EXISTS (SELECT 1 FROM inbox AS i LEFT JOIN turns AS t ON t.turn_key = sessions.open_turn_key
                     WHERE i.session_key = sessions.session_key
                     AND (i.kind IN ('cancel', 'close') OR sessions.blocked IS NULL
                          AND (i.kind <> 'message' OR t.status IS NOT 'waiting'))) THEN ?2
        WHEN blocked IS NULL AND EXISTS (SELECT 1 FROM turns AS t WHERE t.turn_key = open_turn_key
                                         AND t.status = 'running') THEN ?2
        END
WHERE session_key = ?1
RETURNING due_since_ms;

-- name: turn_begin
-- A new open turn, with the message that waits for it in the inbox.
INSERT INTO turns (session_key, turn_id, number, status, started_at_ms, first_message, first_step, message, shared_state)
SELECT session_key, turn_id, ?3, 'running', ?4, ?5, ?6, content, ?7
FROM inbox WHERE session_key = ?1 AND turn_id = ?2 AND kind = 'message'
RETURNING turn_key;

-- name: leg_end
-- A turn is at a frontier: what its next leg gets.
INSERT OR IGNORE INTO legs (turn_key, leg, first_message, carry) VALUES (?, ?, ?, ?);

-- name: leg_begin
-- A leg begins, in the state that there is.
UPDATE legs SET first_message = ?, shared_state = ? WHERE turn_key = ? AND leg = ?;

-- name: turn_leg
-- The present leg of a turn.
UPDATE turns SET leg = ? WHERE turn_key = ?;

-- name: turn_drop
-- A turn that will never begin.
INSERT INTO turns (session_key, turn_id, status, started_at_ms, ended_at_ms, first_message, first_step, message)
SELECT session_key, turn_id, 'cancelled', accepted_at_ms, ?3, ?4, ?5, content
FROM inbox WHERE session_key = ?1 AND turn_id = ?2 AND kind = 'message';

-- name: inbox_take_message
-- The message leaves the queue.
DELETE FROM inbox WHERE session_key = ? AND turn_id = ? AND kind = 'message';

-- name: inbox_join_message
-- The message leaves the queue for a turn that is open, unless somebody has cancelled it.
DELETE FROM inbox WHERE session_key = ?1 AND turn_id = ?2 AND kind = 'message'
  AND NOT EXISTS (SELECT 1 FROM inbox AS other WHERE other.session_key = ?1 AND other.turn_id = ?2
                  AND other.kind = 'cancel')
RETURNING position;

-- name: inbox_take
-- The item is done with.
DELETE FROM inbox WHERE session_key = ? AND position = ?;

-- name: turn_change
-- A new status of a turn.
UPDATE turns SET status = ?, ended_at_ms = ?, error = ? WHERE turn_key = ?;

-- name: turn_announce
-- How an open turn will end.
UPDATE turns SET ending = ? WHERE turn_key = ?;

-- name: turn_add_usage
-- More usage of a turn.
UPDATE turns SET input_tokens = input_tokens + ?, output_tokens = output_tokens + ?, model_calls = model_calls + ?
WHERE turn_key = ?;

-- name: step_put
-- Inserts a step or brings it up to date; a settled one stays as it is (J3).
INSERT INTO steps (session_key, position, step_id, turn_id, name, status, attempts, key, call_id, started_at_ms,
                   settled_at_ms, error)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (session_key, step_id) DO UPDATE
SET turn_id = coalesce(excluded.turn_id, turn_id), status = excluded.status, attempts = excluded.attempts,
    key = CASE WHEN excluded.key = '' THEN key ELSE excluded.key END,
    started_at_ms = coalesce(excluded.started_at_ms, started_at_ms),
    settled_at_ms = excluded.settled_at_ms, error = excluded.error
WHERE steps.status IN ('pending', 'running');

-- name: call_insert
-- A call that was asked for; one that is known only moves on.
INSERT INTO calls (turn_key, leg, call_id, step_id, phase, attempts, asks, asked, approval_step_id, interrupt_id,
                   tool_name, effect, request)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (turn_key, call_id, leg) DO UPDATE
SET phase = excluded.phase, attempts = excluded.attempts
WHERE calls.phase <> 'settled' AND calls.record IS NULL;

-- name: call_change
-- A call moves on, unless it is settled (J3).
UPDATE calls SET phase = ?, attempts = ?, asks = ?, asked = coalesce(?, asked), approval_step_id = ?, interrupt_id = ?
WHERE turn_key = ? AND leg = ? AND call_id = ? AND record IS NULL;

-- name: call_record
-- The record of a call, once (J3).
UPDATE calls SET phase = 'settled', record = ?, sequence = ?, settled_at_ms = ?, error = ?, outcome = ?, result = ?
WHERE turn_key = ? AND leg = ? AND call_id = ? AND record IS NULL;

-- name: model_call_insert
-- The record of a model call, once (J3).
INSERT OR IGNORE INTO model_calls (turn_key, leg, key, sequence, settled_at_ms, input_tokens, output_tokens, model_calls,
                                   response)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: interrupt_insert
-- A new pending interrupt.
INSERT INTO interrupts (session_key, interrupt_id, turn_key, leg, call_id, kind, status, created_at_ms, deadline_ms,
                        asked)
VALUES (?, ?, ?, ?, ?, ?, 'pending', ?, ?, ?)
ON CONFLICT (session_key, interrupt_id) DO NOTHING;

-- name: interrupt_end
-- Expires or withdraws an interrupt, unless it was answered first (J6).
UPDATE interrupts SET status = ?, resolved_at_ms = ? WHERE session_key = ? AND interrupt_id = ? AND status = 'pending';

-- name: question_insert
-- A question that was asked.
INSERT INTO questions (session_key, interrupt_id, turn_key, leg, step_id, wait, call_group, tool_name, request)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (session_key, interrupt_id) DO NOTHING;

-- name: question_end
-- Nothing waits for a question any more (J12).
UPDATE questions SET settled = 1, sequence = ?, settled_at_ms = ?, error = ?, answer = ?
WHERE session_key = ? AND interrupt_id = ? AND settled = 0;

-- name: interrupt_answer_of
-- Who answered an interrupt, and when; nothing when nobody did.
SELECT resolved_by, resolved_at_ms FROM interrupts
WHERE session_key = ? AND interrupt_id = ? AND status IN ('approved', 'rejected', 'answered');

-- name: message_insert
-- The next message of the log.
INSERT INTO messages (session_key, position, turn_key, role, author, tool_name, tool_call_id, images, created_at_ms, text, item)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: event_insert
-- A live event.
INSERT INTO events (session_key, fence, number, size, data) VALUES (?, ?, ?, ?, ?);

-- name: event_sizes
-- The ring of a session, oldest first.
SELECT fence, number, size FROM events WHERE session_key = ? ORDER BY fence, number;

-- name: event_trim
-- Drops the oldest events, up to one.
DELETE FROM events WHERE session_key = ? AND (fence, number) <= (?, ?);

-- ================================================================ workers

-- name: worker_insert
-- A live worker; its lease runs from now (?4) on.
INSERT OR REPLACE INTO workers (worker_id, pid, lease_ms, lease_until_ms) VALUES (?1, ?2, ?3, ?4 + ?3);

-- name: worker_flow_insert
-- A flow that a worker serves.
INSERT OR REPLACE INTO worker_flows (flow_type, worker_id, definition) VALUES (?, ?, ?);

-- name: worker_flows_delete
-- The worker serves nothing any more.
DELETE FROM worker_flows WHERE worker_id = ?;

-- name: worker_delete
-- The worker is gone.
DELETE FROM workers WHERE worker_id = ? RETURNING worker_id;

-- name: worker_renew
-- The worker is alive.
UPDATE workers SET lease_until_ms = ? + lease_ms WHERE worker_id = ? RETURNING worker_id;

-- name: worker_to_claim
-- Whether the worker is known, and so may claim.
SELECT 1 FROM workers WHERE worker_id = ?;

-- name: workers_all
-- All workers; there are few.
SELECT worker_id, lease_until_ms FROM workers;

-- name: worker_definitions
-- What a worker serves.
SELECT flow_type, definition FROM worker_flows WHERE worker_id = ?;

-- name: sessions_to_check
-- Makes the sessions due that were recorded under other code than the worker has, or are blocked.
UPDATE sessions INDEXED BY sessions_open SET due_since_ms = ?1
WHERE open_turn_key IS NOT NULL AND flow_type = ?2 AND owner IS NULL AND due_since_ms IS NULL
  AND (blocked IS NOT NULL OR definition IS NOT ?3)
RETURNING session_id;

-- name: sessions_free
-- Frees all sessions that a worker owns, but for those in a JSON list of ids; the new fence refuses whatever it may
-- still write.  What the claim counted is taken back (?4) if the owner gives the session back by itself.
UPDATE sessions INDEXED BY sessions_owned
SET owner = NULL,
    fence = fence + 1,
    lost = max(lost - ?4, 0),
    wake_at_ms = (SELECT min(deadline_ms) FROM interrupts AS w
                  WHERE w.session_key = sessions.session_key AND w.status = 'pending'),
    due_since_ms = CASE
        WHEN closed THEN NULL
        WHEN open_turn_key IS NOT NULL THEN ?2
        WHEN EXISTS (SELECT 1 FROM inbox AS i LEFT JOIN turns AS t ON t.turn_key = sessions.open_turn_key
                     WHERE i.session_key = sessions.session_key
                     AND (i.kind IN ('cancel', 'close') OR sessions.blocked IS NULL
                          AND (i.kind <> 'message' OR t.status IS NOT 'waiting'))) THEN ?2
        END
WHERE owner = ?1 AND session_id NOT IN (SELECT value FROM json_each(?3))
RETURNING session_id;

-- ================================================================ claims

-- name: due_sessions
-- Sessions of a flow type that have something to do, oldest first.
SELECT due_since_ms, session_key FROM sessions INDEXED BY sessions_due
WHERE due_since_ms IS NOT NULL AND flow_type = ?
ORDER BY due_since_ms LIMIT ?;

-- name: waking_sessions
-- Sessions of a flow type whose time has come, oldest first.
SELECT wake_at_ms, session_key FROM sessions INDEXED BY sessions_wake
WHERE wake_at_ms IS NOT NULL AND owner IS NULL AND blocked IS NULL AND flow_type = ? AND wake_at_ms <= ?
ORDER BY wake_at_ms LIMIT ?;

-- name: overdue_sessions
-- Sessions of a flow type that have had something to do for a while, oldest first.
SELECT due_since_ms, session_id, fence FROM sessions INDEXED BY sessions_due
WHERE due_since_ms IS NOT NULL AND flow_type = ? AND due_since_ms <= ?
ORDER BY due_since_ms LIMIT ?;

-- name: overdue_wakes
-- Sessions of a flow type whose time came a while ago, oldest first.
SELECT wake_at_ms, session_id, fence FROM sessions INDEXED BY sessions_wake
WHERE wake_at_ms IS NOT NULL AND owner IS NULL AND blocked IS NULL AND flow_type = ? AND wake_at_ms <= ?
ORDER BY wake_at_ms LIMIT ?;

-- name: next_wake
-- The earliest wake-up of a flow type.
SELECT min(wake_at_ms) FROM sessions INDEXED BY sessions_wake
WHERE wake_at_ms IS NOT NULL AND owner IS NULL AND blocked IS NULL AND flow_type = ?;

-- name: session_claim
-- Takes a session.
UPDATE sessions SET owner = ?, fence = fence + 1, lost = lost + 1, due_since_ms = NULL WHERE session_key = ?
RETURNING session_id, fence, incarnation, flow_type, user_id, turn_count, closed, blocked, await_step_id, lost - 1,
          message_count, step_count, definition, open_turn_key;

-- name: session_set_aside
-- Gives up a session that was just taken and cannot be read, as if it had not been, and leaves it alone for a while.
UPDATE sessions SET owner = NULL, lost = lost - 1, wake_at_ms = ?2 WHERE session_key = ?1;

-- name: session_adopt
-- The same, whoever owns it, unless its fence is another by now.
UPDATE sessions SET owner = ?, fence = fence + 1, lost = lost + 1, due_since_ms = NULL
WHERE session_key = ? AND fence = ?
RETURNING session_id, fence, incarnation, flow_type, user_id, turn_count, closed, blocked, await_step_id, lost - 1,
          message_count, step_count, definition, open_turn_key;

-- name: session_not_lost
-- Its owner got somewhere, so those that were lost before it do not count any more.
UPDATE sessions SET lost = 0 WHERE session_key = ?;

-- name: open_turn
-- The open turn of a claimed session.
SELECT turn_id, number, status, message, started_at_ms, first_message, first_step, input_tokens, output_tokens, model_calls,
       ending, leg
FROM turns WHERE turn_key = ?;

-- name: legs_of_turn
-- The present leg of a turn, and the one that follows it if it has ended.
SELECT leg, first_message, carry FROM legs WHERE turn_key = ? AND leg >= ? ORDER BY leg;

-- name: raised_by_turn
-- How many interrupts each call and question of a turn raised.
SELECT call_id, count(*) FROM interrupts INDEXED BY interrupts_of_turn WHERE turn_key = ? GROUP BY call_id;

-- name: open_model_step
-- The RunModel step that is open; steps before the turn's first are not looked at.
SELECT step_id, attempts FROM steps
WHERE session_key = ? AND position > ? AND turn_id = ? AND name = 'RunModel' AND status IN ('pending', 'running')
ORDER BY position DESC LIMIT 1;

-- name: calls_of_turn
-- The calls of some legs of a turn in the order in which they were asked for, each with the answer to its interrupt.
SELECT c.request, c.step_id, c.phase, c.attempts, c.approval_step_id, c.interrupt_id, c.record, c.sequence,
       c.settled_at_ms, c.error, c.outcome, i.status, i.response, i.kind, c.asks, c.asked, c.call_id
FROM calls AS c LEFT JOIN interrupts AS i ON i.session_key = ?2 AND i.interrupt_id = c.interrupt_id
WHERE c.turn_key = ?1 AND c.leg BETWEEN ?3 AND ?4 ORDER BY c.call_key;

-- name: questions_of_turn
-- The questions of a leg of a turn in the order in which they were asked.
SELECT request, step_id, interrupt_id, settled, sequence, settled_at_ms, error, answer
FROM questions WHERE turn_key = ? AND leg = ? ORDER BY question_key;

-- name: questions_late
-- The open questions of a session whose answers start turns, oldest first.
SELECT t.turn_id, q.step_id, q.interrupt_id, i.kind
FROM questions AS q INDEXED BY questions_late
JOIN turns AS t ON t.turn_key = q.turn_key
JOIN interrupts AS i ON i.session_key = q.session_key AND i.interrupt_id = q.interrupt_id
WHERE q.wait = 'next_turn' AND q.settled = 0 AND q.session_key = ? ORDER BY q.question_key;

-- name: max_sequence
-- The last sequence of a turn's records.
SELECT max(coalesce((SELECT max(sequence) FROM calls WHERE turn_key = ?1), 0),
           coalesce((SELECT max(sequence) FROM questions WHERE turn_key = ?1), 0),
           coalesce((SELECT max(sequence) FROM model_calls WHERE turn_key = ?1), 0));

-- name: next_deadline
-- The earliest deadline of a session's pending interrupts.
SELECT min(deadline_ms) FROM interrupts WHERE session_key = ? AND status = 'pending';

-- name: inbox_items
-- The inbox of a session behind a position, in order; an answer with who gave it, when, and to what.
SELECT b.position, b.kind, b.turn_id, b.interrupt_id, b.content, i.resolved_by, i.resolved_at_ms, i.kind
FROM inbox AS b LEFT JOIN interrupts AS i ON i.session_key = b.session_key AND i.interrupt_id = b.interrupt_id
WHERE b.session_key = ? AND b.position > ? ORDER BY b.position;

-- name: lease_key
-- The key of the session that a lease is for; nothing when the lease is lost.
SELECT session_key FROM sessions WHERE session_id = ? AND owner = ? AND fence = ?;

-- ================================================================ reading

-- name: session_status
-- A session's status, and how many messages are queued.
SELECT status, (SELECT count(*) FROM inbox AS i WHERE i.session_key = s.session_key AND i.kind = 'message')
FROM sessions AS s WHERE session_id = ?1;

-- name: snapshot
-- A session with its open or last turn.
SELECT s.session_key, s.flow_type, s.app_name, s.user_id, s.status, s.blocked, s.turn_count,
       s.input_tokens, s.output_tokens, s.model_calls, s.created_at_ms, s.updated_at_ms,
       (SELECT count(*) FROM inbox AS i WHERE i.session_key = s.session_key AND i.kind = 'message'),
       EXISTS (SELECT 1 FROM worker_flows AS f JOIN workers AS w ON w.worker_id = f.worker_id
               WHERE f.flow_type = s.flow_type AND w.lease_until_ms > ?2),
       max(s.lost - (s.owner IS NOT NULL), 0),
       t.turn_id, t.number, t.status, t.started_at_ms, t.ended_at_ms,
       t.input_tokens, t.output_tokens, t.model_calls, t.error
FROM sessions AS s LEFT JOIN turns AS t ON t.session_key = s.session_key AND t.number = s.turn_count
WHERE s.session_id = ?1;

-- name: interrupts_pending
-- The pending interrupts of a session, oldest first.
SELECT i.interrupt_id, i.kind, t.turn_id, i.created_at_ms, i.deadline_ms, i.status, i.resolved_by, i.resolved_at_ms,
       i.response, i.call_id, i.asked, coalesce(q.request, c.request)
FROM interrupts AS i
JOIN turns AS t ON t.turn_key = i.turn_key
LEFT JOIN questions AS q ON q.session_key = i.session_key AND q.interrupt_id = i.interrupt_id
LEFT JOIN calls AS c ON c.turn_key = i.turn_key AND c.leg = i.leg AND c.call_id = i.call_id
WHERE i.session_key = ? AND i.status = 'pending' ORDER BY i.interrupt_key;

-- name: interrupt
-- One interrupt.
SELECT i.interrupt_id, i.kind, t.turn_id, i.created_at_ms, i.deadline_ms, i.status, i.resolved_by, i.resolved_at_ms,
       i.response, i.call_id, i.asked, coalesce(q.request, c.request)
FROM interrupts AS i
JOIN turns AS t ON t.turn_key = i.turn_key
LEFT JOIN questions AS q ON q.session_key = i.session_key AND q.interrupt_id = i.interrupt_id
LEFT JOIN calls AS c ON c.turn_key = i.turn_key AND c.leg = i.leg AND c.call_id = i.call_id
WHERE i.session_key = ? AND i.interrupt_id = ?;

-- name: messages
-- Part of the log.
SELECT m.position, t.turn_id, m.role, m.author, m.text, m.tool_name, m.tool_call_id, m.images, m.item, m.created_at_ms
FROM messages AS m JOIN turns AS t ON t.turn_key = m.turn_key
WHERE m.session_key = ? AND m.position > ? ORDER BY m.position LIMIT ?;

-- name: history
-- Part of the log: only what the framework made.
SELECT position, item FROM messages WHERE session_key = ? AND position >= ? AND position < ? ORDER BY position;

-- name: steps
-- Part of the step list, tool steps with what their calls returned.
SELECT s.position, s.step_id, s.turn_id, s.name, s.key, s.status, s.attempts, coalesce(q.tool_name, c.tool_name),
       s.call_id, CASE WHEN q.tool_name IS NULL THEN c.effect END,
       CASE WHEN s.name IN ('CallTool', 'CallSingleAttemptTool') AND c.record = 'succeeded' THEN c.result END,
       s.error, s.started_at_ms, s.settled_at_ms
FROM steps AS s
LEFT JOIN turns AS t ON t.session_key = s.session_key AND t.turn_id = s.turn_id
LEFT JOIN questions AS q ON q.turn_key = t.turn_key AND q.step_id = s.step_id
LEFT JOIN calls AS c ON c.call_key = coalesce(
    (SELECT call_key FROM calls WHERE turn_key = t.turn_key AND call_id = s.call_id AND step_id = s.step_id),
    (SELECT max(call_key) FROM calls WHERE turn_key = t.turn_key AND call_id = s.call_id))
WHERE s.session_key = ? AND s.position > ? ORDER BY s.position LIMIT ?;

-- name: ring
-- What the ring of a session has lost.
SELECT session_key, trimmed_fence, trimmed_number FROM sessions WHERE session_id = ?;

-- name: events
-- Live events behind a cursor.
SELECT fence, number, data FROM events WHERE session_key = ? AND (fence, number) > (?, ?)
ORDER BY fence, number LIMIT ?;

-- name: oldest_event
-- The oldest event of the ring.
SELECT fence, number FROM events WHERE session_key = ? ORDER BY fence, number LIMIT 1;

-- name: newest_event
-- The newest event of the ring.
SELECT fence, number FROM events WHERE session_key = ? ORDER BY fence DESC, number DESC LIMIT 1;

-- name: turn_for_replay
-- A turn with its present leg and the number of its stored messages.
SELECT s.session_key, t.turn_key, t.leg,
       coalesce((SELECT next.first_message FROM turns AS next
                 WHERE next.session_key = s.session_key AND next.number = t.number + 1), s.message_count) - t.first_message
FROM sessions AS s JOIN turns AS t ON t.session_key = s.session_key AND t.turn_id = ?2
WHERE s.session_id = ?1;

-- name: model_calls_of_turn
-- The model calls of a leg of a turn in the order in which they settled.
SELECT key, sequence, response, input_tokens, output_tokens, model_calls, settled_at_ms
FROM model_calls WHERE turn_key = ? AND leg = ? ORDER BY sequence;

-- name: session_ownership
-- Who has a session.
SELECT flow_type, owner, fence FROM sessions WHERE session_id = ?;

-- name: session_scope
-- Whose shared state a session sees.
SELECT session_key, app_name, user_id FROM sessions WHERE session_id = ?;

-- name: turn_shared_state
-- The shared state that a leg of a turn began with.
SELECT CASE WHEN ?3 = 1 THEN t.shared_state ELSE l.shared_state END
FROM turns AS t LEFT JOIN legs AS l ON l.turn_key = t.turn_key AND l.leg = ?3
WHERE t.session_key = ?1 AND t.number = ?2;

-- name: list_by_change
-- Sessions, the most recently changed first.
SELECT session_id, flow_type, user_id, status, turn_count,
       (SELECT count(*) FROM interrupts AS i WHERE i.session_key = sessions.session_key AND i.status = 'pending'),
       (SELECT count(*) FROM inbox AS b WHERE b.session_key = sessions.session_key AND b.kind = 'message'),
       created_at_ms, updated_at_ms, session_key
FROM sessions INDEXED BY sessions_by_change
WHERE (updated_at_ms, session_key) < (?4, ?5)
  AND (?1 IS NULL OR user_id = ?1) AND (?2 IS NULL OR status = ?2) AND (?3 IS NULL OR flow_type = ?3)
ORDER BY updated_at_ms DESC, session_key DESC LIMIT ?6;

-- name: list_by_user
-- Sessions of one user, the most recently changed first.
SELECT session_id, flow_type, user_id, status, turn_count,
       (SELECT count(*) FROM interrupts AS i WHERE i.session_key = sessions.session_key AND i.status = 'pending'),
       (SELECT count(*) FROM inbox AS b WHERE b.session_key = sessions.session_key AND b.kind = 'message'),
       created_at_ms, updated_at_ms, session_key
FROM sessions INDEXED BY sessions_by_user
WHERE (updated_at_ms, session_key) < (?4, ?5)
  AND user_id = ?1 AND (?2 IS NULL OR status = ?2) AND (?3 IS NULL OR flow_type = ?3)
ORDER BY updated_at_ms DESC, session_key DESC LIMIT ?6;

-- name: list_by_status
-- Sessions in one status, the most recently changed first.
SELECT session_id, flow_type, user_id, status, turn_count,
       (SELECT count(*) FROM interrupts AS i WHERE i.session_key = sessions.session_key AND i.status = 'pending'),
       (SELECT count(*) FROM inbox AS b WHERE b.session_key = sessions.session_key AND b.kind = 'message'),
       created_at_ms, updated_at_ms, session_key
FROM sessions INDEXED BY sessions_by_status
WHERE (updated_at_ms, session_key) < (?4, ?5)
  AND (?1 IS NULL OR user_id = ?1) AND status = ?2 AND (?3 IS NULL OR flow_type = ?3)
ORDER BY updated_at_ms DESC, session_key DESC LIMIT ?6;

-- name: list_by_flow
-- Sessions of one flow type, the most recently changed first.
SELECT session_id, flow_type, user_id, status, turn_count,
       (SELECT count(*) FROM interrupts AS i WHERE i.session_key = sessions.session_key AND i.status = 'pending'),
       (SELECT count(*) FROM inbox AS b WHERE b.session_key = sessions.session_key AND b.kind = 'message'),
       created_at_ms, updated_at_ms, session_key
FROM sessions INDEXED BY sessions_by_flow
WHERE (updated_at_ms, session_key) < (?4, ?5)
  AND (?1 IS NULL OR user_id = ?1) AND (?2 IS NULL OR status = ?2) AND flow_type = ?3
ORDER BY updated_at_ms DESC, session_key DESC LIMIT ?6;
