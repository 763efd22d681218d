-- A database of schema 1, as perdure wrote it before there were questions and legs: in session 'asked' a call waits for an
-- approval and a message is queued; in session 'answered' the same call is approved, and no worker has seen it yet.
-- The agent is the script of tests/unit/store/test_sqlite_migrations.py.
BEGIN TRANSACTION;
CREATE TABLE calls (
    call_key         INTEGER PRIMARY KEY, -- the order in which they were asked for
    turn_key         INTEGER NOT NULL,
    call_id          TEXT    NOT NULL,
    step_id          TEXT    NOT NULL,
    phase            TEXT    NOT NULL CHECK (phase IN ('awaiting', 'due', 'started', 'settled')),
    attempts         INTEGER NOT NULL,
    approval_step_id TEXT,
    interrupt_id     TEXT,
    tool_name        TEXT    NOT NULL,
    effect           TEXT    NOT NULL,
    record           TEXT    CHECK (record IN ('succeeded', 'failed', 'rejected', 'outcome_unknown')),
    sequence         INTEGER,
    settled_at_ms    INTEGER,
    error            TEXT,
    request          ANY     NOT NULL,
    outcome          ANY,
    result           ANY,
    UNIQUE (turn_key, call_id)
) STRICT;
INSERT INTO "calls" VALUES(1,1,'read-1','e-ffdc7012-c07d-4ab2-a6a9-2b7f6bc64f47/call/read-1','settled',1,NULL,NULL,'lookup','read','succeeded',2,1796062164356,NULL,'{"call_id":"read-1","group":"m1.1","tool_name":"lookup","arguments":{"id":"read-1"},"agent_name":"player","effect":"read","retry":[3,0,2.0,30000000],"timeout_us":null,"ask":null,"hint":"","payload":null}','{"found": "read-1"}','{"found":"read-1"}');
INSERT INTO "calls" VALUES(2,2,'read-2','e-611700ec-8116-432d-8557-bd240ece6890/call/read-2','settled',1,NULL,NULL,'lookup','read','succeeded',2,1796062164363,NULL,'{"call_id":"read-2","group":"m2.1","tool_name":"lookup","arguments":{"id":"read-2"},"agent_name":"player","effect":"read","retry":[3,0,2.0,30000000],"timeout_us":null,"ask":null,"hint":"","payload":null}','{"found": "read-2"}','{"found":"read-2"}');
INSERT INTO "calls" VALUES(3,2,'pay-2','e-611700ec-8116-432d-8557-bd240ece6890/call/pay-2','awaiting',0,'e-611700ec-8116-432d-8557-bd240ece6890/approve/pay-2','e-611700ec-8116-432d-8557-bd240ece6890:pay-2','refund','non_idempotent_write',NULL,NULL,NULL,NULL,'{"call_id":"pay-2","group":"m2.2","tool_name":"refund","arguments":{"id":"pay-2"},"agent_name":"player","effect":"non_idempotent_write","retry":[3,0,2.0,30000000],"timeout_us":null,"ask":"approval","hint":"","payload":null}',NULL,NULL);
INSERT INTO "calls" VALUES(4,3,'read-1','e-657962bb-57f5-4a18-8d72-da8652b7b910/call/read-1','settled',1,NULL,NULL,'lookup','read','succeeded',2,1796062164369,NULL,'{"call_id":"read-1","group":"m1.1","tool_name":"lookup","arguments":{"id":"read-1"},"agent_name":"player","effect":"read","retry":[3,0,2.0,30000000],"timeout_us":null,"ask":null,"hint":"","payload":null}','{"found": "read-1"}','{"found":"read-1"}');
INSERT INTO "calls" VALUES(5,4,'read-2','e-ab682aee-7b13-4dab-85e0-0de1d513f79b/call/read-2','settled',1,NULL,NULL,'lookup','read','succeeded',2,1796062164374,NULL,'{"call_id":"read-2","group":"m2.1","tool_name":"lookup","arguments":{"id":"read-2"},"agent_name":"player","effect":"read","retry":[3,0,2.0,30000000],"timeout_us":null,"ask":null,"hint":"","payload":null}','{"found": "read-2"}','{"found":"read-2"}');
INSERT INTO "calls" VALUES(6,4,'pay-2','e-ab682aee-7b13-4dab-85e0-0de1d513f79b/call/pay-2','awaiting',0,'e-ab682aee-7b13-4dab-85e0-0de1d513f79b/approve/pay-2','e-ab682aee-7b13-4dab-85e0-0de1d513f79b:pay-2','refund','non_idempotent_write',NULL,NULL,NULL,NULL,'{"call_id":"pay-2","group":"m2.2","tool_name":"refund","arguments":{"id":"pay-2"},"agent_name":"player","effect":"non_idempotent_write","retry":[3,0,2.0,30000000],"timeout_us":null,"ask":"approval","hint":"","payload":null}',NULL,NULL);
CREATE TABLE events (
    session_key INTEGER NOT NULL,
    fence       INTEGER NOT NULL,
    number      INTEGER NOT NULL,
    size        INTEGER NOT NULL,
    data        TEXT    NOT NULL,
    PRIMARY KEY (session_key, fence, number)
) STRICT;
INSERT INTO "events" VALUES(1,1,1,446,'{"cursor":"0000000001-0000000001","type":"turn_started","session_id":"asked","turn_id":"e-ffdc7012-c07d-4ab2-a6a9-2b7f6bc64f47","step_execution_id":null,"attempt":null,"text":null,"data":{"turn_id":"e-ffdc7012-c07d-4ab2-a6a9-2b7f6bc64f47","number":1,"status":"running","started_at":"2026-11-30T18:09:24.353000Z","ended_at":null,"usage":{"input_tokens":0,"output_tokens":0,"model_calls":0},"error":null},"created_at":"2026-11-30T18:09:24.353000Z"}');
INSERT INTO "events" VALUES(1,1,2,281,'{"cursor":"0000000001-0000000002","type":"text_delta","session_id":"asked","turn_id":"e-ffdc7012-c07d-4ab2-a6a9-2b7f6bc64f47","step_execution_id":"e-ffdc7012-c07d-4ab2-a6a9-2b7f6bc64f47/model/1","attempt":1,"text":"let me look","data":{},"created_at":"2026-11-30T18:09:24.354000Z"}');
INSERT INTO "events" VALUES(1,1,3,237,'{"cursor":"0000000001-0000000003","type":"message","session_id":"asked","turn_id":"e-ffdc7012-c07d-4ab2-a6a9-2b7f6bc64f47","step_execution_id":null,"attempt":null,"text":null,"data":{"index":0},"created_at":"2026-11-30T18:09:24.354000Z"}');
INSERT INTO "events" VALUES(1,1,4,355,'{"cursor":"0000000001-0000000004","type":"tool_call_started","session_id":"asked","turn_id":"e-ffdc7012-c07d-4ab2-a6a9-2b7f6bc64f47","step_execution_id":"e-ffdc7012-c07d-4ab2-a6a9-2b7f6bc64f47/call/read-1","attempt":1,"text":null,"data":{"tool_name":"lookup","tool_call_id":"read-1","arguments":{"id":"read-1"}},"created_at":"2026-11-30T18:09:24.354000Z"}');
INSERT INTO "events" VALUES(1,1,5,377,'{"cursor":"0000000001-0000000005","type":"tool_call_finished","session_id":"asked","turn_id":"e-ffdc7012-c07d-4ab2-a6a9-2b7f6bc64f47","step_execution_id":"e-ffdc7012-c07d-4ab2-a6a9-2b7f6bc64f47/call/read-1","attempt":1,"text":null,"data":{"tool_name":"lookup","tool_call_id":"read-1","arguments":{"id":"read-1"},"status":"succeeded"},"created_at":"2026-11-30T18:09:24.356000Z"}');
INSERT INTO "events" VALUES(1,1,6,287,'{"cursor":"0000000001-0000000006","type":"text_delta","session_id":"asked","turn_id":"e-ffdc7012-c07d-4ab2-a6a9-2b7f6bc64f47","step_execution_id":"e-ffdc7012-c07d-4ab2-a6a9-2b7f6bc64f47/model/3","attempt":1,"text":"I would refund it","data":{},"created_at":"2026-11-30T18:09:24.357000Z"}');
INSERT INTO "events" VALUES(1,1,7,237,'{"cursor":"0000000001-0000000007","type":"message","session_id":"asked","turn_id":"e-ffdc7012-c07d-4ab2-a6a9-2b7f6bc64f47","step_execution_id":null,"attempt":null,"text":null,"data":{"index":1},"created_at":"2026-11-30T18:09:24.357000Z"}');
INSERT INTO "events" VALUES(1,1,8,475,'{"cursor":"0000000001-0000000008","type":"turn_completed","session_id":"asked","turn_id":"e-ffdc7012-c07d-4ab2-a6a9-2b7f6bc64f47","step_execution_id":null,"attempt":null,"text":null,"data":{"turn_id":"e-ffdc7012-c07d-4ab2-a6a9-2b7f6bc64f47","number":1,"status":"completed","started_at":"2026-11-30T18:09:24.353000Z","ended_at":"2026-11-30T18:09:24.357000Z","usage":{"input_tokens":0,"output_tokens":0,"model_calls":2},"error":null},"created_at":"2026-11-30T18:09:24.357000Z"}');
INSERT INTO "events" VALUES(1,2,1,446,'{"cursor":"0000000002-0000000001","type":"turn_started","session_id":"asked","turn_id":"e-611700ec-8116-432d-8557-bd240ece6890","step_execution_id":null,"attempt":null,"text":null,"data":{"turn_id":"e-611700ec-8116-432d-8557-bd240ece6890","number":2,"status":"running","started_at":"2026-11-30T18:09:24.361000Z","ended_at":null,"usage":{"input_tokens":0,"output_tokens":0,"model_calls":0},"error":null},"created_at":"2026-11-30T18:09:24.361000Z"}');
INSERT INTO "events" VALUES(1,2,2,281,'{"cursor":"0000000002-0000000002","type":"text_delta","session_id":"asked","turn_id":"e-611700ec-8116-432d-8557-bd240ece6890","step_execution_id":"e-611700ec-8116-432d-8557-bd240ece6890/model/1","attempt":1,"text":"let me look","data":{},"created_at":"2026-11-30T18:09:24.361000Z"}');
INSERT INTO "events" VALUES(1,2,3,237,'{"cursor":"0000000002-0000000003","type":"message","session_id":"asked","turn_id":"e-611700ec-8116-432d-8557-bd240ece6890","step_execution_id":null,"attempt":null,"text":null,"data":{"index":2},"created_at":"2026-11-30T18:09:24.362000Z"}');
INSERT INTO "events" VALUES(1,2,4,355,'{"cursor":"0000000002-0000000004","type":"tool_call_started","session_id":"asked","turn_id":"e-611700ec-8116-432d-8557-bd240ece6890","step_execution_id":"e-611700ec-8116-432d-8557-bd240ece6890/call/read-2","attempt":1,"text":null,"data":{"tool_name":"lookup","tool_call_id":"read-2","arguments":{"id":"read-2"}},"created_at":"2026-11-30T18:09:24.362000Z"}');
INSERT INTO "events" VALUES(1,2,5,377,'{"cursor":"0000000002-0000000005","type":"tool_call_finished","session_id":"asked","turn_id":"e-611700ec-8116-432d-8557-bd240ece6890","step_execution_id":"e-611700ec-8116-432d-8557-bd240ece6890/call/read-2","attempt":1,"text":null,"data":{"tool_name":"lookup","tool_call_id":"read-2","arguments":{"id":"read-2"},"status":"succeeded"},"created_at":"2026-11-30T18:09:24.363000Z"}');
INSERT INTO "events" VALUES(1,2,6,287,'{"cursor":"0000000002-0000000006","type":"text_delta","session_id":"asked","turn_id":"e-611700ec-8116-432d-8557-bd240ece6890","step_execution_id":"e-611700ec-8116-432d-8557-bd240ece6890/model/3","attempt":1,"text":"I would refund it","data":{},"created_at":"2026-11-30T18:09:24.364000Z"}');
INSERT INTO "events" VALUES(1,2,7,630,'{"cursor":"0000000002-0000000007","type":"interrupt_requested","session_id":"asked","turn_id":"e-611700ec-8116-432d-8557-bd240ece6890","step_execution_id":null,"attempt":null,"text":null,"data":{"interrupt_id":"e-611700ec-8116-432d-8557-bd240ece6890:pay-2","kind":"approval","turn_id":"e-611700ec-8116-432d-8557-bd240ece6890","tool_name":"refund","tool_call_id":"pay-2","arguments":{"id":"pay-2"},"agent_name":"player","path":"","hint":"","payload":null,"created_at":"2026-11-30T18:09:24.364000Z","deadline":null,"status":"pending","resolved_by":null,"resolved_at":null,"response":null},"created_at":"2026-11-30T18:09:24.364000Z"}');
INSERT INTO "events" VALUES(1,2,8,448,'{"cursor":"0000000002-0000000008","type":"turn_suspended","session_id":"asked","turn_id":"e-611700ec-8116-432d-8557-bd240ece6890","step_execution_id":null,"attempt":null,"text":null,"data":{"turn_id":"e-611700ec-8116-432d-8557-bd240ece6890","number":2,"status":"waiting","started_at":"2026-11-30T18:09:24.361000Z","ended_at":null,"usage":{"input_tokens":0,"output_tokens":0,"model_calls":2},"error":null},"created_at":"2026-11-30T18:09:24.364000Z"}');
INSERT INTO "events" VALUES(2,1,1,449,'{"cursor":"0000000001-0000000001","type":"turn_started","session_id":"answered","turn_id":"e-657962bb-57f5-4a18-8d72-da8652b7b910","step_execution_id":null,"attempt":null,"text":null,"data":{"turn_id":"e-657962bb-57f5-4a18-8d72-da8652b7b910","number":1,"status":"running","started_at":"2026-11-30T18:09:24.367000Z","ended_at":null,"usage":{"input_tokens":0,"output_tokens":0,"model_calls":0},"error":null},"created_at":"2026-11-30T18:09:24.367000Z"}');
INSERT INTO "events" VALUES(2,1,2,284,'{"cursor":"0000000001-0000000002","type":"text_delta","session_id":"answered","turn_id":"e-657962bb-57f5-4a18-8d72-da8652b7b910","step_execution_id":"e-657962bb-57f5-4a18-8d72-da8652b7b910/model/1","attempt":1,"text":"let me look","data":{},"created_at":"2026-11-30T18:09:24.368000Z"}');
INSERT INTO "events" VALUES(2,1,3,240,'{"cursor":"0000000001-0000000003","type":"message","session_id":"answered","turn_id":"e-657962bb-57f5-4a18-8d72-da8652b7b910","step_execution_id":null,"attempt":null,"text":null,"data":{"index":0},"created_at":"2026-11-30T18:09:24.368000Z"}');
INSERT INTO "events" VALUES(2,1,4,358,'{"cursor":"0000000001-0000000004","type":"tool_call_started","session_id":"answered","turn_id":"e-657962bb-57f5-4a18-8d72-da8652b7b910","step_execution_id":"e-657962bb-57f5-4a18-8d72-da8652b7b910/call/read-1","attempt":1,"text":null,"data":{"tool_name":"lookup","tool_call_id":"read-1","arguments":{"id":"read-1"}},"created_at":"2026-11-30T18:09:24.368000Z"}');
INSERT INTO "events" VALUES(2,1,5,380,'{"cursor":"0000000001-0000000005","type":"tool_call_finished","session_id":"answered","turn_id":"e-657962bb-57f5-4a18-8d72-da8652b7b910","step_execution_id":"e-657962bb-57f5-4a18-8d72-da8652b7b910/call/read-1","attempt":1,"text":null,"data":{"tool_name":"lookup","tool_call_id":"read-1","arguments":{"id":"read-1"},"status":"succeeded"},"created_at":"2026-11-30T18:09:24.369000Z"}');
INSERT INTO "events" VALUES(2,1,6,290,'{"cursor":"0000000001-0000000006","type":"text_delta","session_id":"answered","turn_id":"e-657962bb-57f5-4a18-8d72-da8652b7b910","step_execution_id":"e-657962bb-57f5-4a18-8d72-da8652b7b910/model/3","attempt":1,"text":"I would refund it","data":{},"created_at":"2026-11-30T18:09:24.370000Z"}');
INSERT INTO "events" VALUES(2,1,7,240,'{"cursor":"0000000001-0000000007","type":"message","session_id":"answered","turn_id":"e-657962bb-57f5-4a18-8d72-da8652b7b910","step_execution_id":null,"attempt":null,"text":null,"data":{"index":1},"created_at":"2026-11-30T18:09:24.370000Z"}');
INSERT INTO "events" VALUES(2,1,8,478,'{"cursor":"0000000001-0000000008","type":"turn_completed","session_id":"answered","turn_id":"e-657962bb-57f5-4a18-8d72-da8652b7b910","step_execution_id":null,"attempt":null,"text":null,"data":{"turn_id":"e-657962bb-57f5-4a18-8d72-da8652b7b910","number":1,"status":"completed","started_at":"2026-11-30T18:09:24.367000Z","ended_at":"2026-11-30T18:09:24.370000Z","usage":{"input_tokens":0,"output_tokens":0,"model_calls":2},"error":null},"created_at":"2026-11-30T18:09:24.370000Z"}');
INSERT INTO "events" VALUES(2,2,1,449,'{"cursor":"0000000002-0000000001","type":"turn_started","session_id":"answered","turn_id":"e-ab682aee-7b13-4dab-85e0-0de1d513f79b","step_execution_id":null,"attempt":null,"text":null,"data":{"turn_id":"e-ab682aee-7b13-4dab-85e0-0de1d513f79b","number":2,"status":"running","started_at":"2026-11-30T18:09:24.373000Z","ended_at":null,"usage":{"input_tokens":0,"output_tokens":0,"model_calls":0},"error":null},"created_at":"2026-11-30T18:09:24.373000Z"}');
INSERT INTO "events" VALUES(2,2,2,284,'{"cursor":"0000000002-0000000002","type":"text_delta","session_id":"answered","turn_id":"e-ab682aee-7b13-4dab-85e0-0de1d513f79b","step_execution_id":"e-ab682aee-7b13-4dab-85e0-0de1d513f79b/model/1","attempt":1,"text":"let me look","data":{},"created_at":"2026-11-30T18:09:24.373000Z"}');
INSERT INTO "events" VALUES(2,2,3,240,'{"cursor":"0000000002-0000000003","type":"message","session_id":"answered","turn_id":"e-ab682aee-7b13-4dab-85e0-0de1d513f79b","step_execution_id":null,"attempt":null,"text":null,"data":{"index":2},"created_at":"2026-11-30T18:09:24.373000Z"}');
INSERT INTO "events" VALUES(2,2,4,358,'{"cursor":"0000000002-0000000004","type":"tool_call_started","session_id":"answered","turn_id":"e-ab682aee-7b13-4dab-85e0-0de1d513f79b","step_execution_id":"e-ab682aee-7b13-4dab-85e0-0de1d513f79b/call/read-2","attempt":1,"text":null,"data":{"tool_name":"lookup","tool_call_id":"read-2","arguments":{"id":"read-2"}},"created_at":"2026-11-30T18:09:24.373000Z"}');
INSERT INTO "events" VALUES(2,2,5,380,'{"cursor":"0000000002-0000000005","type":"tool_call_finished","session_id":"answered","turn_id":"e-ab682aee-7b13-4dab-85e0-0de1d513f79b","step_execution_id":"e-ab682aee-7b13-4dab-85e0-0de1d513f79b/call/read-2","attempt":1,"text":null,"data":{"tool_name":"lookup","tool_call_id":"read-2","arguments":{"id":"read-2"},"status":"succeeded"},"created_at":"2026-11-30T18:09:24.374000Z"}');
INSERT INTO "events" VALUES(2,2,6,290,'{"cursor":"0000000002-0000000006","type":"text_delta","session_id":"answered","turn_id":"e-ab682aee-7b13-4dab-85e0-0de1d513f79b","step_execution_id":"e-ab682aee-7b13-4dab-85e0-0de1d513f79b/model/3","attempt":1,"text":"I would refund it","data":{},"created_at":"2026-11-30T18:09:24.375000Z"}');
INSERT INTO "events" VALUES(2,2,7,633,'{"cursor":"0000000002-0000000007","type":"interrupt_requested","session_id":"answered","turn_id":"e-ab682aee-7b13-4dab-85e0-0de1d513f79b","step_execution_id":null,"attempt":null,"text":null,"data":{"interrupt_id":"e-ab682aee-7b13-4dab-85e0-0de1d513f79b:pay-2","kind":"approval","turn_id":"e-ab682aee-7b13-4dab-85e0-0de1d513f79b","tool_name":"refund","tool_call_id":"pay-2","arguments":{"id":"pay-2"},"agent_name":"player","path":"","hint":"","payload":null,"created_at":"2026-11-30T18:09:24.375000Z","deadline":null,"status":"pending","resolved_by":null,"resolved_at":null,"response":null},"created_at":"2026-11-30T18:09:24.375000Z"}');
INSERT INTO "events" VALUES(2,2,8,451,'{"cursor":"0000000002-0000000008","type":"turn_suspended","session_id":"answered","turn_id":"e-ab682aee-7b13-4dab-85e0-0de1d513f79b","step_execution_id":null,"attempt":null,"text":null,"data":{"turn_id":"e-ab682aee-7b13-4dab-85e0-0de1d513f79b","number":2,"status":"waiting","started_at":"2026-11-30T18:09:24.373000Z","ended_at":null,"usage":{"input_tokens":0,"output_tokens":0,"model_calls":2},"error":null},"created_at":"2026-11-30T18:09:24.375000Z"}');
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
INSERT INTO "inbox" VALUES(1,3,'message','e-88c552e6-ca7c-4575-a628-71bd08ab50ff',NULL,1796062164377,'{"text":"three","images":[],"state_delta":{},"run_config":null,"answers":[]}');
INSERT INTO "inbox" VALUES(2,3,'answer',NULL,'e-ab682aee-7b13-4dab-85e0-0de1d513f79b:pay-2',1796062164379,'{"approved":true,"payload":{"n":1},"message":null}');
CREATE TABLE interrupts (
    interrupt_key  INTEGER PRIMARY KEY, -- the order in which they were raised
    session_key    INTEGER NOT NULL,
    interrupt_id   TEXT    NOT NULL,
    turn_key       INTEGER NOT NULL,
    call_id        TEXT    NOT NULL,
    kind           TEXT    NOT NULL,
    status         TEXT    NOT NULL CHECK (status IN ('pending', 'approved', 'rejected', 'expired', 'withdrawn')),
    created_at_ms  INTEGER NOT NULL,
    deadline_ms    INTEGER,
    resolved_by    TEXT,
    resolved_at_ms INTEGER,
    response       ANY,
    UNIQUE (session_key, interrupt_id)
) STRICT;
INSERT INTO "interrupts" VALUES(1,1,'e-611700ec-8116-432d-8557-bd240ece6890:pay-2',2,'pay-2','approval','pending',1796062164364,NULL,NULL,NULL,NULL);
INSERT INTO "interrupts" VALUES(2,2,'e-ab682aee-7b13-4dab-85e0-0de1d513f79b:pay-2',4,'pay-2','approval','approved',1796062164375,NULL,'ann',1796062164379,'{"approved":true,"payload":{"n":1},"message":null}');
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
INSERT INTO "messages" VALUES(1,0,1,'user','player',NULL,NULL,NULL,1796062164354,'one','{"ordinal": 0, "text": "one"}');
INSERT INTO "messages" VALUES(1,1,1,'assistant','player',NULL,NULL,NULL,1796062164357,'done','{"ordinal": 1, "text": "done"}');
INSERT INTO "messages" VALUES(1,2,2,'user','player',NULL,NULL,NULL,1796062164361,'two','{"ordinal": 0, "text": "two"}');
INSERT INTO "messages" VALUES(2,0,3,'user','player',NULL,NULL,NULL,1796062164368,'one','{"ordinal": 0, "text": "one"}');
INSERT INTO "messages" VALUES(2,1,3,'assistant','player',NULL,NULL,NULL,1796062164370,'done','{"ordinal": 1, "text": "done"}');
INSERT INTO "messages" VALUES(2,2,4,'user','player',NULL,NULL,NULL,1796062164373,'two','{"ordinal": 0, "text": "two"}');
CREATE TABLE meta (
    name  TEXT PRIMARY KEY,
    value TEXT NOT NULL
) STRICT, WITHOUT ROWID;
INSERT INTO "meta" VALUES('created_at_ms','1796062164338');
INSERT INTO "meta" VALUES('fence_floor','0');
CREATE TABLE model_calls (
    turn_key      INTEGER NOT NULL,
    key           TEXT    NOT NULL,
    sequence      INTEGER NOT NULL,
    settled_at_ms INTEGER NOT NULL,
    input_tokens  INTEGER NOT NULL,
    output_tokens INTEGER NOT NULL,
    model_calls   INTEGER NOT NULL,
    response      ANY     NOT NULL,
    PRIMARY KEY (turn_key, key)
) STRICT;
INSERT INTO "model_calls" VALUES(1,'m1.1',1,1796062164354,0,0,1,'let me look');
INSERT INTO "model_calls" VALUES(1,'m1.2',3,1796062164357,0,0,1,'I would refund it');
INSERT INTO "model_calls" VALUES(2,'m2.1',1,1796062164361,0,0,1,'let me look');
INSERT INTO "model_calls" VALUES(2,'m2.2',3,1796062164364,0,0,1,'I would refund it');
INSERT INTO "model_calls" VALUES(3,'m1.1',1,1796062164368,0,0,1,'let me look');
INSERT INTO "model_calls" VALUES(3,'m1.2',3,1796062164370,0,0,1,'I would refund it');
INSERT INTO "model_calls" VALUES(4,'m2.1',1,1796062164373,0,0,1,'let me look');
INSERT INTO "model_calls" VALUES(4,'m2.2',3,1796062164375,0,0,1,'I would refund it');
CREATE TABLE payload_refs (
    session_key INTEGER NOT NULL,
    sha256      BLOB    NOT NULL,
    PRIMARY KEY (session_key, sha256)
) STRICT, WITHOUT ROWID;
CREATE TABLE payloads (
    sha256 BLOB PRIMARY KEY,
    text   TEXT NOT NULL
) STRICT;
CREATE TABLE requests (
    session_key   INTEGER NOT NULL,
    request_id    TEXT    NOT NULL,
    fingerprint   TEXT    NOT NULL,
    turn_id       TEXT,              -- what the request returned
    created_at_ms INTEGER NOT NULL,
    PRIMARY KEY (session_key, request_id)
) STRICT, WITHOUT ROWID;
CREATE TABLE session_state (
    session_key INTEGER NOT NULL,
    name        TEXT    NOT NULL,
    turn_number INTEGER NOT NULL,
    value       ANY     NOT NULL,
    PRIMARY KEY (session_key, name, turn_number)
) STRICT, WITHOUT ROWID;
INSERT INTO "session_state" VALUES(1,'tenant',0,'"t1"');
INSERT INTO "session_state" VALUES(1,'turn',1,'1');
INSERT INTO "session_state" VALUES(2,'tenant',0,'"t1"');
INSERT INTO "session_state" VALUES(2,'turn',1,'1');
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
INSERT INTO "sessions" VALUES(1,'asked','f3a33b5f-0a46-4118-87ad-cdc45a8ac03e','2a84ebee33d8fb547810db35177eb050','e-ffdc7012-c07d-4ab2-a6a9-2b7f6bc64f47','Play','Play','user','waiting',0,0,NULL,NULL,'play',2,NULL,2,0,NULL,NULL,2,3,19,3,0,0,4,10485760,5756,0,0,1796062164349,1796062164377);
INSERT INTO "sessions" VALUES(2,'answered','bd9f653f-2843-4380-a077-e98d2aad608b','2a84ebee33d8fb547810db35177eb050','e-657962bb-57f5-4a18-8d72-da8652b7b910','Play','Play','user','running',0,0,NULL,NULL,'play',4,NULL,2,0,1796062164379,NULL,2,3,19,3,0,0,4,10485760,5804,0,0,1796062164366,1796062164379);
CREATE TABLE shared_state (
    app_name TEXT NOT NULL,
    scope    TEXT NOT NULL CHECK (scope IN ('app', 'user')),
    user_id  TEXT NOT NULL,          -- empty for scope 'app'
    name     TEXT NOT NULL,          -- without its prefix
    value    TEXT NOT NULL,
    PRIMARY KEY (app_name, scope, user_id, name)
) STRICT, WITHOUT ROWID;
INSERT INTO "shared_state" VALUES('Play','app','','price','1');
INSERT INTO "shared_state" VALUES('Play','user','user','name','"ann"');
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
INSERT INTO "steps" VALUES(1,0,'await/1','e-ffdc7012-c07d-4ab2-a6a9-2b7f6bc64f47','AwaitUserMessage','succeeded',1,'',NULL,1796062164349,1796062164353,NULL);
INSERT INTO "steps" VALUES(1,2,'e-ffdc7012-c07d-4ab2-a6a9-2b7f6bc64f47/model/1','e-ffdc7012-c07d-4ab2-a6a9-2b7f6bc64f47','RunModel','succeeded',1,'m1.1',NULL,1796062164353,1796062164354,NULL);
INSERT INTO "steps" VALUES(1,4,'e-ffdc7012-c07d-4ab2-a6a9-2b7f6bc64f47/call/read-1','e-ffdc7012-c07d-4ab2-a6a9-2b7f6bc64f47','CallTool','succeeded',1,'read-1','read-1',1796062164354,1796062164356,NULL);
INSERT INTO "steps" VALUES(1,6,'e-ffdc7012-c07d-4ab2-a6a9-2b7f6bc64f47/resume/2','e-ffdc7012-c07d-4ab2-a6a9-2b7f6bc64f47','ResumeTurn','succeeded',1,'',NULL,1796062164356,1796062164356,NULL);
INSERT INTO "steps" VALUES(1,7,'e-ffdc7012-c07d-4ab2-a6a9-2b7f6bc64f47/model/3','e-ffdc7012-c07d-4ab2-a6a9-2b7f6bc64f47','RunModel','succeeded',1,'m1.2',NULL,1796062164356,1796062164357,NULL);
INSERT INTO "steps" VALUES(1,9,'await/2','e-611700ec-8116-432d-8557-bd240ece6890','AwaitUserMessage','succeeded',1,'',NULL,1796062164357,1796062164361,NULL);
INSERT INTO "steps" VALUES(1,11,'e-611700ec-8116-432d-8557-bd240ece6890/model/1','e-611700ec-8116-432d-8557-bd240ece6890','RunModel','succeeded',1,'m2.1',NULL,1796062164361,1796062164362,NULL);
INSERT INTO "steps" VALUES(1,13,'e-611700ec-8116-432d-8557-bd240ece6890/call/read-2','e-611700ec-8116-432d-8557-bd240ece6890','CallTool','succeeded',1,'read-2','read-2',1796062164362,1796062164363,NULL);
INSERT INTO "steps" VALUES(1,15,'e-611700ec-8116-432d-8557-bd240ece6890/resume/2','e-611700ec-8116-432d-8557-bd240ece6890','ResumeTurn','succeeded',1,'',NULL,1796062164363,1796062164363,NULL);
INSERT INTO "steps" VALUES(1,16,'e-611700ec-8116-432d-8557-bd240ece6890/model/3','e-611700ec-8116-432d-8557-bd240ece6890','RunModel','succeeded',1,'m2.2',NULL,1796062164363,1796062164364,NULL);
INSERT INTO "steps" VALUES(1,18,'e-611700ec-8116-432d-8557-bd240ece6890/approve/pay-2','e-611700ec-8116-432d-8557-bd240ece6890','AwaitToolApproval','pending',0,'pay-2','pay-2',1796062164364,NULL,NULL);
INSERT INTO "steps" VALUES(2,0,'await/1','e-657962bb-57f5-4a18-8d72-da8652b7b910','AwaitUserMessage','succeeded',1,'',NULL,1796062164366,1796062164367,NULL);
INSERT INTO "steps" VALUES(2,2,'e-657962bb-57f5-4a18-8d72-da8652b7b910/model/1','e-657962bb-57f5-4a18-8d72-da8652b7b910','RunModel','succeeded',1,'m1.1',NULL,1796062164367,1796062164368,NULL);
INSERT INTO "steps" VALUES(2,4,'e-657962bb-57f5-4a18-8d72-da8652b7b910/call/read-1','e-657962bb-57f5-4a18-8d72-da8652b7b910','CallTool','succeeded',1,'read-1','read-1',1796062164368,1796062164369,NULL);
INSERT INTO "steps" VALUES(2,6,'e-657962bb-57f5-4a18-8d72-da8652b7b910/resume/2','e-657962bb-57f5-4a18-8d72-da8652b7b910','ResumeTurn','succeeded',1,'',NULL,1796062164369,1796062164369,NULL);
INSERT INTO "steps" VALUES(2,7,'e-657962bb-57f5-4a18-8d72-da8652b7b910/model/3','e-657962bb-57f5-4a18-8d72-da8652b7b910','RunModel','succeeded',1,'m1.2',NULL,1796062164369,1796062164370,NULL);
INSERT INTO "steps" VALUES(2,9,'await/2','e-ab682aee-7b13-4dab-85e0-0de1d513f79b','AwaitUserMessage','succeeded',1,'',NULL,1796062164370,1796062164373,NULL);
INSERT INTO "steps" VALUES(2,11,'e-ab682aee-7b13-4dab-85e0-0de1d513f79b/model/1','e-ab682aee-7b13-4dab-85e0-0de1d513f79b','RunModel','succeeded',1,'m2.1',NULL,1796062164373,1796062164373,NULL);
INSERT INTO "steps" VALUES(2,13,'e-ab682aee-7b13-4dab-85e0-0de1d513f79b/call/read-2','e-ab682aee-7b13-4dab-85e0-0de1d513f79b','CallTool','succeeded',1,'read-2','read-2',1796062164373,1796062164374,NULL);
INSERT INTO "steps" VALUES(2,15,'e-ab682aee-7b13-4dab-85e0-0de1d513f79b/resume/2','e-ab682aee-7b13-4dab-85e0-0de1d513f79b','ResumeTurn','succeeded',1,'',NULL,1796062164374,1796062164374,NULL);
INSERT INTO "steps" VALUES(2,16,'e-ab682aee-7b13-4dab-85e0-0de1d513f79b/model/3','e-ab682aee-7b13-4dab-85e0-0de1d513f79b','RunModel','succeeded',1,'m2.2',NULL,1796062164374,1796062164375,NULL);
INSERT INTO "steps" VALUES(2,18,'e-ab682aee-7b13-4dab-85e0-0de1d513f79b/approve/pay-2','e-ab682aee-7b13-4dab-85e0-0de1d513f79b','AwaitToolApproval','pending',0,'pay-2','pay-2',1796062164375,NULL,NULL);
CREATE TABLE turns (
    turn_key      INTEGER PRIMARY KEY,
    session_key   INTEGER NOT NULL,
    turn_id       TEXT    NOT NULL,
    number        INTEGER,           -- NULL: its message was dropped before it began
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
INSERT INTO "turns" VALUES(1,1,'e-ffdc7012-c07d-4ab2-a6a9-2b7f6bc64f47',1,'completed',1796062164353,1796062164357,0,1,0,0,2,NULL,NULL,'{"text":"one","images":[],"state_delta":{},"run_config":null,"answers":[]}','{"user:name":"ann"}');
INSERT INTO "turns" VALUES(2,1,'e-611700ec-8116-432d-8557-bd240ece6890',2,'waiting',1796062164361,NULL,2,10,0,0,2,NULL,NULL,'{"text":"two","images":[],"state_delta":{},"run_config":null,"answers":[]}','{"app:price":1,"user:name":"ann"}');
INSERT INTO "turns" VALUES(3,2,'e-657962bb-57f5-4a18-8d72-da8652b7b910',1,'completed',1796062164367,1796062164370,0,1,0,0,2,NULL,NULL,'{"text":"one","images":[],"state_delta":{},"run_config":null,"answers":[]}','{"app:price":1,"user:name":"ann"}');
INSERT INTO "turns" VALUES(4,2,'e-ab682aee-7b13-4dab-85e0-0de1d513f79b',2,'waiting',1796062164373,NULL,2,10,0,0,2,NULL,NULL,'{"text":"two","images":[],"state_delta":{},"run_config":null,"answers":[]}','{"app:price":1,"user:name":"ann"}');
CREATE TABLE worker_flows (
    flow_type  TEXT NOT NULL,
    worker_id  TEXT NOT NULL,
    definition TEXT NOT NULL,
    PRIMARY KEY (flow_type, worker_id)
) STRICT, WITHOUT ROWID;
CREATE TABLE workers (
    worker_id      TEXT PRIMARY KEY,
    pid            INTEGER NOT NULL,
    lease_ms       INTEGER NOT NULL,
    lease_until_ms INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX sessions_due   ON sessions (flow_type, due_since_ms) WHERE due_since_ms IS NOT NULL;
CREATE INDEX sessions_wake  ON sessions (flow_type, wake_at_ms)
    WHERE wake_at_ms IS NOT NULL AND owner IS NULL AND blocked IS NULL;
CREATE INDEX sessions_open  ON sessions (flow_type) WHERE open_turn_key IS NOT NULL;
CREATE INDEX sessions_owned ON sessions (owner) WHERE owner IS NOT NULL;
CREATE INDEX sessions_by_change ON sessions (updated_at_ms);
CREATE INDEX sessions_by_user   ON sessions (user_id, updated_at_ms);
CREATE INDEX sessions_by_flow   ON sessions (flow_type, updated_at_ms);
CREATE INDEX sessions_by_status ON sessions (status, updated_at_ms);
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
CREATE INDEX interrupts_pending ON interrupts (session_key) WHERE status = 'pending';
CREATE TRIGGER interrupts_keep BEFORE UPDATE ON interrupts WHEN OLD.status <> 'pending'
BEGIN
    SELECT RAISE(ABORT, 'J6: an interrupt is answered at most once');
END;
CREATE INDEX payload_refs_by_payload ON payload_refs (sha256);
COMMIT;
PRAGMA application_id = 1885696612;
PRAGMA user_version = 1;
