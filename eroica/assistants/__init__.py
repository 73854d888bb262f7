"""Faces for coding assistants: MCP server, skill, installers."""
