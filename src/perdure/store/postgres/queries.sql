-- Every statement of the PostgreSQL store, each with a name and what it is for.
--
-- Many processes write at once.  Whatever changes a session has locked its row before (lock_sessions and its like), so
-- that each statement behind it sees all that others have written of that session, and nobody comes in between.
--
-- Parameters come without a type.  A cast stands where the server could not tell what is meant.

-- ================================================================ clients

-- name: store_id
-- What tells this store from every other.
SELECT value FROM meta WHERE name = 'store_id';

-- name: store_id_insert
-- The store has an id from now on.
INSERT INTO meta VALUES ('store_id', $1) ON CONFLICT DO NOTHING;

-- name: session_key
-- The key of a session.
SELECT session_key FROM sessions WHERE session_id = $1;

-- name: session_for_client
-- What a client's write must know of its session.
SELECT session_key, fingerprint, first_turn_id, status, closing, closed, blocked, open_turn_key, await_step_id
FROM sessions WHERE session_id = $1;

-- name: session_insert
-- A new session.  Its fence starts above those of all deleted sessions: a lease of an earlier session of the same id
-- must never fit.  No row comes back when another process has just made it.
INSERT INTO sessions (session_id, incarnation, fingerprint, first_turn_id, flow_type, app_name, user_id, status,
                      await_step_id, step_count, event_capacity, created_at_ms, updated_at_ms, fence)
VALUES ($1, $2, $3, $4, $5, $6, $7, 'idle', $8, 1, $9, $10, $11, (SELECT value::bigint FROM meta WHERE name = 'fence_floor'))
ON CONFLICT (session_id) DO NOTHING
RETURNING session_key;

-- name: fence_floor_raise
-- The session is about to be deleted: later ones start above its fence.
UPDATE meta SET value = greatest(value::bigint, (SELECT fence FROM sessions WHERE session_key = $1))
WHERE name = 'fence_floor';

-- name: session_take_position
-- The session has a new inbox item: gives it a position, and, if the session can go on with the item, wakes it unless it
-- is owned (its owner looks by itself).  A blocked session goes on with a cancel or a close only, one that waits with
-- anything but a message; it is seen to go on unless more answers are needed ($4).
UPDATE sessions
SET inbox_count = inbox_count + 1,
    status = CASE
        WHEN status = 'idle' OR (status = 'waiting' AND $2 <> 'message' AND NOT $4::boolean)
          OR (status = 'blocked' AND $2 IN ('cancel', 'close')) THEN 'running'
        ELSE status END,
    due_since_ms = CASE
        WHEN owner IS NOT NULL OR closed OR (blocked IS NOT NULL AND $2 NOT IN ('cancel', 'close')) THEN due_since_ms
        WHEN $2 = 'message' AND EXISTS (SELECT 1 FROM turns AS t WHERE t.turn_key = open_turn_key
                                        AND t.status = 'waiting') THEN due_since_ms
        ELSE coalesce(due_since_ms, $3) END,
    updated_at_ms = $3
WHERE session_key = $1
RETURNING inbox_count;

-- name: inbox_insert
-- A new inbox item.
INSERT INTO inbox (session_key, position, kind, turn_id, interrupt_id, accepted_at_ms, content)
VALUES ($1, $2, $3, $4, $5, $6, $7);

-- name: inbox_has_message
-- Whether a message of this turn is queued.
SELECT 1 FROM inbox WHERE session_key = $1 AND kind = 'message' AND turn_id = $2;

-- name: inbox_moves
-- Whether something is in the inbox that a session can go on with: anything when it is idle, all but a message when it
-- waits, a cancel or a close when it is blocked.
SELECT 1 FROM inbox
WHERE session_key = $1 AND ($2 = 'idle' OR kind IN ('cancel', 'close') OR ($2 = 'waiting' AND kind = 'answer')) LIMIT 1;

-- name: request_find
-- An earlier request under this id.
SELECT fingerprint, turn_id FROM requests WHERE session_key = $1 AND request_id = $2;

-- name: request_insert
-- Remembers a request and what it returned.
INSERT INTO requests (session_key, request_id, fingerprint, turn_id, created_at_ms) VALUES ($1, $2, $3, $4, $5);

-- name: session_closing
-- From now on the session takes no messages.
UPDATE sessions SET closing = true WHERE session_key = $1;

-- name: session_close
-- Closes a session that has nothing to do.  The fence moves on, so that an owner that only keeps it loses it, and so
-- that the closing event has a cursor of its own.
UPDATE sessions
SET closing = true, closed = true, status = 'closed', await_step_id = NULL, due_since_ms = NULL, wake_at_ms = NULL,
    owner = NULL, fence = fence + 1, updated_at_ms = $2
WHERE session_key = $1
RETURNING fence, event_capacity, event_bytes, trimmed_fence, trimmed_number;

-- name: session_count_events
-- New counters of a session's ring.
UPDATE sessions SET event_bytes = $1, trimmed_fence = $2, trimmed_number = $3 WHERE session_key = $4;

-- name: turn_id_of
-- The id of a turn.
SELECT turn_id FROM turns WHERE turn_key = $1;

-- name: interrupt_answer
-- Answers an interrupt if it is still pending: the compare-and-set that makes an answer final.
UPDATE interrupts SET status = $1, resolved_by = $2, resolved_at_ms = $3, response = $4
WHERE session_key = $5 AND interrupt_id = $6 AND status = 'pending';

-- name: pending_ids
-- What a session asks, oldest first.
SELECT interrupt_id FROM interrupts WHERE session_key = $1 AND status = 'pending' ORDER BY interrupt_key;

