"""Files that PyTorch and its helpers wrote -> columns and records, with warnings."""
