"""Fixers: one module each, holding its documentation, its examples and its edit."""