-- name: question_wait
-- Who waits for the answer to a question, and whether it needs more answers: to its group, or to the whole frontier.
SELECT q.wait, EXISTS (
    SELECT 1 FROM questions AS other
    JOIN interrupts AS i ON i.session_key = other.session_key AND i.interrupt_id = other.interrupt_id
    WHERE other.turn_key = q.turn_key AND other.leg = q.leg AND other.wait = q.wait AND i.status = 'pending'
      AND (q.wait <> 'live' OR other.call_group = q.call_group))
FROM questions AS q WHERE q.session_key = $1 AND q.interrupt_id = $2;

-- name: late_withdraw
-- Nobody may answer what outlived its turn any more.
UPDATE interrupts SET status = 'withdrawn', resolved_at_ms = $2
WHERE status = 'pending' AND session_key = $1;

-- name: delete_calls
-- With its session.
DELETE FROM calls WHERE turn_key IN (SELECT turn_key FROM turns WHERE session_key = $1);

-- name: delete_model_calls
-- With its session.
DELETE FROM model_calls WHERE turn_key IN (SELECT turn_key FROM turns WHERE session_key = $1);

-- name: delete_legs
-- With its session.
DELETE FROM legs WHERE turn_key IN (SELECT turn_key FROM turns WHERE session_key = $1);

-- name: delete_questions
-- With its session.
DELETE FROM questions WHERE session_key = $1;

-- name: delete_turns
-- With its session.
DELETE FROM turns WHERE session_key = $1;

-- name: delete_steps
-- With its session.
DELETE FROM steps WHERE session_key = $1;

-- name: delete_interrupts
-- With its session.
DELETE FROM interrupts WHERE session_key = $1;

-- name: delete_messages
-- With its session.
DELETE FROM messages WHERE session_key = $1;

-- name: delete_inbox
-- With its session.
DELETE FROM inbox WHERE session_key = $1;

-- name: delete_requests
-- With its session.
DELETE FROM requests WHERE session_key = $1;

-- name: delete_events
-- With its session.
DELETE FROM events WHERE session_key = $1;

-- name: delete_session_state
-- With its session.
DELETE FROM session_state WHERE session_key = $1;

-- name: delete_session
-- The row itself.
DELETE FROM sessions WHERE session_key = $1;

-- ================================================================ appended messages, forks

-- name: inbox_has_items
-- Whether anything is in the inbox.
SELECT 1 FROM inbox WHERE session_key = $1 LIMIT 1;

-- name: session_append
-- One more turn with one message, of a session at rest.  The fence moves on, so that no owner goes on from what it has in
-- memory, and so that the events of the turn have cursors of their own.
UPDATE sessions
SET turn_count = turn_count + 1, message_count = message_count + 1, owner = NULL, fence = fence + 1, lost = 0,
    wake_at_ms = (SELECT min(deadline_ms) FROM interrupts AS w
                  WHERE w.session_key = sessions.session_key AND w.status = 'pending'),
    updated_at_ms = $2
WHERE session_key = $1
RETURNING app_name, user_id, turn_count, message_count - 1, step_count, fence,
          event_capacity, event_bytes, trimmed_fence, trimmed_number;

-- name: turn_append
-- A turn that is over as it begins.
INSERT INTO turns (session_key, turn_id, number, status, started_at_ms, ended_at_ms, first_message, first_step, message,
                   shared_state)
VALUES ($1, $2, $3, 'completed', $4::bigint, $4::bigint, $5, $6, $7, $8)
RETURNING turn_key;

-- name: fork_point
-- A turn by its id, and the messages before it; a dropped turn is none.
SELECT number, first_message FROM turns WHERE session_key = $1 AND turn_id = $2 AND number IS NOT NULL;

-- name: fork_session
-- A session like another one as it was before a turn.  No row comes back when another process has just made one.
INSERT INTO sessions (session_id, incarnation, fingerprint, flow_type, app_name, user_id, status, await_step_id,
                      event_capacity, turn_count, message_count, step_count, input_tokens, output_tokens, model_calls,
                      created_at_ms, updated_at_ms, fence)
SELECT $2, $3, $4, s.flow_type, s.app_name, s.user_id, 'idle', $5, s.event_capacity, $6::bigint - 1, $7::bigint, 1,
       (SELECT coalesce(sum(t.input_tokens), 0) FROM turns AS t WHERE t.session_key = $1 AND t.number < $6::bigint),
       (SELECT coalesce(sum(t.output_tokens), 0) FROM turns AS t WHERE t.session_key = $1 AND t.number < $6::bigint),
       (SELECT coalesce(sum(t.model_calls), 0) FROM turns AS t WHERE t.session_key = $1 AND t.number < $6::bigint),
       $8::bigint, $8::bigint, (SELECT value::bigint FROM meta WHERE name = 'fence_floor')
FROM sessions AS s WHERE s.session_key = $1
ON CONFLICT (session_id) DO NOTHING
RETURNING session_key;

-- name: fork_turns
-- The turns before a number, for another session.
INSERT INTO turns (session_key, turn_id, number, status, started_at_ms, ended_at_ms, first_message, first_step,
                   input_tokens, output_tokens, model_calls, error, message, shared_state)
SELECT $2::bigint, turn_id, number, status, started_at_ms, ended_at_ms, first_message, 0,
       input_tokens, output_tokens, model_calls, error, message, shared_state
FROM turns WHERE session_key = $1 AND number < $3 ORDER BY number;

-- name: fork_messages
-- The messages before a position, for another session that has their turns.
INSERT INTO messages (session_key, position, turn_key, role, author, tool_name, tool_call_id, images, created_at_ms, text, item)
SELECT $2::bigint, m.position, copy.turn_key, m.role, m.author, m.tool_name, m.tool_call_id, m.images, m.created_at_ms, m.text,
       m.item
