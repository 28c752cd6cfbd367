collect_ignore = ["other", "solutions", "wrong"]  # they are graded, not imported
