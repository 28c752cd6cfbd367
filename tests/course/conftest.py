collect_ignore = ["other", "wrong"]  # they are graded, not imported
