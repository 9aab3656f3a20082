"""Starting ranks on this machine, without loading torch in the process that starts them."""
