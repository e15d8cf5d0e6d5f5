"""One file a task, or a family of tasks that differ in their data only. `catalogue` lists them."""