FROM messages AS m
JOIN turns AS t ON t.turn_key = m.turn_key
JOIN turns AS copy ON copy.session_key = $2::bigint AND copy.turn_id = t.turn_id
WHERE m.session_key = $1 AND m.position < $3;

-- name: fork_state
-- The values that a session's keys had before a turn, for another session.
INSERT INTO session_state (session_key, name, turn_number, leg, value)
SELECT $2::bigint, name, turn_number, leg, value FROM session_state WHERE session_key = $1 AND turn_number < $3;

-- name: last_turn_before
-- The id of the last turn before a number.
SELECT turn_id FROM turns WHERE session_key = $1 AND number < $2 ORDER BY number DESC LIMIT 1;

-- ================================================================ state

-- name: session_state_put
-- The value that a key has at the end of a leg.
INSERT INTO session_state (session_key, name, turn_number, leg, value) VALUES ($1, $2, $3, $4, $5)
ON CONFLICT (session_key, name, turn_number, leg) DO UPDATE SET value = excluded.value;

-- name: session_state_before
-- The newest value of each key from before a leg of a turn.  Jumps from key to key, so old values cost nothing.
WITH RECURSIVE names (name) AS (
    SELECT min(name) FROM session_state WHERE session_key = $1
    UNION ALL
    SELECT (SELECT min(name) FROM session_state WHERE session_key = $1 AND name > names.name)
    FROM names WHERE names.name IS NOT NULL
)
SELECT names.name, newest.value
FROM names CROSS JOIN LATERAL (
    SELECT value FROM session_state AS version
    WHERE version.session_key = $1 AND version.name = names.name
      AND (version.turn_number, version.leg) < ($2::bigint, $3::bigint)
    ORDER BY version.turn_number DESC, version.leg DESC LIMIT 1
) AS newest
WHERE names.name IS NOT NULL;

-- name: shared_state_put
-- A shared value.
INSERT INTO shared_state (app_name, scope, user_id, name, value) VALUES ($1, $2, $3, $4, $5)
ON CONFLICT (app_name, scope, user_id, name) DO UPDATE SET value = excluded.value;

-- name: shared_state_of
-- The shared values that a session sees, by key: those of its application, and those of its user in it.
SELECT 'app:' || name, value FROM shared_state WHERE app_name = $1 AND scope = 'app' AND user_id = ''
UNION ALL
SELECT 'user:' || name, value FROM shared_state WHERE app_name = $1 AND scope = 'user' AND user_id = $2;

-- ================================================================ locks

-- name: lock_sessions
-- Keeps others from writing these sessions until the end of the transaction.  Always in the same order, so that two
-- transactions never wait for each other.
SELECT session_key FROM sessions WHERE session_id = ANY ($1) ORDER BY session_key FOR UPDATE;

-- name: lock_owned
-- The same for all sessions that a worker owns, but for some.
SELECT session_key FROM sessions WHERE owner = $1 AND session_id <> ALL ($2) ORDER BY session_key FOR UPDATE;

-- name: lock_to_check
-- The same for the sessions that were recorded under other code than a worker has, or are blocked.
SELECT session_key FROM sessions
WHERE open_turn_key IS NOT NULL AND flow_type = ANY ($1::text[]) AND owner IS NULL AND due_since_ms IS NULL
  AND (blocked IS NOT NULL OR definition IS DISTINCT FROM ($2::text[])[array_position($1::text[], flow_type::text)])
ORDER BY session_key FOR UPDATE;

-- name: still_there
-- Whether the server answers.  On the way it ends those writers of this store that somebody waits for, and that have
-- waited for their own process for three seconds: one that was stopped while it sent is not idle to the server.
SELECT count(pg_terminate_backend(still.pid)) >= 0
FROM pg_stat_activity AS waiting
CROSS JOIN LATERAL unnest(pg_blocking_pids(waiting.pid)) AS blocking (pid)
JOIN pg_stat_activity AS still ON still.pid = blocking.pid
WHERE waiting.wait_event_type = 'Lock' AND still.datname = current_database() AND still.usename = current_user
  AND still.state = 'active' AND still.wait_event = 'ClientRead'
  AND still.query !~* '^\s*copy' AND still.query_start < clock_timestamp() - interval '3 seconds'
  AND EXISTS (SELECT 1 FROM pg_locks AS held WHERE held.pid = still.pid AND held.relation = 'sessions'::regclass);

-- name: writer_mark
-- A transaction begins: its number is on disk if and only if all of it is.  The row stays locked until it has ended.
INSERT INTO writers (writer_id, number, seen_ms) VALUES ($1, $2, (extract(epoch FROM clock_timestamp()) * 1000)::bigint)
ON CONFLICT (writer_id) DO UPDATE SET number = excluded.number, seen_ms = excluded.seen_ms
RETURNING number;

-- name: writer_last
-- The number of the last transaction that was carried out; waits for one that is under way.
SELECT number FROM writers WHERE writer_id = $1 FOR UPDATE;

-- name: writer_forget
-- This writer has ended, and those that have not written for so many milliseconds are long gone.
DELETE FROM writers WHERE writer_id = $1 OR seen_ms < (extract(epoch FROM clock_timestamp()) * 1000)::bigint - $2::bigint;

-- name: worker_lock
-- Takes the lock that says that a worker's process lives; the database session keeps it.
SELECT pg_try_advisory_lock(hashtextextended(current_schema || '/' || $1::text, 0));

-- name: worker_unlock
-- Lets go of it.
SELECT pg_advisory_unlock(hashtextextended(current_schema || '/' || $1::text, 0));

-- ================================================================ the owner's write

