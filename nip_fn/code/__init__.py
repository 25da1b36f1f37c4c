"""Programs as data: solutions, tests, bugs and the built-in data sets."""
