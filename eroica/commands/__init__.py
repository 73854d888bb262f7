"""The commands, grouped as a person meets them; each body only wires rooms together."""
