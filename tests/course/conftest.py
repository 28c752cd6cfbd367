"""For the course's tests: which files are no tests."""

collect_ignore = ["other", "wrong"]  # they are graded, not imported
