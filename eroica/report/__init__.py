"""An incident for people: terminal, Markdown, HTML."""
