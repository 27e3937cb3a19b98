"""Understudy in tests of clients: a stand-in for vLLM, for a `with` block or a test.

with vllm_understudy.running_server(max_num_seqs=2) as server:
    server.fault("error", status=503, times=1)
    ask(server.base_url)
    assert server.verdict().clean

The pytest fixture `understudy` does the same (docs/testing.md).
"""

from vllm_understudy.control import Reply, Scope, Server, Verdict
from vllm_understudy.journal import JournalEntry
from vllm_understudy.mcp_control import McpServer, ToolCall, running_mcp_server
from vllm_understudy.rules import ControlError
from vllm_understudy.running import running_server

__all__ = [
    "ControlError",
    "JournalEntry",
    "McpServer",
    "Reply",
    "Scope",
    "Server",
    "ToolCall",
    "Verdict",
    "running_mcp_server",
    "running_server",
]
