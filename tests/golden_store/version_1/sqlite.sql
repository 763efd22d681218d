-- perdure on SQLite: the whole schema of version 1, as a new database gets it.
--
-- Conventions: *_key is an internal integer, *_id a name from outside; *_ms is milliseconds since the epoch (UTC).
-- JSON is text.  A column of type ANY holds text, or, when the text is long, the SHA-256 of a row in payloads (a blob).

CREATE TABLE meta (
    name  TEXT PRIMARY KEY,
    value TEXT NOT NULL
) STRICT, WITHOUT ROWID;

INSERT INTO meta VALUES ('fence_floor', '0'); -- new sessions start above it

CREATE TABLE sessions (
    session_key    INTEGER PRIMARY KEY,
    session_id     TEXT    NOT NULL UNIQUE,
    incarnation    TEXT    NOT NULL,
    fingerprint    TEXT    NOT NULL, -- of the request that created it
    first_turn_id  TEXT,             -- of the message that came with that request
    flow_type      TEXT    NOT NULL,
    app_name       TEXT    NOT NULL,
    user_id        TEXT    NOT NULL,

    -- what its loop said last; a queued message makes an idle session 'running'
    status         TEXT    NOT NULL CHECK (status IN ('idle', 'running', 'waiting', 'blocked', 'closed')),
    closing        INTEGER NOT NULL DEFAULT 0, -- a close request was accepted: no more messages
    closed         INTEGER NOT NULL DEFAULT 0,
    blocked        TEXT,
    await_step_id  TEXT,
    definition     TEXT,             -- fingerprint of the code under which the open turn is recorded
    open_turn_key  INTEGER,

    -- who may write it
    owner          TEXT,
    fence          INTEGER NOT NULL DEFAULT 0,
    lost           INTEGER NOT NULL DEFAULT 0, -- owners in a row that neither settled a step nor released it
    due_since_ms   INTEGER,          -- nobody owns it and there is something to do, since then
    wake_at_ms     INTEGER,          -- there will be something to do then, whatever happens

    -- counters; positions in the log, the step list and the inbox are given out from them
    turn_count     INTEGER NOT NULL DEFAULT 0,
    message_count  INTEGER NOT NULL DEFAULT 0,
    step_count     INTEGER NOT NULL DEFAULT 0,
    inbox_count    INTEGER NOT NULL DEFAULT 0,
    input_tokens   INTEGER NOT NULL DEFAULT 0,
    output_tokens  INTEGER NOT NULL DEFAULT 0,
    model_calls    INTEGER NOT NULL DEFAULT 0,

    -- the ring of live events: its budget, its size, and the last event that was dropped from it
    event_capacity INTEGER NOT NULL,
    event_bytes    INTEGER NOT NULL DEFAULT 0,
    trimmed_fence  INTEGER NOT NULL DEFAULT 0,
    trimmed_number INTEGER NOT NULL DEFAULT 0,

    created_at_ms  INTEGER NOT NULL,
    updated_at_ms  INTEGER NOT NULL  -- of the last change that a list shows
) STRICT;

-- Only sessions that are of interest to a worker are in these, so that idle ones cost nothing.
CREATE INDEX sessions_due   ON sessions (flow_type, due_since_ms) WHERE due_since_ms IS NOT NULL;
CREATE INDEX sessions_wake  ON sessions (flow_type, wake_at_ms)
    WHERE wake_at_ms IS NOT NULL AND owner IS NULL AND blocked IS NULL;
CREATE INDEX sessions_open  ON sessions (flow_type) WHERE open_turn_key IS NOT NULL;
CREATE INDEX sessions_owned ON sessions (owner) WHERE owner IS NOT NULL;

CREATE INDEX sessions_by_change ON sessions (updated_at_ms);
CREATE INDEX sessions_by_user   ON sessions (user_id, updated_at_ms);
CREATE INDEX sessions_by_flow   ON sessions (flow_type, updated_at_ms);
CREATE INDEX sessions_by_status ON sessions (status, updated_at_ms);

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

-- The invocations of a turn after its first.  A row is made when the one before has ended, and completed when this begins.
CREATE TABLE legs (
    turn_key      INTEGER NOT NULL,
    leg           INTEGER NOT NULL,
    first_message INTEGER NOT NULL,
    carry         ANY,               -- what the invocation before handed on
    shared_state  ANY,               -- as in turns
    PRIMARY KEY (turn_key, leg)
) STRICT;

CREATE TABLE steps (
    session_key   INTEGER NOT NULL,
    position      INTEGER NOT NULL,
    step_id       TEXT    NOT NULL,
    turn_id       TEXT,
    name          TEXT    NOT NULL,
    status        TEXT    NOT NULL,
    attempts      INTEGER NOT NULL,
    key           TEXT    NOT NULL,
    call_id       TEXT,
    started_at_ms INTEGER,
    settled_at_ms INTEGER,
    error         TEXT,
    PRIMARY KEY (session_key, position),
    UNIQUE (session_key, step_id)
) STRICT, WITHOUT ROWID;

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

