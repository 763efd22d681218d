"""The session loop keeps its rules whatever it is told, in whatever order."""

from __future__ import annotations

from tests.support.flow_machine import AnyMishap, DyingWorkers

TestAnyMishap = AnyMishap.TestCase
TestDyingWorkers = DyingWorkers.TestCase
