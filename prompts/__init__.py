"""Prompt templates: flat jinja2 files, rendered with StrictUndefined by eroica.explain."""