-- J3: what is settled never changes, whoever writes.
CREATE TRIGGER steps_keep BEFORE UPDATE ON steps WHEN OLD.status NOT IN ('pending', 'running')
BEGIN
    SELECT RAISE(ABORT, 'J3: a settled step never changes');
END;

CREATE TRIGGER calls_keep BEFORE UPDATE ON calls WHEN OLD.record IS NOT NULL
BEGIN
    SELECT RAISE(ABORT, 'J3: the record of a call never changes');
END;

CREATE TRIGGER model_calls_keep BEFORE UPDATE ON model_calls
BEGIN
    SELECT RAISE(ABORT, 'J3: the record of a model call never changes');
END;

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

CREATE INDEX interrupts_pending ON interrupts (session_key) WHERE status = 'pending';
CREATE INDEX interrupts_of_turn ON interrupts (turn_key, call_id);

CREATE TRIGGER interrupts_keep BEFORE UPDATE ON interrupts WHEN OLD.status <> 'pending'
BEGIN
    SELECT RAISE(ABORT, 'J6: an interrupt is answered at most once');
END;

CREATE TABLE questions (
    question_key  INTEGER PRIMARY KEY, -- the order in which they were asked
    session_key   INTEGER NOT NULL,
    interrupt_id  TEXT    NOT NULL,
    turn_key      INTEGER NOT NULL,
    leg           INTEGER NOT NULL,
    step_id       TEXT    NOT NULL,
    wait          TEXT    NOT NULL CHECK (wait IN ('live', 'next_leg', 'next_turn')),
    call_group    TEXT    NOT NULL,    -- the model call, or whatever else it came from
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

CREATE TABLE messages (
    session_key   INTEGER NOT NULL,
    position      INTEGER NOT NULL,
    turn_key      INTEGER NOT NULL,
    role          TEXT    NOT NULL,
    author        TEXT    NOT NULL,
    tool_name     TEXT,
    tool_call_id  TEXT,
    images        TEXT,              -- NULL: none
    created_at_ms INTEGER NOT NULL,
    text          ANY     NOT NULL,
    item          ANY     NOT NULL,
    PRIMARY KEY (session_key, position)
) STRICT;

CREATE TABLE inbox (
    session_key    INTEGER NOT NULL,
    position       INTEGER NOT NULL,
    kind           TEXT    NOT NULL CHECK (kind IN ('message', 'answer', 'cancel', 'close')),
    turn_id        TEXT,
    interrupt_id   TEXT,
    accepted_at_ms INTEGER NOT NULL,
    content        ANY,              -- the message or the answer
    PRIMARY KEY (session_key, position)
) STRICT;

CREATE TABLE requests (
    session_key   INTEGER NOT NULL,
    request_id    TEXT    NOT NULL,
    fingerprint   TEXT    NOT NULL,
    turn_id       TEXT,              -- what the request returned
    created_at_ms INTEGER NOT NULL,
    PRIMARY KEY (session_key, request_id)
) STRICT, WITHOUT ROWID;

CREATE TABLE events (
    session_key INTEGER NOT NULL,
    fence       INTEGER NOT NULL,
    number      INTEGER NOT NULL,
    size        INTEGER NOT NULL,
    data        TEXT    NOT NULL,
    PRIMARY KEY (session_key, fence, number)
) STRICT;

-- Each value that a key of the session's state had at the end of a leg; turn 0 is the state that it was created with.
CREATE TABLE session_state (
    session_key INTEGER NOT NULL,
    name        TEXT    NOT NULL,
    turn_number INTEGER NOT NULL,
    leg         INTEGER NOT NULL,
    value       ANY     NOT NULL,
    PRIMARY KEY (session_key, name, turn_number, leg)
) STRICT, WITHOUT ROWID;

CREATE TABLE shared_state (
    app_name TEXT NOT NULL,
    scope    TEXT NOT NULL CHECK (scope IN ('app', 'user')),
    user_id  TEXT NOT NULL,          -- empty for scope 'app'
    name     TEXT NOT NULL,          -- without its prefix
    value    TEXT NOT NULL,
    PRIMARY KEY (app_name, scope, user_id, name)
) STRICT, WITHOUT ROWID;

CREATE TABLE workers (
    worker_id      TEXT PRIMARY KEY,
    pid            INTEGER NOT NULL,
    lease_ms       INTEGER NOT NULL,
    lease_until_ms INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE worker_flows (
    flow_type  TEXT NOT NULL,
    worker_id  TEXT NOT NULL,
    definition TEXT NOT NULL,
    PRIMARY KEY (flow_type, worker_id)
) STRICT, WITHOUT ROWID;

-- Long texts, each once.  A session that refers to one has a row in payload_refs.
CREATE TABLE payloads (
    sha256 BLOB PRIMARY KEY,
    text   TEXT NOT NULL
) STRICT;

CREATE TABLE payload_refs (
    session_key INTEGER NOT NULL,
    sha256      BLOB    NOT NULL,
    PRIMARY KEY (session_key, sha256)
) STRICT, WITHOUT ROWID;

CREATE INDEX payload_refs_by_payload ON payload_refs (sha256);