-- name: owned_session
-- The session that a lease gives the right to write, and the last event that is stored under it; nothing when the lease
-- is lost.
SELECT s.session_key, s.app_name, s.user_id, s.status, s.closed, s.blocked, s.await_step_id, s.definition,
       s.open_turn_key, t.turn_id, t.number, t.leg, t.first_message,
       s.turn_count, s.message_count, s.step_count, s.input_tokens, s.output_tokens, s.model_calls, s.lost,
       s.event_capacity, s.event_bytes, s.trimmed_fence, s.trimmed_number,
       greatest(
           coalesce((SELECT max(number) FROM events AS e WHERE e.session_key = s.session_key AND e.fence = s.fence), 0),
           CASE WHEN s.trimmed_fence = s.fence THEN s.trimmed_number ELSE 0 END)
FROM sessions AS s LEFT JOIN turns AS t ON t.turn_key = s.open_turn_key
WHERE s.session_id = $1 AND s.owner = $2 AND s.fence = $3;

-- name: session_count
-- New counters of a session, and nothing else.
UPDATE sessions
SET message_count = $1, step_count = $2, input_tokens = $3, output_tokens = $4, model_calls = $5,
    event_bytes = $6, trimmed_fence = $7, trimmed_number = $8
WHERE session_key = $9;

-- name: session_put
-- New facts of a session, and its counters.
UPDATE sessions
SET status = $1, closed = $2, closing = closing OR $3::boolean, blocked = $4, await_step_id = $5, definition = $6,
    open_turn_key = $7, turn_count = $8, updated_at_ms = $9,
    message_count = $10, step_count = $11, input_tokens = $12, output_tokens = $13, model_calls = $14,
    event_bytes = $15, trimmed_fence = $16, trimmed_number = $17
WHERE session_key = $18;

-- name: session_release
-- Gives a session up.  It is due at once if there is something to do, or if its owner left in the middle of something.
UPDATE sessions
SET owner = NULL,
    lost = 0,
    wake_at_ms = $3,
    due_since_ms = CASE
        WHEN closed THEN NULL
        WHEN $4::boolean AND open_turn_key IS NOT NULL THEN $2::bigint
        WHEN EXISTS (SELECT 1 FROM inbox AS i LEFT JOIN turns AS t ON t.turn_key = sessions.open_turn_key
                     WHERE i.session_key = sessions.session_key
                     AND (i.kind IN ('cancel', 'close') OR sessions.blocked IS NULL
                          AND (i.kind <> 'message' OR t.status IS DISTINCT FROM 'waiting'))) THEN $2
        WHEN blocked IS NULL AND EXISTS (SELECT 1 FROM turns AS t WHERE t.turn_key = open_turn_key
                                         AND t.status = 'running') THEN $2
        END
WHERE session_key = $1
RETURNING due_since_ms;

-- name: turn_begin
-- A new open turn, with the message that waits for it in the inbox.
INSERT INTO turns (session_key, turn_id, number, status, started_at_ms, first_message, first_step, message, shared_state)
SELECT session_key, turn_id, $3::bigint, 'running', $4::bigint, $5::bigint, $6::bigint, content, $7::text
FROM inbox WHERE session_key = $1 AND turn_id = $2 AND kind = 'message'
RETURNING turn_key;

-- name: leg_end
-- A turn is at a frontier: what its next leg gets.
INSERT INTO legs (turn_key, leg, first_message, carry) VALUES ($1, $2, $3, $4)
ON CONFLICT DO NOTHING;

-- name: leg_begin
-- A leg begins, in the state that there is.
UPDATE legs SET first_message = $1, shared_state = $2 WHERE turn_key = $3 AND leg = $4;

-- name: turn_leg
-- The present leg of a turn.
UPDATE turns SET leg = $1 WHERE turn_key = $2;

-- name: turn_drop
-- A turn that will never begin.
INSERT INTO turns (session_key, turn_id, status, started_at_ms, ended_at_ms, first_message, first_step, message)
SELECT session_key, turn_id, 'cancelled', accepted_at_ms, $3::bigint, $4::bigint, $5::bigint, content
FROM inbox WHERE session_key = $1 AND turn_id = $2 AND kind = 'message';

-- name: inbox_take_message
-- The message leaves the queue.
DELETE FROM inbox WHERE session_key = $1 AND turn_id = $2 AND kind = 'message';

-- name: inbox_join_message
-- The message leaves the queue for a turn that is open, unless somebody has cancelled it.
DELETE FROM inbox WHERE session_key = $1 AND turn_id = $2 AND kind = 'message'
  AND NOT EXISTS (SELECT 1 FROM inbox AS other WHERE other.session_key = $1 AND other.turn_id = $2
                  AND other.kind = 'cancel')
RETURNING position;

-- name: inbox_take
-- The item is done with.
DELETE FROM inbox WHERE session_key = $1 AND position = $2;

-- name: turn_change
-- A new status of a turn.
UPDATE turns SET status = $1, ended_at_ms = $2, error = $3 WHERE turn_key = $4;

-- name: turn_announce
-- How an open turn will end.
UPDATE turns SET ending = $1 WHERE turn_key = $2;

-- name: turn_add_usage
-- More usage of a turn.
UPDATE turns SET input_tokens = input_tokens + $1, output_tokens = output_tokens + $2, model_calls = model_calls + $3
WHERE turn_key = $4;

-- name: step_put
-- Inserts a step or brings it up to date; a settled one stays as it is (J3).
INSERT INTO steps (session_key, position, step_id, turn_id, name, status, attempts, key, call_id, started_at_ms,
                   settled_at_ms, error)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)
