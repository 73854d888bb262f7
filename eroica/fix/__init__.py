"""Causes -> patches, checked and rehearsed."""
