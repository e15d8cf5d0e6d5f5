"""Run time: grammar text becomes token masks, forced tokens and completion budgets for one request."""