ON CONFLICT (session_key, step_id) DO UPDATE
SET turn_id = coalesce(excluded.turn_id, steps.turn_id), status = excluded.status, attempts = excluded.attempts,
    key = CASE WHEN excluded.key = '' THEN steps.key ELSE excluded.key END,
    started_at_ms = coalesce(excluded.started_at_ms, steps.started_at_ms),
    settled_at_ms = excluded.settled_at_ms, error = excluded.error
WHERE steps.status IN ('pending', 'running');

-- name: call_insert
-- A call that was asked for; one that is known only moves on.
INSERT INTO calls (turn_key, leg, call_id, step_id, phase, attempts, asks, asked, approval_step_id, interrupt_id,
                   tool_name, effect, request)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)
ON CONFLICT (turn_key, call_id, leg) DO UPDATE
SET phase = excluded.phase, attempts = excluded.attempts
WHERE calls.phase <> 'settled' AND calls.record IS NULL;

-- name: call_change
-- A call moves on, unless it is settled (J3).
UPDATE calls SET phase = $1, attempts = $2, asks = $3, asked = coalesce($4, asked), approval_step_id = $5, interrupt_id = $6
WHERE turn_key = $7 AND leg = $8 AND call_id = $9 AND record IS NULL;

-- name: call_record
-- The record of a call, once (J3).
UPDATE calls SET phase = 'settled', record = $1, sequence = $2, settled_at_ms = $3, error = $4, outcome = $5, result = $6
WHERE turn_key = $7 AND leg = $8 AND call_id = $9 AND record IS NULL;

-- name: model_call_insert
-- The record of a model call, once (J3).
INSERT INTO model_calls (turn_key, leg, key, sequence, settled_at_ms, input_tokens, output_tokens, model_calls, response)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)
ON CONFLICT DO NOTHING;

-- name: interrupt_insert
-- A new pending interrupt.
INSERT INTO interrupts (session_key, interrupt_id, turn_key, leg, call_id, kind, status, created_at_ms, deadline_ms,
                        asked)
VALUES ($1, $2, $3, $4, $5, $6, 'pending', $7, $8, $9)
ON CONFLICT (session_key, interrupt_id) DO NOTHING;

-- name: interrupt_end
-- Expires or withdraws an interrupt, unless it was answered first (J6).
UPDATE interrupts SET status = $1, resolved_at_ms = $2 WHERE session_key = $3 AND interrupt_id = $4 AND status = 'pending';

-- name: question_insert
-- A question that was asked.
INSERT INTO questions (session_key, interrupt_id, turn_key, leg, step_id, wait, call_group, tool_name, request)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)
ON CONFLICT (session_key, interrupt_id) DO NOTHING;

-- name: question_end
-- Nothing waits for a question any more (J12).
UPDATE questions SET settled = true, sequence = $1, settled_at_ms = $2, error = $3, answer = $4
WHERE session_key = $5 AND interrupt_id = $6 AND NOT settled;

-- name: interrupt_answer_of
-- Who answered an interrupt, and when; nothing when nobody did.
SELECT resolved_by, resolved_at_ms FROM interrupts
WHERE session_key = $1 AND interrupt_id = $2 AND status IN ('approved', 'rejected', 'answered');

-- name: message_insert
-- The next message of the log.
INSERT INTO messages (session_key, position, turn_key, role, author, tool_name, tool_call_id, images, created_at_ms, text, item)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11);

-- name: event_insert
-- A live event.
INSERT INTO events (session_key, fence, number, size, data) VALUES ($1, $2, $3, $4, $5);

-- name: event_sizes
-- The ring of a session, oldest first.
SELECT fence, number, size FROM events WHERE session_key = $1 ORDER BY fence, number;

-- name: event_trim
-- Drops the oldest events, up to one.
DELETE FROM events WHERE session_key = $1 AND (fence, number) <= ($2::bigint, $3::bigint);

-- ================================================================ workers

-- name: worker_insert
-- A live worker; its lease runs from now on.
INSERT INTO workers (worker_id, pid, lease_ms, lease_until_ms, lock_key)
VALUES ($1::label, $2, $3::bigint, coalesce($4::bigint, (extract(epoch FROM clock_timestamp()) * 1000)::bigint) + $3::bigint,
        hashtextextended(current_schema || '/' || $1::label, 0))
ON CONFLICT (worker_id) DO UPDATE
SET pid = excluded.pid, lease_ms = excluded.lease_ms, lease_until_ms = excluded.lease_until_ms;

-- name: worker_flow_insert
-- A flow that a worker serves.
INSERT INTO worker_flows (flow_type, worker_id, definition) VALUES ($1, $2, $3)
ON CONFLICT (flow_type, worker_id) DO UPDATE SET definition = excluded.definition;

-- name: worker_flows_delete
-- The worker serves nothing any more.
DELETE FROM worker_flows WHERE worker_id = $1;

-- name: worker_delete
-- The worker is gone.
DELETE FROM workers WHERE worker_id = $1 RETURNING worker_id;

-- name: worker_renew
-- The worker is alive.
UPDATE workers SET lease_until_ms = coalesce($1, (extract(epoch FROM clock_timestamp()) * 1000)::bigint) + lease_ms
WHERE worker_id = $2 RETURNING worker_id;

-- name: worker_to_claim
-- Whether the worker is known, and so may claim; whoever wants to take it out waits until the claim is on disk.
SELECT 1 FROM workers WHERE worker_id = $1 FOR SHARE;

-- name: workers_all
-- All workers but some: whether their lease ran out, whether their database session is gone, and its lock with it, and for
-- how many seconds the server has been up.
SELECT worker_id, lease_until_ms <= coalesce($1, (extract(epoch FROM clock_timestamp()) * 1000)::bigint),
       pg_try_advisory_xact_lock_shared(lock_key),
       extract(epoch FROM clock_timestamp() - pg_postmaster_start_time())::double precision
