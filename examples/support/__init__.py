"""An order-support agent, in the folder form that ADK's own tools load (``adk web examples``)."""

from . import agent as agent
