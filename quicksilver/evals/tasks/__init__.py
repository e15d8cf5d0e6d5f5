"""One file per task, or per family of tasks that differ only in their data. `catalogue` lists them."""
