"""Templates: text with placeholders, parsed once, filled by stages, put in place by sinks.

Reading order: `nodes`, `profiles`, `grammar`, `filters`, `program`, `template`,
`codegen`, `sinks`, `shell_places`, `shell_words`, `shell_rules`, `shell_lexer`,
`shell`.  Everything here is pure: no files, clock, environment, randomness or
processes.
"""
