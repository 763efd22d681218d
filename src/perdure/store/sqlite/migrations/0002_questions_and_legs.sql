-- From version 1 to 2: questions beside calls, calls that ask in the middle, and turns of several legs.
--
-- Whatever was stored before belongs to the first leg of its turn, and asked nothing in the middle.  Tables whose keys or
-- checks change are made anew, so that they read as in schema.sql.

ALTER TABLE turns RENAME TO turns_1;

CREATE TABLE turns (
    turn_key      INTEGER PRIMARY KEY,
    session_key   INTEGER NOT NULL,
    turn_id       TEXT    NOT NULL,
    number        INTEGER,           -- NULL: its message was dropped before it began
    leg           INTEGER NOT NULL DEFAULT 1, -- the present invocation; the first one is described here
    status        TEXT    NOT NULL CHECK (status IN ('running', 'waiting', 'completed', 'failed', 'cancelled')),
    started_at_ms INTEGER NOT NULL,
    ended_at_ms   INTEGER,
    first_message INTEGER NOT NULL,  -- the session's message_count when it began
    first_step    INTEGER NOT NULL,  -- the session's step_count when it began
    input_tokens  INTEGER NOT NULL DEFAULT 0,
    output_tokens INTEGER NOT NULL DEFAULT 0,
    model_calls   INTEGER NOT NULL DEFAULT 0,
    error         TEXT,
    ending        TEXT,              -- how it will end, once the writes that still run have their records
    message       ANY     NOT NULL,
    shared_state  ANY,               -- app: and user: state as it was when it began; NULL when there was none
    UNIQUE (session_key, turn_id),
    UNIQUE (session_key, number)
) STRICT;

INSERT INTO turns (
    turn_key, session_key, turn_id, number, status, started_at_ms, ended_at_ms, first_message, first_step,
    input_tokens, output_tokens, model_calls, error, ending, message, shared_state
)
SELECT
    turn_key, session_key, turn_id, number, status, started_at_ms, ended_at_ms, first_message, first_step,
    input_tokens, output_tokens, model_calls, error, ending, message, shared_state
FROM turns_1;

DROP TABLE turns_1;

ALTER TABLE calls RENAME TO calls_1;

CREATE TABLE calls (
    call_key         INTEGER PRIMARY KEY, -- the order in which they were asked for
    turn_key         INTEGER NOT NULL,
    leg              INTEGER NOT NULL,
    call_id          TEXT    NOT NULL,
    step_id          TEXT    NOT NULL,
    phase            TEXT    NOT NULL CHECK (phase IN ('awaiting', 'due', 'started', 'settled')),
    attempts         INTEGER NOT NULL,
    asks             INTEGER NOT NULL, -- attempts that ended with a question
    approval_step_id TEXT,
    interrupt_id     TEXT,
    tool_name        TEXT    NOT NULL,
    effect           TEXT    NOT NULL,
    record           TEXT    CHECK (record IN ('succeeded', 'failed', 'rejected', 'outcome_unknown')),
    sequence         INTEGER,
    settled_at_ms    INTEGER,
    error            TEXT,
    request          ANY     NOT NULL,
    asked            ANY,             -- the outcome of the last attempt that ended with a question
    outcome          ANY,
    result           ANY,
    UNIQUE (turn_key, call_id, leg)
) STRICT;

INSERT INTO calls (
    call_key, turn_key, call_id, step_id, phase, attempts, approval_step_id, interrupt_id, tool_name, effect,
    record, sequence, settled_at_ms, error, request, outcome, result, leg, asks
)
SELECT
    call_key, turn_key, call_id, step_id, phase, attempts, approval_step_id, interrupt_id, tool_name, effect,
    record, sequence, settled_at_ms, error, request, outcome, result, 1, 0
FROM calls_1;

DROP TABLE calls_1;

CREATE TRIGGER calls_keep BEFORE UPDATE ON calls WHEN OLD.record IS NOT NULL
BEGIN
    SELECT RAISE(ABORT, 'J3: the record of a call never changes');
END;

ALTER TABLE model_calls RENAME TO model_calls_1;

CREATE TABLE model_calls (
    turn_key      INTEGER NOT NULL,
    leg           INTEGER NOT NULL,
    key           TEXT    NOT NULL,
    sequence      INTEGER NOT NULL,
    settled_at_ms INTEGER NOT NULL,
    input_tokens  INTEGER NOT NULL,
    output_tokens INTEGER NOT NULL,
    model_calls   INTEGER NOT NULL,
    response      ANY     NOT NULL,
    PRIMARY KEY (turn_key, leg, key)
) STRICT;

