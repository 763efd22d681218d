"""The workflow is pure: Temporal's sandbox takes it, and what it imports knows no framework, no store and no clock."""

from __future__ import annotations

import ast
from pathlib import Path

from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner
from temporalio.workflow import _Definition
from tests.support.import_graph import read_imports

from perdure.engine.temporal.worker import SANDBOX
from perdure.engine.temporal.workflow import SessionWorkflow

SOURCE = Path(__file__).parents[2] / "src"
WORKFLOW = "perdure.engine.temporal.workflow"


def closure(name: str) -> dict[str, set[str]]:
    """The modules of ours that a module needs, directly or not, each with what it imports of others'."""
    imports = read_imports(SOURCE, "perdure")
    found: dict[str, set[str]] = {}
    waiting = [name]
    while waiting:
        module = waiting.pop()
        if module not in found:
            found[module] = {item.target for item in imports[module] if item.target not in imports}
            waiting += [item.target for item in imports[module] if item.target in imports]
    return found


async def test_the_sandbox_takes_the_workflow() -> None:
    SandboxedWorkflowRunner(restrictions=SANDBOX).prepare_workflow(_Definition.must_from_class(SessionWorkflow))


def test_the_workflow_itself_is_loaded_anew_for_each_run_and_all_that_it_imports_is_shared() -> None:
    shared = SANDBOX.passthrough_modules
    needed = closure(WORKFLOW).keys() - {WORKFLOW}
    assert not any(WORKFLOW.startswith(name) for name in shared if name.startswith("perdure"))
    assert [name for name in sorted(needed) if not any(f"{name}.".startswith(f"{one}.") for one in shared)] == []


def test_what_the_workflow_needs_is_pure() -> None:
    needed = closure(WORKFLOW)
    ours = {module.removeprefix("perdure.").split(".")[0] for module in needed}
    assert ours == {"engine", "errors", "session"}
    assert {module for module in needed if module.startswith("perdure.engine")} == {
        WORKFLOW,
        "perdure.engine.temporal.wire",
    }
    others = {target.split(".")[0] for targets in needed.values() for target in targets}
    assert others <= {
        "__future__",
        "asyncio",
        "base64",
        "builtins",
        "collections",
        "dataclasses",
        "datetime",
        "enum",
        "functools",
        "json",
        "math",
        "pydantic",
        "re",
        "temporalio",
        "types",
        "typing",
    }


def test_the_workflow_asks_nobody_but_temporal_for_the_time() -> None:
    tree = ast.parse((SOURCE / "perdure/engine/temporal/workflow.py").read_text(encoding="utf-8"))
    called = {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    assert {name for name in called if name.split(".")[-1] in ("now", "sleep", "time", "uuid4")} == {
        "workflow.now",
        "workflow.sleep",
    }
