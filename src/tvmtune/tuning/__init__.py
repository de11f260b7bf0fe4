"""The tuning loop: scheduler, cost model, tuners, budgets."""