INSERT INTO model_calls (
    turn_key, key, sequence, settled_at_ms, input_tokens, output_tokens, model_calls, response, leg
)
SELECT
    turn_key, key, sequence, settled_at_ms, input_tokens, output_tokens, model_calls, response, 1
FROM model_calls_1;

DROP TABLE model_calls_1;

CREATE TRIGGER model_calls_keep BEFORE UPDATE ON model_calls
BEGIN
    SELECT RAISE(ABORT, 'J3: the record of a model call never changes');
END;

ALTER TABLE interrupts RENAME TO interrupts_1;

CREATE TABLE interrupts (
    interrupt_key  INTEGER PRIMARY KEY, -- the order in which they were raised
    session_key    INTEGER NOT NULL,
    interrupt_id   TEXT    NOT NULL,
    turn_key       INTEGER NOT NULL,
    leg            INTEGER NOT NULL,
    call_id        TEXT    NOT NULL,    -- of the call or the question that asks
    kind           TEXT    NOT NULL,
    status         TEXT    NOT NULL
        CHECK (status IN ('pending', 'approved', 'rejected', 'answered', 'expired', 'withdrawn')),
    created_at_ms  INTEGER NOT NULL,
    deadline_ms    INTEGER,
    resolved_by    TEXT,
    resolved_at_ms INTEGER,
    response       ANY,
    asked          ANY,                 -- hint and payload of a call that asks in the middle
    UNIQUE (session_key, interrupt_id)
) STRICT;

INSERT INTO interrupts (
    interrupt_key, session_key, interrupt_id, turn_key, call_id, kind, status, created_at_ms, deadline_ms,
    resolved_by, resolved_at_ms, response, leg
)
SELECT
    interrupt_key, session_key, interrupt_id, turn_key, call_id, kind, status, created_at_ms, deadline_ms,
    resolved_by, resolved_at_ms, response, 1
FROM interrupts_1;

DROP TABLE interrupts_1;

CREATE INDEX interrupts_pending ON interrupts (session_key) WHERE status = 'pending';
CREATE INDEX interrupts_of_turn ON interrupts (turn_key, call_id);

CREATE TRIGGER interrupts_keep BEFORE UPDATE ON interrupts WHEN OLD.status <> 'pending'
BEGIN
    SELECT RAISE(ABORT, 'J6: an interrupt is answered at most once');
END;

ALTER TABLE session_state RENAME TO session_state_1;

CREATE TABLE session_state (
    session_key INTEGER NOT NULL,
    name        TEXT    NOT NULL,
    turn_number INTEGER NOT NULL,
    leg         INTEGER NOT NULL,
    value       ANY     NOT NULL,
    PRIMARY KEY (session_key, name, turn_number, leg)
) STRICT, WITHOUT ROWID;

INSERT INTO session_state (
    session_key, name, turn_number, value, leg
)
SELECT
    session_key, name, turn_number, value, 1
FROM session_state_1;

DROP TABLE session_state_1;

CREATE TABLE legs (
    turn_key      INTEGER NOT NULL,
    leg           INTEGER NOT NULL,
    first_message INTEGER NOT NULL,
    carry         ANY,               -- what the invocation before handed on
    shared_state  ANY,               -- as in turns
    PRIMARY KEY (turn_key, leg)
) STRICT;

CREATE TABLE questions (
    question_key  INTEGER PRIMARY KEY, -- the order in which they were asked
    session_key   INTEGER NOT NULL,
    interrupt_id  TEXT    NOT NULL,
    turn_key      INTEGER NOT NULL,
    leg           INTEGER NOT NULL,
    step_id       TEXT    NOT NULL,
    wait          TEXT    NOT NULL CHECK (wait IN ('live', 'next_leg', 'next_turn')),
    settled       INTEGER NOT NULL DEFAULT 0, -- nothing waits for it any more
    tool_name     TEXT    NOT NULL,
    sequence      INTEGER,             -- of its answer among the turn's records; NULL: the turn gets none
    settled_at_ms INTEGER,
    error         TEXT,
    request       ANY     NOT NULL,
    answer        ANY,
    UNIQUE (session_key, interrupt_id),
    UNIQUE (turn_key, step_id)
) STRICT;

CREATE INDEX questions_late ON questions (session_key) WHERE wait = 'next_turn' AND settled = 0;

CREATE TRIGGER questions_keep BEFORE UPDATE ON questions WHEN OLD.settled
BEGIN
    SELECT RAISE(ABORT, 'J12: a question has one answer');
END;