FROM workers WHERE worker_id <> ALL ($2);

-- name: worker_definitions
-- What a worker serves.
SELECT flow_type, definition FROM worker_flows WHERE worker_id = $1;

-- name: sessions_to_check
-- Makes the sessions due that were recorded under other code than the worker has, or are blocked.
UPDATE sessions SET due_since_ms = $1
WHERE open_turn_key IS NOT NULL AND flow_type = $2 AND owner IS NULL AND due_since_ms IS NULL
  AND (blocked IS NOT NULL OR definition IS DISTINCT FROM $3)
RETURNING session_id;

-- name: sessions_free
-- Frees all sessions that a worker owns, but for those in a list of ids; the new fence refuses whatever it may
-- still write.  What the claim counted is taken back ($4) if the owner gives the session back by itself.
UPDATE sessions
SET owner = NULL,
    fence = fence + 1,
    lost = greatest(lost - $4::bigint, 0),
    wake_at_ms = (SELECT min(deadline_ms) FROM interrupts AS w
                  WHERE w.session_key = sessions.session_key AND w.status = 'pending'),
    due_since_ms = CASE
        WHEN closed THEN NULL
        WHEN open_turn_key IS NOT NULL THEN $2::bigint
        WHEN EXISTS (SELECT 1 FROM inbox AS i LEFT JOIN turns AS t ON t.turn_key = sessions.open_turn_key
                     WHERE i.session_key = sessions.session_key
                     AND (i.kind IN ('cancel', 'close') OR sessions.blocked IS NULL
                          AND (i.kind <> 'message' OR t.status IS DISTINCT FROM 'waiting'))) THEN $2
        END
WHERE owner = $1 AND session_id <> ALL ($3)
RETURNING session_id;

-- ================================================================ claims

-- name: due_sessions
-- Sessions of a flow type that have something to do, oldest first.
SELECT due_since_ms, session_key FROM sessions
WHERE due_since_ms IS NOT NULL AND flow_type = $1
ORDER BY due_since_ms LIMIT $2;

-- name: waking_sessions
-- Sessions of a flow type whose time has come, oldest first.
SELECT wake_at_ms, session_key FROM sessions
WHERE wake_at_ms IS NOT NULL AND owner IS NULL AND blocked IS NULL AND flow_type = $1 AND wake_at_ms <= $2
ORDER BY wake_at_ms LIMIT $3;

-- name: overdue_sessions
-- Sessions of a flow type that have had something to do for a while, oldest first.
SELECT due_since_ms, session_id, fence FROM sessions
WHERE due_since_ms IS NOT NULL AND flow_type = $1 AND due_since_ms <= $2
ORDER BY due_since_ms LIMIT $3;

-- name: overdue_wakes
-- Sessions of a flow type whose time came a while ago, oldest first.
SELECT wake_at_ms, session_id, fence FROM sessions
WHERE wake_at_ms IS NOT NULL AND owner IS NULL AND blocked IS NULL AND flow_type = $1 AND wake_at_ms <= $2
ORDER BY wake_at_ms LIMIT $3;

-- name: next_wake
-- The earliest wake-up of a flow type.
SELECT min(wake_at_ms) FROM sessions
WHERE wake_at_ms IS NOT NULL AND owner IS NULL AND blocked IS NULL AND flow_type = $1;

-- name: session_claim
-- Takes a session, unless somebody else writes it at this moment or took it.
UPDATE sessions SET owner = $1, fence = fence + 1, lost = lost + 1, due_since_ms = NULL
WHERE session_key = (SELECT session_key FROM sessions
                     WHERE session_key = $2 AND owner IS NULL AND (due_since_ms IS NOT NULL OR wake_at_ms IS NOT NULL)
                     FOR UPDATE SKIP LOCKED)
RETURNING session_id, fence, incarnation, flow_type, user_id, turn_count, closed, blocked, await_step_id, lost - 1,
          message_count, step_count, definition, open_turn_key;

-- name: session_set_aside
-- Gives up a session that was just taken and cannot be read, as if it had not been, and leaves it alone for a while.
UPDATE sessions SET owner = NULL, lost = lost - 1, wake_at_ms = $2 WHERE session_key = $1;

-- name: session_adopt
-- The same, whoever owns it, unless its fence is another by now.
UPDATE sessions SET owner = $1, fence = fence + 1, lost = lost + 1, due_since_ms = NULL
WHERE session_key = $2 AND fence = $3
RETURNING session_id, fence, incarnation, flow_type, user_id, turn_count, closed, blocked, await_step_id, lost - 1,
          message_count, step_count, definition, open_turn_key;

-- name: session_not_lost
-- Its owner got somewhere, so those that were lost before it do not count any more.
UPDATE sessions SET lost = 0 WHERE session_key = $1;

-- name: open_turn
-- The open turn of a claimed session.
SELECT turn_id, number, status, message, started_at_ms, first_message, first_step, input_tokens, output_tokens, model_calls,
       ending, leg
FROM turns WHERE turn_key = $1;

-- name: legs_of_turn
-- The present leg of a turn, and the one that follows it if it has ended.
SELECT leg, first_message, carry FROM legs WHERE turn_key = $1 AND leg >= $2 ORDER BY leg;

-- name: raised_by_turn
-- How many interrupts each call and question of a turn raised.
SELECT call_id, count(*) FROM interrupts WHERE turn_key = $1 GROUP BY call_id;

