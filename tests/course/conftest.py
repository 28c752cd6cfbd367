collect_ignore = ["solutions", "wrong"]  # they are graded, not imported
