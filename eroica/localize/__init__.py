"""All ranks' patterns and evidence -> findings and ranked causes."""