-- name: open_model_step
-- The RunModel step that is open; steps before the turn's first are not looked at.
SELECT step_id, attempts FROM steps
WHERE session_key = $1 AND position > $2 AND turn_id = $3 AND name = 'RunModel' AND status IN ('pending', 'running')
ORDER BY position DESC LIMIT 1;

-- name: calls_of_turn
-- The calls of some legs of a turn in the order in which they were asked for, each with the answer to its interrupt.
SELECT c.request, c.step_id, c.phase, c.attempts, c.approval_step_id, c.interrupt_id, c.record, c.sequence,
       c.settled_at_ms, c.error, c.outcome, i.status, i.response, i.kind, c.asks, c.asked, c.call_id
FROM calls AS c LEFT JOIN interrupts AS i ON i.session_key = $2 AND i.interrupt_id = c.interrupt_id
WHERE c.turn_key = $1 AND c.leg BETWEEN $3 AND $4 ORDER BY c.call_key;

-- name: questions_of_turn
-- The questions of a leg of a turn in the order in which they were asked.
SELECT request, step_id, interrupt_id, settled, sequence, settled_at_ms, error, answer
FROM questions WHERE turn_key = $1 AND leg = $2 ORDER BY question_key;

-- name: questions_late
-- The open questions of a session whose answers start turns, oldest first.
SELECT t.turn_id, q.step_id, q.interrupt_id, i.kind
FROM questions AS q
JOIN turns AS t ON t.turn_key = q.turn_key
JOIN interrupts AS i ON i.session_key = q.session_key AND i.interrupt_id = q.interrupt_id
WHERE q.wait = 'next_turn' AND NOT q.settled AND q.session_key = $1 ORDER BY q.question_key;

-- name: max_sequence
-- The last sequence of a turn's records.
SELECT greatest(coalesce((SELECT max(sequence) FROM calls WHERE turn_key = $1), 0),
                coalesce((SELECT max(sequence) FROM questions WHERE turn_key = $1), 0),
                coalesce((SELECT max(sequence) FROM model_calls WHERE turn_key = $1), 0));

-- name: next_deadline
-- The earliest deadline of a session's pending interrupts.
SELECT min(deadline_ms) FROM interrupts WHERE session_key = $1 AND status = 'pending';

-- name: inbox_items
-- The inbox of a session behind a position, in order; an answer with who gave it, when, and to what.
SELECT b.position, b.kind, b.turn_id, b.interrupt_id, b.content, i.resolved_by, i.resolved_at_ms, i.kind
FROM inbox AS b LEFT JOIN interrupts AS i ON i.session_key = b.session_key AND i.interrupt_id = b.interrupt_id
WHERE b.session_key = $1 AND b.position > $2 ORDER BY b.position;

-- name: lease_key
-- The key of the session that a lease is for; nothing when the lease is lost.
SELECT session_key FROM sessions WHERE session_id = $1 AND owner = $2 AND fence = $3;

-- ================================================================ reading

-- name: session_status
-- A session's status, and how many messages are queued.
SELECT status, (SELECT count(*) FROM inbox AS i WHERE i.session_key = s.session_key AND i.kind = 'message')
FROM sessions AS s WHERE session_id = $1;

-- name: snapshot
-- A session with its open or last turn.
SELECT s.session_key, s.flow_type, s.app_name, s.user_id, s.status, s.blocked, s.turn_count,
       s.input_tokens, s.output_tokens, s.model_calls, s.created_at_ms, s.updated_at_ms,
       (SELECT count(*) FROM inbox AS i WHERE i.session_key = s.session_key AND i.kind = 'message'),
       EXISTS (SELECT 1 FROM worker_flows AS f JOIN workers AS w ON w.worker_id = f.worker_id
               WHERE f.flow_type = s.flow_type
               AND w.lease_until_ms > coalesce($2, (extract(epoch FROM clock_timestamp()) * 1000)::bigint)),
       greatest(s.lost - (s.owner IS NOT NULL)::int, 0),
       t.turn_id, t.number, t.status, t.started_at_ms, t.ended_at_ms,
       t.input_tokens, t.output_tokens, t.model_calls, t.error
FROM sessions AS s LEFT JOIN turns AS t ON t.session_key = s.session_key AND t.number = s.turn_count
WHERE s.session_id = $1;

-- name: interrupts_pending
-- The pending interrupts of a session, oldest first.
SELECT i.interrupt_id, i.kind, t.turn_id, i.created_at_ms, i.deadline_ms, i.status, i.resolved_by, i.resolved_at_ms,
       i.response, i.call_id, i.asked, coalesce(q.request, c.request)
FROM interrupts AS i
JOIN turns AS t ON t.turn_key = i.turn_key
LEFT JOIN questions AS q ON q.session_key = i.session_key AND q.interrupt_id = i.interrupt_id
LEFT JOIN calls AS c ON c.turn_key = i.turn_key AND c.leg = i.leg AND c.call_id = i.call_id
WHERE i.session_key = $1 AND i.status = 'pending' ORDER BY i.interrupt_key;

-- name: interrupt
-- One interrupt.
SELECT i.interrupt_id, i.kind, t.turn_id, i.created_at_ms, i.deadline_ms, i.status, i.resolved_by, i.resolved_at_ms,
       i.response, i.call_id, i.asked, coalesce(q.request, c.request)
FROM interrupts AS i
JOIN turns AS t ON t.turn_key = i.turn_key
LEFT JOIN questions AS q ON q.session_key = i.session_key AND q.interrupt_id = i.interrupt_id
LEFT JOIN calls AS c ON c.turn_key = i.turn_key AND c.leg = i.leg AND c.call_id = i.call_id
WHERE i.session_key = $1 AND i.interrupt_id = $2;

