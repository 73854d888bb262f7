"""Causes and evidence -> a diagnosis whose every claim cites a finding."""
