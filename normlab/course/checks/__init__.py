"""How each exercise is checked, a file each: inputs, right answers, hints, budgets. `catalogue` finds them by name."""