-- name: messages
-- Part of the log.
SELECT m.position, t.turn_id, m.role, m.author, m.text, m.tool_name, m.tool_call_id, m.images, m.item, m.created_at_ms
FROM messages AS m JOIN turns AS t ON t.turn_key = m.turn_key
WHERE m.session_key = $1 AND m.position > $2 ORDER BY m.position LIMIT $3;

-- name: history
-- Part of the log: only what the framework made.
SELECT position, item FROM messages WHERE session_key = $1 AND position >= $2 AND position < $3 ORDER BY position;

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
WHERE s.session_key = $1 AND s.position > $2 ORDER BY s.position LIMIT $3;

-- name: ring
-- What the ring of a session has lost.
SELECT session_key, trimmed_fence, trimmed_number FROM sessions WHERE session_id = $1;

-- name: events
-- Live events behind a cursor.
SELECT fence, number, data FROM events WHERE session_key = $1 AND (fence, number) > ($2::bigint, $3::bigint)
ORDER BY fence, number LIMIT $4;

-- name: oldest_event
-- The oldest event of the ring.
SELECT fence, number FROM events WHERE session_key = $1 ORDER BY fence, number LIMIT 1;

-- name: newest_event
-- The newest event of the ring.
SELECT fence, number FROM events WHERE session_key = $1 ORDER BY fence DESC, number DESC LIMIT 1;

-- name: turn_for_replay
-- A turn with its present leg and the number of its stored messages.
SELECT s.session_key, t.turn_key, t.leg,
       coalesce((SELECT next.first_message FROM turns AS next
                 WHERE next.session_key = s.session_key AND next.number = t.number + 1), s.message_count) - t.first_message
FROM sessions AS s JOIN turns AS t ON t.session_key = s.session_key AND t.turn_id = $2
WHERE s.session_id = $1;

-- name: model_calls_of_turn
-- The model calls of a leg of a turn in the order in which they settled.
SELECT key, sequence, response, input_tokens, output_tokens, model_calls, settled_at_ms
FROM model_calls WHERE turn_key = $1 AND leg = $2 ORDER BY sequence;

-- name: session_ownership
-- Who has a session.
SELECT flow_type, owner, fence FROM sessions WHERE session_id = $1;

-- name: session_scope
-- Whose shared state a session sees.
SELECT session_key, app_name, user_id FROM sessions WHERE session_id = $1;

-- name: turn_shared_state
-- The shared state that a leg of a turn began with.
SELECT CASE WHEN $3::bigint = 1 THEN t.shared_state ELSE l.shared_state END
FROM turns AS t LEFT JOIN legs AS l ON l.turn_key = t.turn_key AND l.leg = $3::bigint
WHERE t.session_key = $1 AND t.number = $2;

-- name: list_by_change
-- Sessions, the most recently changed first.
SELECT session_id, flow_type, user_id, status, turn_count,
       (SELECT count(*) FROM interrupts AS i WHERE i.session_key = sessions.session_key AND i.status = 'pending'),
       (SELECT count(*) FROM inbox AS b WHERE b.session_key = sessions.session_key AND b.kind = 'message'),
       created_at_ms, updated_at_ms, session_key
FROM sessions
WHERE (updated_at_ms, session_key) < ($4::bigint, $5::bigint)
  AND ($1::text IS NULL OR user_id = $1) AND ($2::text IS NULL OR status = $2) AND ($3::text IS NULL OR flow_type = $3)
ORDER BY updated_at_ms DESC, session_key DESC LIMIT $6;

-- name: list_by_user
-- Sessions of one user, the most recently changed first.
SELECT session_id, flow_type, user_id, status, turn_count,
       (SELECT count(*) FROM interrupts AS i WHERE i.session_key = sessions.session_key AND i.status = 'pending'),
       (SELECT count(*) FROM inbox AS b WHERE b.session_key = sessions.session_key AND b.kind = 'message'),
       created_at_ms, updated_at_ms, session_key
FROM sessions
WHERE (updated_at_ms, session_key) < ($4::bigint, $5::bigint)
  AND user_id = $1 AND ($2::text IS NULL OR status = $2) AND ($3::text IS NULL OR flow_type = $3)
ORDER BY updated_at_ms DESC, session_key DESC LIMIT $6;

-- name: list_by_status
-- Sessions in one status, the most recently changed first.
SELECT session_id, flow_type, user_id, status, turn_count,
       (SELECT count(*) FROM interrupts AS i WHERE i.session_key = sessions.session_key AND i.status = 'pending'),
       (SELECT count(*) FROM inbox AS b WHERE b.session_key = sessions.session_key AND b.kind = 'message'),
       created_at_ms, updated_at_ms, session_key
FROM sessions
WHERE (updated_at_ms, session_key) < ($4::bigint, $5::bigint)
  AND ($1::text IS NULL OR user_id = $1) AND status = $2 AND ($3::text IS NULL OR flow_type = $3)
ORDER BY updated_at_ms DESC, session_key DESC LIMIT $6;

-- name: list_by_flow
-- Sessions of one flow type, the most recently changed first.
SELECT session_id, flow_type, user_id, status, turn_count,
       (SELECT count(*) FROM interrupts AS i WHERE i.session_key = sessions.session_key AND i.status = 'pending'),
       (SELECT count(*) FROM inbox AS b WHERE b.session_key = sessions.session_key AND b.kind = 'message'),
       created_at_ms, updated_at_ms, session_key
FROM sessions
WHERE (updated_at_ms, session_key) < ($4::bigint, $5::bigint)
  AND ($1::text IS NULL OR user_id = $1) AND ($2::text IS NULL OR status = $2) AND flow_type = $3
ORDER BY updated_at_ms DESC, session_key DESC LIMIT $6;
