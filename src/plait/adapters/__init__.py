"""The hands: what really starts a process, sends a request or calls a function."""
