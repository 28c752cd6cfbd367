collect_ignore = ["solutions"]  # they are graded, not imported
